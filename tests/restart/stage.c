/* SPDX-License-Identifier: Apache-2.0 */
/* See stage.h. Every wait has a deadline. */
#include "tests/restart/stage.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS 20000000000ull

uint64_t stage_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void run(const char *command)
{
    cr_assert_eq(system(command), 0, "%s", command);
}

void stage_install(struct stage *stage, const char *name)
{
    char command[1400];
    const char *from = strcmp(name, "kvwheeld") == 0 ? stage->built : STAGE_PROGRAMS;

    snprintf(command, sizeof command, "cp '%s/%s' '%s.new' && mv '%s.new' '%s'", from,
             name, stage->program, stage->program, stage->program);
    run(command);
}

void stage_install_bytes(struct stage *stage, const char *bytes)
{
    char path[160];

    snprintf(path, sizeof path, "%s.new", stage->program);
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file);
    fputs(bytes, file);
    cr_assert_eq(fchmod(fileno(file), 0755), 0);
    fclose(file);
    cr_assert_eq(rename(path, stage->program), 0);
}

void stage_start(struct stage *stage)
{
    const char *built = getenv("KVW_BIN");

    *stage = (struct stage){.folder = "/tmp/kvwheel-stage-XXXXXX"};
    cr_assert_not_null(built);
    snprintf(stage->built, sizeof stage->built, "%s", built);
    cr_assert_not_null(mkdtemp(stage->folder));
    snprintf(stage->program, sizeof stage->program, "%s/kvwheeld", stage->folder);
    stage_install(stage, "kvwheeld");
    setenv("KVW_BIN", stage->folder, 1);
    node_start(&stage->node, NULL);
}

void stage_stop(struct stage *stage)
{
    char command[128];

    node_stop(&stage->node);
    setenv("KVW_BIN", stage->built, 1);
    snprintf(command, sizeof command, "rm -rf '%s'", stage->folder);
    run(command);
}

int stage_run(struct stage *stage, char *text, size_t text_bytes, const char *words)
{
    char command[1024];

    snprintf(command, sizeof command, "'%s/kvwheel' --socket '%s' %s 2>&1",
             stage->built, stage->node.socket, words);
    FILE *output = popen(command, "re");
    cr_assert_not_null(output);
    size_t n_bytes = fread(text, 1, text_bytes - 1, output);
    text[n_bytes] = 0;
    int status = pclose(output);
    cr_assert(WIFEXITED(status), "%s", command);
    return WEXITSTATUS(status);
}

bool stage_runs_installed(const struct stage *stage, pid_t pid)
{
    struct stat installed;
    struct stat running;
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    cr_assert_eq(stat(stage->program, &installed), 0);
    cr_assert_eq(stat(path, &running), 0, "%s", path);
    return installed.st_ino == running.st_ino && installed.st_dev == running.st_dev;
}

struct kvw_message_status_is stage_status(struct stage *stage)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message answer;

    cr_assert_eq(
        client_call(stage->node.client, &request, &answer, NULL, 0, NULL, NULL), 0,
        "%s", kvw_last_error());
    return answer.status_is;
}

/* --------------------------------------------------------------- worker ---------- */

/* A call that the daemon must answer: where it stands itself. */
static int ask(struct kvw_client *client)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message answer;

    return client_call(client, &request, &answer, NULL, 0, NULL, NULL);
}

static int roll(struct roller_words *words, struct kvw_client *client,
                struct kvw_cache *cache)
{
    while (atomic_load(&words->is_ending) == 0) {
        uint64_t begin_ns = stage_now_ns();
        int error = roll_chunk(cache, 4, 1);
        uint64_t took_ns = stage_now_ns() - begin_ns;
        if (error != 0)
            return error;
        if (took_ns > atomic_load(&words->longest_ns))
            atomic_store(&words->longest_ns, took_ns);
        atomic_fetch_add(&words->n_chunks, 1);
        if (atomic_load(&words->asks) != atomic_load(&words->answers)) {
            atomic_store(&words->error, ask(client));
            if (atomic_load(&words->error) != 0)
                fprintf(stderr, "roller: %s\n", kvw_last_error());
            atomic_fetch_add(&words->answers, 1);
        }
        /* Two cores, and others want them: a worker computes between two chunks. */
        poll(NULL, 0, 1);
    }
    return 0;
}

static void work(struct roller_words *words, const char *socket, const char *name,
                 uint32_t rank)
{
    struct kvw_client *client;
    struct kvw_cache *cache;

    int error = client_open(socket, false, &client);
    if (error == 0)
        error = kvw_attach(client, name, rank, NULL, &cache);
    if (error == 0)
        error = roll(words, client, cache);
    if (error != 0)
        fprintf(stderr, "roller: %s\n", kvw_last_error());
    atomic_store(&words->error, error);
    if (error == 0)
        kvw_disconnect(client);
    _exit(error != 0);
}

void roller_start(struct roller *roller, const char *socket, const char *name,
                  uint32_t rank)
{
    roller->words = mmap(NULL, sizeof *roller->words, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(roller->words, MAP_FAILED);
    roller->pid = fork();
    if (roller->pid == 0)
        work(roller->words, socket, name, rank);
    roller_await(roller, 1);
}

void roller_await(struct roller *roller, uint64_t n_chunks)
{
    uint64_t until = atomic_load(&roller->words->n_chunks) + n_chunks;
    uint64_t deadline_ns = stage_now_ns() + WAIT_NS;

    while (atomic_load(&roller->words->n_chunks) < until) {
        cr_assert_eq(atomic_load(&roller->words->error), 0);
        cr_assert_lt(stage_now_ns(), deadline_ns, "the worker does not roll");
        poll(NULL, 0, 1);
    }
}

int roller_ask(struct roller *roller)
{
    uint32_t number = atomic_fetch_add(&roller->words->asks, 1) + 1;
    uint64_t deadline_ns = stage_now_ns() + WAIT_NS;

    while (atomic_load(&roller->words->answers) != number) {
        cr_assert_lt(stage_now_ns(), deadline_ns, "the worker does not ask");
        poll(NULL, 0, 1);
    }
    return atomic_exchange(&roller->words->error, 0);
}

static int reap(struct roller *roller)
{
    int status;

    cr_assert_eq(waitpid(roller->pid, &status, 0), roller->pid);
    munmap(roller->words, sizeof *roller->words);
    return status;
}

void roller_end(struct roller *roller)
{
    atomic_store(&roller->words->is_ending, 1);
    int status = reap(roller);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "worker: status %#x",
              status);
}

void roller_kill(struct roller *roller)
{
    kill(roller->pid, SIGKILL);
    (void)reap(roller);
}
