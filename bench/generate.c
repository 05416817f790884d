/* SPDX-License-Identifier: Apache-2.0 */
/* See generate.h. A run writes into files in memory, so that no pipe can hold it up. */
#include "bench/generate.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvwheel/kernels.h>
#include <kvwheel/kvwheel.h>

#define PATIENCE_MS 120000
#define TEXT_MAX ((size_t)1 << 20) /* of what a run prints */
#define N_TOKENS "512"
#define WINDOW_ROWS "256" /* of the model that is there */

struct way {
    const struct bench *bench;
    const char *type;    /* of stored keys and values */
    const char *kernels; /* name of a variant of attention */
    char program[PATH_MAX];
    char model[PATH_MAX];
};

/* Wait for its end, for so long. @return 0 or negative. */
static int wait_for(pid_t pid)
{
    int status = 0;
    int n_ready = -1;
    const int fd = pidfd_open(pid, 0);
    struct pollfd ended = {.fd = fd, .events = POLLIN};

    if (fd >= 0) {
        do
            n_ready = poll(&ended, 1, PATIENCE_MS);
        while (n_ready < 0 && errno == EINTR);
        close(fd);
    }
    if (n_ready <= 0)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    if (n_ready <= 0)
        return -ETIMEDOUT;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ECHILD;
}

static int spawn(char *const *arguments, int out, int said)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;

    (void)posix_spawn_file_actions_init(&actions);
    int error = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, said, STDERR_FILENO);
    if (error == 0)
        error = posix_spawn(&pid, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error != 0 ? -error : wait_for(pid);
}

/* All that a file has, with a 0 behind it; the caller's to free. NULL: too much, or no
 * memory for it. */
static char *read_all(int fd, size_t *n_bytes)
{
    const off_t n = lseek(fd, 0, SEEK_END);
    char *text = n < 0 || (size_t)n > TEXT_MAX ? NULL : malloc((size_t)n + 1);

    if (text == NULL || pread(fd, text, (size_t)n, 0) != n) {
        free(text);
        return NULL;
    }
    text[n] = 0;
    *n_bytes = (size_t)n;
    return text;
}

/* Why a run failed, in its own words. */
static void pass_on(int said)
{
    size_t n_bytes;
    char *text = read_all(said, &n_bytes);

    if (text != NULL)
        fputs(text, stderr);
    free(text);
}

static int run_once(const struct way *way, int out, int said,
                    struct generate_result *result)
{
    const char *socket_path = way->bench->options.socket_path;
    size_t n_bytes;
    /* posix_spawn() takes them without const and changes none. */
    const char *arguments[] = {
        way->program,       "--model",
        way->model,         "--prompt",
        "In the beginning", "--tokens",
        N_TOKENS,           "--window",
        WINDOW_ROWS,        "--dtype",
        way->type,          "--greedy",
        "--kernels",        way->kernels,
        "--json",           socket_path == NULL ? NULL : "--socket",
        socket_path,        NULL};

    int error = spawn((char *const *)(uintptr_t)arguments, out, said);
    if (error != 0) {
        pass_on(said);
        return bench_fail(way->program, error);
    }
    char *text = read_all(out, &n_bytes);
    error = text == NULL ? -EPROTO : generate_parse(text, n_bytes, result);
    free(text);
    if (error == 0 && strcmp(result->kernels, way->kernels) != 0)
        error = -EPROTO; /* another program than ours */
    return error == 0 ? 0 : bench_fail("what kvwheel-generate printed", error);
}

static int run_way(void *context, struct bench_samples *samples)
{
    struct generate_result result;
    const int out = memfd_create("kvwheel-bench-out", MFD_CLOEXEC);
    const int said = memfd_create("kvwheel-bench-said", MFD_CLOEXEC);

    int error = out < 0 || said < 0 ? -errno : run_once(context, out, said, &result);
    if (out >= 0)
        close(out);
    if (said >= 0)
        close(said);
    if (error == 0)
        bench_add(samples, (uint64_t)(result.seconds * 1e9), result.n_tokens);
    return error;
}

/* kvwheel-generate lies beside this program; the model, in a build, in the tree that the
 * build is in. */
static int set_paths(struct way *way)
{
    char own[PATH_MAX / 2] = "";
    const char *model = way->bench->options.model;

    if (readlink("/proc/self/exe", own, sizeof own - 1) < 0)
        return -errno;
    char *slash = strrchr(own, '/');
    if (slash == NULL)
        return -ENOENT;
    *slash = 0;
    (void)snprintf(way->program, sizeof way->program, "%s/kvwheel-generate", own);
    if (model != NULL)
        (void)snprintf(way->model, sizeof way->model, "%s", model);
    else
        (void)snprintf(way->model, sizeof way->model,
                       "%s/../../../examples/generate/model", own);
    if (access(way->program, X_OK) != 0)
        return bench_fail(way->program, -errno);
    if (access(way->model, R_OK) == 0)
        return 0;
    const int error = -errno;
    fprintf(stderr, "kvwheel-bench: generate: no model at %s; --model DIR says where\n",
            way->model);
    return error;
}

static int compare_type(struct bench *bench, const char *group, const char *type,
                        const char *best)
{
    struct way plain = {.bench = bench, .type = type, .kernels = "ref"};
    const bool has_better = strcmp(best, plain.kernels) != 0;

    int error = set_paths(&plain);
    if (error != 0)
        return error;
    struct way better = plain;
    better.kernels = best;
    const struct bench_variant variants[] = {
        {.name = plain.kernels, .each = run_way, .context = &plain},
        {.name = best, .floor = {plain.kernels}, .each = run_way, .context = &better},
    };
    if (!has_better)
        fputs("kvwheel-bench: this CPU has the references only\n", stderr);
    error = bench_compare(bench, group, variants, has_better ? 2 : 1);
    if (error == 0)
        bench_rate(bench, has_better ? 2 : 1, 1e9, "tokens/s");
    return error;
}

int generate_run(struct bench *bench)
{
    struct kvw_client *client = NULL;
    const uint32_t have = kvw_cpu_flags();

    /* There is a daemon from the first run on. */
    int error = bench_connect(bench, &client);
    if (error == 0)
        error =
            compare_type(bench, N_TOKENS " tokens, a window of " WINDOW_ROWS ", f32",
                         "f32", kvw_attn_select(KVW_NUM_F32, have)->name);
    if (error == 0)
        error =
            compare_type(bench, N_TOKENS " tokens, a window of " WINDOW_ROWS ", bf16",
                         "bf16", kvw_attn_select(KVW_NUM_BF16, have)->name);
    kvw_disconnect(client);
    return error;
}
