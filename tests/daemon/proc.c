/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/proc.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTLE_TRIES 1000 /* of a millisecond */

static bool is_asleep(pid_t pid, pid_t thread)
{
    char path[64];
    char line[512] = "";

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, thread);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return true; /* it has ended */
    (void)!fgets(line, sizeof line, file);
    fclose(file);
    /* The name, in parentheses, may have any character. */
    const char *end = strrchr(line, ')');
    return end != NULL && strncmp(end, ") S", 3) == 0;
}

static bool others_are_asleep(pid_t pid)
{
    struct dirent *entry;
    char path[64];
    bool are_asleep = true;

    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    while (threads != NULL && are_asleep && (entry = readdir(threads)) != NULL) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        are_asleep = thread <= 0 || thread == pid || is_asleep(pid, thread);
    }
    if (threads != NULL)
        closedir(threads);
    return are_asleep;
}

bool proc_settle(pid_t pid)
{
    for (int tries = 0; tries < SETTLE_TRIES; tries++) {
        if (others_are_asleep(pid))
            return true;
        (void)poll(NULL, 0, 1);
    }
    return false;
}

int proc_count_fds(pid_t pid)
{
    char path[64];
    int n = 0;

    (void)proc_settle(pid);
    (void)snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL)
        n++;
    if (folder != NULL)
        closedir(folder);
    return n;
}

struct proc_schedule proc_schedule_of(pid_t pid)
{
    unsigned long long on_cpu = 0;
    unsigned long long waited = 0;
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/%d/schedstat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return (struct proc_schedule){0};
    const bool is_read = fscanf(file, "%llu %llu", &on_cpu, &waited) == 2;
    fclose(file);
    return is_read ? (struct proc_schedule){on_cpu, waited} : (struct proc_schedule){0};
}
