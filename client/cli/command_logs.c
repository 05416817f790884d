/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheel logs: what a daemon logs to SOCKET.log, and what it has renamed to SOCKET.log.1.
 * It is read from the files, so it needs no daemon: that a daemon died is when it is read.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "proto/base/cleanup.h"

enum {
    FILE_BYTES_MAX =
        2 * KVW_LOG_BYTES_MAX, /* of each file, its end: it should be half */
    LINE_BYTES_MAX = 4096,     /* a longer line is cut into several */
    ALL_LINES = INT_MAX,
};

struct logs {
    const struct cli *cli;
    bool is_following;
    uint64_t n_lines; /* to print of what is there */
    char path[KVW_SOCKET_PATH_MAX + 8];
    json_t *list; /* with --json, and not following */
    int fd;       /* of the file at the path; -1 = there is none */
    size_t n_bytes;
    char line[LINE_BYTES_MAX]; /* the line that is not whole yet */
};

/* ----------------------------------------------------------------- lines --------- */

/* The file is the daemon's, but its lines have been through many hands, and this may be a
 * terminal. The daemon escapes; what else writes to its stderr does not. */
static void escape(const char *from, size_t n_bytes, char *to)
{
    for (size_t i = 0; i < n_bytes; i++) {
        const unsigned char byte = (unsigned char)from[i];
        if (byte >= ' ' && byte <= '~')
            *to++ = (char)byte;
        else
            to += snprintf(to, 5, "\\x%02x", byte);
    }
    *to = 0;
}

/* A line of a daemon, or anything else. */
static json_t *line_json(const char *line)
{
    char time[32], role[16], level[8];
    int pid;
    int n_bytes = 0;

    if (sscanf(line, "%31s kvwheeld %15s %d %7[a-z]: %n", time, role, &pid, level,
               &n_bytes) != 4 ||
        n_bytes == 0)
        return json_pack("{s:s}", "text", line);
    return json_pack("{s:s, s:s, s:i, s:s, s:s}", "time", time, "role", role, "pid",
                     pid, "level", level, "text", line + n_bytes);
}

static void print_line(const struct logs *logs, const char *line, size_t n_bytes)
{
    char text[4 * LINE_BYTES_MAX + 1];

    escape(line, n_bytes, text);
    if (!logs->cli->is_json) {
        puts(text);
    } else if (logs->list != NULL) {
        json_array_append_new(logs->list, line_json(text));
    } else { /* a value a line: there is no end of the list */
        json_t *value = line_json(text);
        json_dumpf(value, stdout, 0);
        putchar('\n');
        json_decref(value);
    }
}

static void flush_line(struct logs *logs)
{
    if (logs->n_bytes > 0)
        print_line(logs, logs->line, logs->n_bytes);
    logs->n_bytes = 0;
}

static void take_bytes(struct logs *logs, const char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if (bytes[i] == '\n' || logs->n_bytes == sizeof logs->line)
            flush_line(logs);
        if (bytes[i] != '\n')
            logs->line[logs->n_bytes++] = bytes[i];
    }
}

/* ----------------------------------------------------------------- files --------- */

/* @return a descriptor, or -errno. A pipe in its place must not make us wait. */
static int open_file(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return -errno;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        return fd;
    close(fd);
    return -EINVAL;
}

/* The end of a file, into a buffer that has room for it. @return bytes. */
static size_t read_end(int fd, char *buffer)
{
    const off_t end = lseek(fd, 0, SEEK_END);
    size_t n_bytes = 0;

    if (end > FILE_BYTES_MAX)
        (void)lseek(fd, end - FILE_BYTES_MAX, SEEK_SET);
    else
        (void)lseek(fd, 0, SEEK_SET);
    while (n_bytes < FILE_BYTES_MAX) {
        ssize_t n = read(fd, buffer + n_bytes, FILE_BYTES_MAX - n_bytes);
        if (n <= 0)
            break;
        n_bytes += (size_t)n;
    }
    return n_bytes;
}

/* Where the last n lines begin. */
static size_t find_lines(const char *bytes, size_t n_bytes, uint64_t n_lines)
{
    size_t at = n_bytes;

    if (n_lines == 0)
        return n_bytes;
    for (uint64_t n = 0; at > 0; at--) {
        /* The newline that ends the last line begins none. */
        if (bytes[at - 1] == '\n' && at < n_bytes && ++n == n_lines)
            break;
    }
    return at;
}

/* What is there of both files. @return 0; -ENOENT, -EACCES ...; -ENOMEM. */
static int print_files(struct logs *logs)
{
    char path[sizeof logs->path + 2];
    size_t n_bytes = 0;

    char *bytes = malloc(2 * FILE_BYTES_MAX);
    if (bytes == NULL)
        return -ENOMEM;
    /* The newer one first: if it is renamed meanwhile, lines come twice, and none is lost. */
    logs->fd = open_file(logs->path);
    snprintf(path, sizeof path, "%s.1", logs->path);
    int old = open_file(path);
    if (old >= 0)
        n_bytes = read_end(old, bytes);
    if (logs->fd >= 0)
        n_bytes += read_end(logs->fd, bytes + n_bytes);
    const size_t from = find_lines(bytes, n_bytes, logs->n_lines);
    take_bytes(logs, bytes + from, n_bytes - from);
    free(bytes);
    if (old >= 0)
        close(old);
    return old < 0 && logs->fd < 0 ? logs->fd : 0;
}

