/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheeld itself tries the host, for only it knows what it needs. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cli/doctor.h"
#include "client/outside.h"
#include "client/start.h"
#include "proto/base/cleanup.h"

#define OUTPUT_BYTES 16384u
#define OUTPUT_NS 20000000000ull

/* Run it with both outputs into a pipe. @return 0 with the pid, or -errno. */
static int run(const char *program, int output, pid_t *pid)
{
    char *const arguments[] = {"kvwheeld", "--check-host", NULL};
    posix_spawn_file_actions_t actions;

    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return -error;
    error = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
    if (error == 0)
        error = posix_spawn(pid, program, &actions, NULL, arguments, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return -error;
}

/* Read to the end, or to the deadline. @return false at the deadline. */
static bool read_all(int fd, char text[OUTPUT_BYTES])
{
    const uint64_t deadline_ns = outside_now_ns(CLOCK_MONOTONIC) + OUTPUT_NS;
    size_t n_bytes = 0;

    for (;;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        uint64_t now_ns = outside_now_ns(CLOCK_MONOTONIC);
        text[n_bytes] = 0;
        if (now_ns >= deadline_ns)
            return false;
        if (poll(&readable, 1, (int)((deadline_ns - now_ns) / 1000000 + 1)) <= 0)
            continue;
        ssize_t n_read = read(fd, text + n_bytes, OUTPUT_BYTES - 1 - n_bytes);
        if (n_read < 0 && errno == EINTR)
            continue;
        if (n_read <= 0)
            return true;
        n_bytes += (size_t)n_read;
    }
}

static bool parse_level(const char *word, enum finding_level *level)
{
    static const char *const words[] = {"ok", "note", "wrong"};

    for (int i = 0; i < 3; i++) {
        if (strcmp(word, words[i]) == 0) {
            *level = (enum finding_level)i;
            return true;
        }
    }
    return false;
}

/* LEVEL WHAT NEED HAVE TEXT COMMAND, with tabs between. */
static bool parse_line(char *line, struct findings *findings)
{
    char *field[6];
    enum finding_level level;

    for (int i = 0; i < 6; i++) {
        field[i] = strsep(&line, "\t");
        if (field[i] == NULL)
            return false;
    }
    if (!parse_level(field[0], &level))
        return false;
    struct finding *finding = finding_add(findings, level, field[1], "%s", field[4]);
    finding->has_numbers = cli_number(field[2], UINT64_MAX, &finding->need) &&
                           cli_number(field[3], UINT64_MAX, &finding->have);
    snprintf(finding->mend, sizeof finding->mend, "%s", field[5]);
    return true;
}

/* Of each line that is none of those, its words. */
static void parse(char *text, struct findings *findings)
{
    for (char *line = strsep(&text, "\n"); line != NULL; line = strsep(&text, "\n")) {
        char words[256];
        snprintf(words, sizeof words, "%s", line);
        if (line[0] != 0 && !parse_line(line, findings))
            (void)finding_add(findings, FOUND_WRONG, "program", "kvwheeld says: %s",
                              words);
    }
}

static int ask(const char *program, char text[OUTPUT_BYTES])
{
    int ends[2];
    int status = 0;
    pid_t pid = 0;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    KVW_CLEANUP(kvw_fd_cleanup)
    int output = ends[0];
    int error = run(program, ends[1], &pid);
    close(ends[1]);
    if (error != 0)
        return error;
    bool has_ended = read_all(output, text);
    if (!has_ended)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!has_ended)
        return -ETIMEDOUT;
    return WIFEXITED(status) ? 0 : -ECHILD;
}

void doctor_host(struct findings *findings)
{
    KVW_CLEANUP(kvw_free_cleanup)
    char *text = malloc(OUTPUT_BYTES);
    char program[PATH_MAX];

    if (text == NULL || start_find(program) < 0) {
        struct finding *finding =
            finding_add(findings, FOUND_WRONG, "program", "%s",
                        text == NULL ? "no memory" : kvw_last_error());
        snprintf(finding->mend, sizeof finding->mend,
                 "export KVWHEELD=/path/to/kvwheeld");
        return;
    }
    text[0] = 0;
    int error = ask(program, text);
    parse(text, findings);
    if (error != 0)
        (void)finding_add(findings, FOUND_WRONG, "program", "%s --check-host: %s",
                          program,
                          error == -ECHILD ? "it has crashed" : kvw_strerror(error));
}
