/* SPDX-License-Identifier: Apache-2.0 */
/* Small files read whole. No state. */
#include "examples/common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Read up to text->n_bytes; a file that shrank meanwhile gives fewer. */
static int read_all(int fd, const char *path, int code, struct file_text *text,
                    struct fail *fail)
{
    size_t done = 0;

    while (done < text->n_bytes) {
        ssize_t got = read(fd, text->bytes + done, text->n_bytes - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_set(fail, code, "%s: %s", path, strerror(errno));
        if (got == 0)
            break;
        done += (size_t)got;
    }
    text->n_bytes = done;
    text->bytes[done] = '\0';
    return 0;
}

static int read_open(int fd, const char *path, size_t bytes_max, int code,
                     struct file_text *text, struct fail *fail)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return fail_set(fail, code, "%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail_set(fail, code, "%s: not a regular file", path);
    if ((uint64_t)status.st_size > bytes_max)
        return fail_set(fail, code, "%s: size: at most %zu bytes, have %lld", path,
                        bytes_max, (long long)status.st_size);

    text->n_bytes = (size_t)status.st_size;
    text->bytes = malloc(text->n_bytes + 1);
    if (text->bytes == NULL)
        return fail_memory(fail, path);
    if (read_all(fd, path, code, text, fail) == 0)
        return 0;
    file_free(text);
    return -EINVAL;
}

int file_read(const char *path, size_t bytes_max, int code, struct file_text *text,
              struct fail *fail)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    int result;

    *text = (struct file_text){0};
    if (fd < 0)
        return fail_set(fail, code, "%s: %s", path, strerror(errno));
    result = read_open(fd, path, bytes_max, code, text, fail);
    close(fd);
    return result;
}

void file_free(struct file_text *text)
{
    free(text->bytes);
    *text = (struct file_text){0};
}

char *file_join(const char *folder, const char *name)
{
    char *path = NULL;

    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

json_t *file_parse_object(const char *text, size_t n_bytes, const char *name,
                          struct fail *fail)
{
    json_error_t error;
    json_t *json = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);

    if (json == NULL) {
        (void)fail_set(fail, FAIL_MODEL, "%s: not JSON: %s (line %d)", name, error.text,
                       error.line);
        return NULL;
    }
    if (json_is_object(json))
        return json;
    json_decref(json);
    (void)fail_set(fail, FAIL_MODEL, "%s: not a JSON object", name);
    return NULL;
}
