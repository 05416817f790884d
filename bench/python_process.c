/* SPDX-License-Identifier: Apache-2.0 */
/* The Python process: see python.h. It ends when its stdin does, so with this one. */
#include "bench/python.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvwheel/kvwheel.h>

#define PATIENCE_MS 120000 /* importing torch on a busy machine */

/* Put `first` before what a search path in the environment has. */
static int prepend(const char *variable, const char *first)
{
    char value[3 * PATH_MAX];
    const char *old = getenv(variable);

    const int n_bytes = snprintf(value, sizeof value, "%s%s%s", first,
                                 old == NULL ? "" : ":", old == NULL ? "" : old);
    if (n_bytes < 0 || (size_t)n_bytes >= sizeof value)
        return -ENAMETOOLONG;
    return setenv(variable, value, 1) < 0 ? -errno : 0;
}

/* The package lies at ../lib/python3/dist-packages of an installed program, and at
 * ../../../client/python of one in a build; the libraries are those we run with. */
static int set_paths(void)
{
    char program[PATH_MAX] = "";
    char library[PATH_MAX];
    char paths[3 * PATH_MAX];
    Dl_info of;

    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return -errno;
    char *slash = strrchr(program, '/');
    if (slash == NULL || dladdr((void *)(uintptr_t)kvw_version, &of) == 0 ||
        realpath(of.dli_fname, library) == NULL)
        return -ENOENT;
    *slash = 0;
    (void)snprintf(paths, sizeof paths,
                   "%s/../lib/python3/dist-packages:%s/../../../client/python", program,
                   program);
    int error = prepend("PYTHONPATH", paths);
    slash = strrchr(library, '/');
    if (error != 0 || slash == NULL)
        return error;
    *slash = 0;
    (void)snprintf(paths, sizeof paths, "%s:%s/../kernels", library, library);
    return prepend("KVWHEEL_LIBRARY_DIR", paths);
}

static int spawn(struct python *python, char *const *arguments, const int to[2],
                 const int from[2])
{
    posix_spawn_file_actions_t actions;

    (void)posix_spawn_file_actions_init(&actions);
    int error = posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    if (error == 0)
        error =
            posix_spawn(&python->pid, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        python->pid = 0;
    return -error;
}

static void close_pipe(int ends[2])
{
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0)
            close(ends[i]);
    }
}

/* A line without its end, of at most n_room - 1 bytes. */
static int read_line(struct python *python, char *line, size_t n_room)
{
    for (;;) {
        char *end = memchr(python->text, '\n', python->n_bytes);
        if (end != NULL) {
            const size_t n = (size_t)(end - python->text);
            if (n >= n_room)
                return -EMSGSIZE;
            memcpy(line, python->text, n);
            line[n] = 0;
            python->n_bytes -= (uint32_t)n + 1;
            memmove(python->text, end + 1, python->n_bytes);
            return 0;
        }
        struct pollfd ready = {.fd = python->from, .events = POLLIN};
        const int n_ready = poll(&ready, 1, PATIENCE_MS);
        if (n_ready == 0)
            return -ETIMEDOUT;
        if (n_ready < 0 && errno != EINTR)
            return -errno;
        if (python->n_bytes == sizeof python->text)
            return -EMSGSIZE;
        const ssize_t n_read = read(python->from, python->text + python->n_bytes,
                                    sizeof python->text - python->n_bytes);
        if (n_read == 0)
            return -EPIPE; /* it has said why on stderr */
        if (n_read > 0)
            python->n_bytes += (uint32_t)n_read;
        else if (errno != EINTR)
            return -errno;
    }
}

static int read_variants(struct python *python, const char *const *names)
{
    char line[80];

    int error = read_line(python, line, sizeof line);
    if (error != 0 || strcmp(line, "ready") != 0)
        return error != 0 ? error : -EPROTO;
    while ((error = read_line(python, line, sizeof line)) == 0 && line[0] != 0) {
        const char *const *name = names;
        while (*name != NULL && strcmp(*name, line) != 0)
            name++;
        if (*name == NULL || python->n_variants == PYTHON_VARIANTS_MAX)
            return -EPROTO;
        python->variant[python->n_variants] = (struct python_variant){
            .python = python, .index = python->n_variants, .name = *name};
        python->n_variants++;
    }
    return error;
}

int python_start(struct bench *bench, struct python *python, const char *name_of_case,
                 const char *const *names)
{
    int to[2] = {-1, -1};
    int from[2] = {-1, -1};
    char name[64];
    const char *given = getenv("KVWHEEL_PYTHON");
    const char *program = given != NULL ? given : "/usr/bin/python3";

    *python = (struct python){.to = -1, .from = -1};
    (void)snprintf(name, sizeof name, "bench-%s-%ld", name_of_case, (long)getpid());
    char *arguments[] = {(char *)program,      "-m", "kvwheel.bench",
                         (char *)name_of_case, name, NULL};
    int error = set_paths();
    if (error == 0 && bench->options.socket_path != NULL &&
        setenv("KVWHEEL_SOCKET", bench->options.socket_path, 1) < 0)
        error = -errno;
    if (error == 0 && (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0))
        error = -errno;
    if (error == 0)
        error = spawn(python, arguments, to, from);
    if (error == 0) {
        python->to = to[1];
        python->from = from[0];
        to[1] = from[0] = -1;
    }
    close_pipe(to);
    close_pipe(from);
    if (error == 0)
        error = read_variants(python, names);
    return error == 0 ? 0 : bench_fail(program, error);
}

void python_stop(struct python *python)
{
    if (python->pid == 0)
        return;
    close(python->to); /* it ends */
    close(python->from);
    (void)waitpid(python->pid, NULL, 0);
    python->pid = 0;
}

int python_sample(const struct python_variant *variant, uint32_t n,
                  struct bench_samples *samples)
{
    struct python *python = variant->python;
    char line[sizeof python->text];

    const int n_bytes = snprintf(line, sizeof line, "%u %u\n", variant->index, n);
    if (write(python->to, line, (size_t)n_bytes) != n_bytes)
        return -EPIPE;
    int error = read_line(python, line, sizeof line);
    char *at = line;
    for (uint32_t i = 0; i < n && error == 0; i++) {
        char *end;
        const uint64_t ns = strtoull(at, &end, 10);
        if (end == at)
            return -EPROTO;
        bench_add(samples, ns, 1);
        at = end;
    }
    return error;
}
