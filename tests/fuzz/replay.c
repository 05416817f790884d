/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target once over each file of the folders and files named: the regression
 * test where there is no libFuzzer. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/input.h"

static int run_file(const char *path)
{
    FILE *file = fopen(path, "re");
    struct stat status;

    if (file == NULL || fstat(fileno(file), &status) < 0) {
        perror(path);
        return 1;
    }
    /* Exactly as large, so that a sanitizer sees a read beyond its end. */
    const size_t n_bytes = (size_t)status.st_size;
    uint8_t *bytes = malloc(n_bytes);
    if (fread(bytes, 1, n_bytes, file) != n_bytes) {
        perror(path);
        return 1;
    }
    fclose(file);
    printf("%s\n", path); /* the last line before a crash names the culprit */
    fflush(stdout);
    (void)LLVMFuzzerTestOneInput(bytes, n_bytes);
    free(bytes);
    return 0;
}

static int run_folder(const char *path, DIR *folder, int *n_files)
{
    int failed = 0;

    for (const struct dirent *entry;
         failed == 0 && (entry = readdir(folder)) != NULL;) {
        char file[4096];
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        failed = run_file(file);
        ++*n_files;
    }
    return failed;
}

int main(int argc, char **argv)
{
    int n_files = 0;

    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        int failed =
            folder != NULL ? run_folder(argv[i], folder, &n_files) : run_file(argv[i]);
        if (folder != NULL)
            closedir(folder);
        else
            n_files++;
        if (failed != 0)
            return failed;
    }
    printf("%d files\n", n_files);
    return n_files == 0;
}