/* ---------------------------------------------------------------- follow --------- */

static void drain(struct logs *logs)
{
    char bytes[LINE_BYTES_MAX];
    ssize_t n;

    while (logs->fd >= 0 && (n = read(logs->fd, bytes, sizeof bytes)) > 0)
        take_bytes(logs, bytes, (size_t)n);
}

/* Go on with the file at the path, if it is another one now. @return whether it is. */
static bool follow_rename(struct logs *logs)
{
    struct stat mine, there;

    if (lstat(logs->path, &there) < 0 ||
        (logs->fd >= 0 && fstat(logs->fd, &mine) == 0 && mine.st_ino == there.st_ino &&
         mine.st_dev == there.st_dev))
        return false;
    drain(logs); /* what was written before the rename */
    if (logs->fd >= 0)
        close(logs->fd);
    logs->fd = open_file(logs->path);
    return logs->fd >= 0;
}

/* The folder is watched, for the file may be another one tomorrow. */
static int watch_folder(const struct logs *logs)
{
    char folder[sizeof logs->path];

    snprintf(folder, sizeof folder, "%s", logs->path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = 0;
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch >= 0 &&
        inotify_add_watch(watch, slash == NULL ? "." : folder,
                          IN_MODIFY | IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF) < 0) {
        const int error = -errno;
        close(watch);
        return error;
    }
    return watch < 0 ? -errno : watch;
}

/* Until it is interrupted, nobody reads what is printed, or the folder is gone. */
static void follow(struct logs *logs, int watch)
{
    struct pollfd changed[2] = {{.fd = watch, .events = POLLIN},
                                {.fd = STDOUT_FILENO, .events = 0}};
    char events[4096] __attribute__((aligned(__alignof__(struct inotify_event))));

    for (;;) {
        drain(logs);
        while (follow_rename(logs))
            drain(logs);
        if (fflush(stdout) != 0)
            return;
        if (poll(changed, 2, -1) < 0 && errno != EINTR)
            return;
        ssize_t n_bytes = read(watch, events, sizeof events);
        const struct inotify_event *first =
            (const struct inotify_event *)(void *)events;
        if ((n_bytes > 0 && (first->mask & (IN_DELETE_SELF | IN_IGNORED)) != 0) ||
            (changed[1].revents & (POLLERR | POLLHUP)) != 0)
            return;
    }
}

/* ------------------------------------------------------------------ logs --------- */

static int refuse(const struct logs *logs, int error)
{
    return cli_fail(logs->cli,
                    error == -ENOENT
                        ? fail(error,
                               "logs: there is no %s: no daemon was started there by "
                               "kvwheel start or by a program; one in the foreground "
                               "logs to its stderr, one of systemd to the journal",
                               logs->path)
                        : fail(error, "logs: %s: %s", logs->path, kvw_strerror(error)));
}

static int print(struct logs *logs)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int watch = -1;

    if (logs->is_following) {
        watch = watch_folder(logs); /* before the first look */
        if (watch < 0)
            return refuse(logs, watch);
    }
    if (logs->cli->is_json && !logs->is_following)
        logs->list = json_array();
    int result = print_files(logs);
    if (result < 0 && !(logs->is_following && result == -ENOENT)) {
        json_decref(logs->list);
        return refuse(logs, result);
    }
    if (logs->is_following)
        follow(logs, watch);
    flush_line(logs);
    if (logs->list != NULL)
        output_json(logs->list);
    return CLI_OK;
}

int command_logs(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {{"follow", no_argument, NULL, 'f'},
                                            {"lines", required_argument, NULL, 'n'},
                                            CLI_OPTIONS};
    struct logs logs = {.cli = cli, .n_lines = ALL_LINES, .fd = -1};
    char socket[KVW_SOCKET_PATH_MAX + 1];
    int option;

    while ((option = cli_option(cli, argc, argv, ":fn:h", options)) > 0) {
        if (option == 'f')
            logs.is_following = true;
        else if (!cli_number(optarg, ALL_LINES, &logs.n_lines))
            return cli_usage(cli, "logs: --lines: need a whole number; have '%s'",
                             optarg);
    }
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "logs takes no arguments; have '%s'", argv[optind]);
    int result = cli->socket_path == NULL ? client_default_path(socket) : 0;
    if (result == 0 && cli->socket_path != NULL &&
        strlen(cli->socket_path) > KVW_SOCKET_PATH_MAX)
        result = fail(-ENAMETOOLONG, "socket path: %zu bytes, of %u at most",
                      strlen(cli->socket_path), KVW_SOCKET_PATH_MAX);
    if (result < 0)
        return cli_fail(cli, result);
    snprintf(logs.path, sizeof logs.path, "%s.log",
             cli->socket_path == NULL ? socket : cli->socket_path);
    int exit_code = print(&logs);
    if (logs.fd >= 0)
        close(logs.fd);
    return exit_code;
}
