/* SPDX-License-Identifier: Apache-2.0 */
/* A line is written by one write(2), so that lines of keeper and daemon do not mix. A file
 * that cannot be opened or renamed leaves stderr what it is: there is nobody to tell. */
#include "daemon/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/host.h"
#include "proto/limits.h"

#define LINE_BYTES 1024
#define PATH_BYTES (KVW_SOCKET_PATH_MAX + 16)
#define PEER_LINES_PER_SECOND 10

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static void write_line(const struct log *log, enum log_level level, const char *format,
                       va_list arguments) __attribute__((format(printf, 3, 0)));

/* True if stderr is the file at `path`, with its size. */
static bool is_stderr(const char *path, uint64_t *n_bytes)
{
    struct stat mine, there;

    if (fstat(STDERR_FILENO, &mine) < 0 || lstat(path, &there) < 0)
        return false;
    *n_bytes = (uint64_t)there.st_size;
    return mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

static void open_file(const char *path)
{
    struct stat status;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return;
    /* In a folder of many users somebody else's file may lie there. */
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == geteuid())
        (void)dup2(fd, STDERR_FILENO);
    close(fd);
}

/* Stderr is the file at the path, or will be: it is new, was full, or another process has
 * renamed it. Only one renames, or a second would put the new file in the old one's place. */
static void choose_file(const struct log *log)
{
    uint64_t n_bytes = 0;
    char old[PATH_BYTES];

    if (!is_stderr(log->path, &n_bytes)) {
        open_file(log->path);
        if (!is_stderr(log->path, &n_bytes))
            return;
    }
    if (n_bytes < KVW_LOG_BYTES_MAX || !log->is_rotating)
        return;
    (void)snprintf(old, sizeof old, "%s.1", log->path);
    if (rename(log->path, old) == 0)
        open_file(log->path);
}

/* Names, command lines and refusals have passed through other hands. */
static void make_printable(char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '?';
    }
}

/* UTC, as in 2031-12-01T05:45:03.123Z, and a space. @return bytes. */
static int add_time(char line[LINE_BYTES])
{
    const uint64_t now_ms = host_wall_ns() / 1000000;
    const time_t seconds = (time_t)(now_ms / 1000);
    struct tm tm;

    if (gmtime_r(&seconds, &tm) == NULL)
        return 0;
    const size_t n_bytes = strftime(line, LINE_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
    return (int)n_bytes + snprintf(line + n_bytes, LINE_BYTES - n_bytes, ".%03uZ ",
                                   (unsigned)(now_ms % 1000));
}

static void write_line(const struct log *log, enum log_level level, const char *format,
                       va_list arguments)
{
    char line[LINE_BYTES];
    int n_bytes = add_time(line);

    n_bytes +=
        snprintf(line + n_bytes, sizeof line - (size_t)n_bytes,
                 "kvwheeld %s %d %s: ", log->role, (int)getpid(), level_names[level]);
    n_bytes +=
        vsnprintf(line + n_bytes, sizeof line - (size_t)n_bytes, format, arguments);
    if (n_bytes > LINE_BYTES - 2)
        n_bytes = LINE_BYTES - 2;
    make_printable(line, (size_t)n_bytes);
    line[n_bytes] = '\n';
    if (log->path != NULL)
        choose_file(log);
    /* Nobody can be told when the log cannot be written. */
    ssize_t n_written = write(STDERR_FILENO, line, (size_t)n_bytes + 1);
    (void)n_written;
}

void log_line(const struct log *log, enum log_level level, const char *format, ...)
{
    va_list arguments;

    if (level > log->level)
        return;
    va_start(arguments, format);
    write_line(log, level, format, arguments);
    va_end(arguments);
}

void log_peer(struct log *log, enum log_level level, const char *format, ...)
{
    uint64_t now_ns = host_now_ns();
    va_list arguments;

    if (level > log->level)
        return;
    if (now_ns - log->window_ns >= 1000000000ull) {
        uint32_t n_suppressed = log->n_suppressed;
        log->window_ns = now_ns;
        log->n_in_window = 0;
        log->n_suppressed = 0;
        if (n_suppressed > 0)
            log_line(log, level, "suppressed %u lines", n_suppressed);
    }
    if (log->n_in_window >= PEER_LINES_PER_SECOND) {
        log->n_suppressed++;
        return;
    }
    log->n_in_window++;
    va_start(arguments, format);
    write_line(log, level, format, arguments);
    va_end(arguments);
}

int log_level_of(const char *name)
{
    for (int i = 0; i < (int)(sizeof level_names / sizeof level_names[0]); i++) {
        if (strcmp(name, level_names[i]) == 0)
            return i;
    }
    return -1;
}
