/* SPDX-License-Identifier: Apache-2.0 */
/* See node.h. */
#include "tests/integration/node.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/start.h"

#define N_HEADS 4
#define N_ELEMS 8
#define N_LAYERS 3

void node_start(struct node *node, const char *const *arguments)
{
    char program[PATH_MAX];
    struct start start;

    snprintf(program, sizeof program, "%s/kvwheeld", getenv("KVW_BIN"));
    setenv("KVWHEELD", program, 1);
    snprintf(node->folder, sizeof node->folder, "/tmp/kvwheel-test-XXXXXX");
    cr_assert_not_null(mkdtemp(node->folder));
    snprintf(node->socket, sizeof node->socket, "%s/s", node->folder);
    cr_assert_eq(start_daemon(node->socket, arguments, &start), 0, "%s",
                 kvw_last_error());
    start_fini(&start);
    for (int tries = 0; tries < 200; tries++) {
        if (client_open(node->socket, false, &node->client) == 0)
            return;
        poll(NULL, 0, 20); /* the socket may not be there yet */
    }
    cr_assert_fail("no daemon: %s", kvw_last_error());
}

static void wait_until_gone(pid_t pid, const char *what)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd gone = {.fd = pidfd, .events = POLLIN};

    if (pidfd < 0)
        return; /* gone already */
    cr_assert_eq(poll(&gone, 1, 10000), 1, "%s %d did not end", what, pid);
    close(pidfd);
}

static void ask_status(struct node *node, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};

    cr_assert_eq(client_call(node->client, &request, answer, NULL, 0, NULL, NULL), 0,
                 "%s", kvw_last_error());
}

pid_t node_daemon_pid(struct node *node)
{
    struct kvw_message answer;
    ask_status(node, &answer);
    return (pid_t)answer.status_is.pid;
}

pid_t node_keeper_pid(struct node *node)
{
    struct kvw_message answer;
    ask_status(node, &answer);
    return (pid_t)answer.status_is.keeper_pid;
}

void node_stop(struct node *node)
{
    struct kvw_message request = {.type = KVW_MESSAGE_SHUTDOWN,
                                  .shutdown = {.is_forced = 1}};
    struct kvw_message answer;
    pid_t daemon = node_daemon_pid(node);
    pid_t keeper = node_keeper_pid(node);
    char command[128];

    cr_assert_eq(client_call(node->client, &request, &answer, NULL, 0, NULL, NULL), 0,
                 "%s", kvw_last_error());
    kvw_disconnect(node->client);
    wait_until_gone(daemon, "daemon");
    wait_until_gone(keeper, "keeper");
    snprintf(command, sizeof command, "rm -rf '%s'", node->folder);
    cr_assert_eq(system(command), 0);
}

void node_spec(struct kvw_spec *spec, const char *name, uint32_t n_ranks)
{
    kvw_spec_init(spec, name);
    struct kvw_spec_group *group = kvw_spec_add_group(spec, "self", N_LAYERS, NULL);
    group->n_heads = N_HEADS;
    group->window_rows = 12;
    group->sink_rows = 2;
    group->chunk_rows_max = 4;
    cr_assert_not_null(kvw_spec_add_plane(group, "k", KVW_F32, N_ELEMS));
    cr_assert_not_null(kvw_spec_add_plane(group, "v", KVW_F32, N_ELEMS));
    kvw_spec_split_heads(spec, n_ranks);
    spec->lifetime = KVW_LIFETIME_KEEP;
}

void worker_start(const struct node *node, worker_fn *run, struct worker *worker)
{
    int commands[2];
    int answers[2];

    cr_assert_eq(pipe(commands), 0);
    cr_assert_eq(pipe(answers), 0);
    worker->pid = fork();
    if (worker->pid == 0) {
        close(commands[1]);
        close(answers[0]);
        run(node, commands[0], answers[1]);
        _exit(0);
    }
    close(commands[0]);
    close(answers[1]);
    worker->commands = commands[1];
    worker->answers = answers[0];
}

int worker_ask(struct worker *worker, char command)
{
    struct pollfd answer = {.fd = worker->answers, .events = POLLIN};
    char byte;

    cr_assert_eq(write(worker->commands, &command, 1), 1);
    cr_assert_eq(poll(&answer, 1, 10000), 1, "no answer to '%c'", command);
    cr_assert_eq(read(worker->answers, &byte, 1), 1, "worker ended at '%c'", command);
    return byte;
}

static int reap(struct worker *worker)
{
    int status;

    close(worker->commands);
    close(worker->answers);
    cr_assert_eq(waitpid(worker->pid, &status, 0), worker->pid);
    return status;
}

void worker_kill(struct worker *worker)
{
    kill(worker->pid, SIGKILL);
    int status = reap(worker);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

void worker_end(struct worker *worker)
{
    int status = reap(worker);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "worker: status %#x",
              status);
}

static float value_of(uint64_t row, uint32_t layer, uint32_t head)
{
    return (float)(row * 1000 + layer * 10 + head);
}

int roll_chunk(struct kvw_cache *cache, uint64_t n, int commits)
{
    float rows[4][N_HEADS][N_ELEMS];
    struct kvw_lane_state state;
    struct kvw_part part;

    int error = kvw_cache_part(cache, 0, kvw_cache_rank(cache), &part);
    if (error == 0)
        error = kvw_state(cache, 0, kvw_cache_rank(cache), &state);
    if (error != 0)
        return error;
    const struct kvw_item chunk = {.group = 0, .row = state.group[0].rows, .n = n};
    error = kvw_begin(cache, 0, &chunk, 1, NULL);
    for (uint32_t layer = 0; layer < N_LAYERS && error == 0; layer++) {
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t h = 0; h < part.n_heads; h++)
                for (uint32_t e = 0; e < N_ELEMS; e++)
                    rows[r][h][e] = value_of(chunk.row + r, layer, part.head_first + h);
        const struct kvw_source source = {rows, sizeof rows[0], sizeof rows[0][0]};
        const struct kvw_source sources[2] = {source, source};
        error = kvw_update(cache, 0, (struct kvw_layer){layer}, 0, n, sources);
    }
    if (error == 0 && commits)
        error = kvw_commit(cache, 0, NULL, 0);
    return error;
}

void check_piece(const struct kvw_view *view, const struct kvw_piece *piece,
                 uint32_t layer)
{
    for (uint32_t p = 0; p < view->n_planes; p++) {
        for (uint32_t h = 0; h < view->n_heads; h++) {
            const char *at = kvw_piece_at(&view->plane[p], piece, h);
            for (uint32_t r = 0; r < piece->n_rows; r++) {
                float want = value_of(piece->row + r, layer, view->head_first + h);
                const float *have =
                    (const float *)(const void *)(at + r * view->plane[p].row_bytes);
                for (uint32_t e = 0; e < N_ELEMS; e++)
                    cr_assert_eq(have[e], want, "layer %u row %lu: need %g, have %g",
                                 layer, (unsigned long)(piece->row + r), (double)want,
                                 (double)have[e]);
            }
        }
    }
}

uint64_t check_rows(struct kvw_cache *cache)
{
    struct kvw_view view;

    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        cr_assert_eq(kvw_get(cache, 0, (struct kvw_layer){layer}, KVW_COMMITTED, &view),
                     0, "%s", kvw_last_error());
        for (uint32_t i = 0; i < view.n_pieces; i++)
            check_piece(&view, &view.piece[i], layer);
        cr_assert_eq(view.n_rows, view.end_row < 12 ? view.end_row : 12);
        cr_assert_eq(kvw_release(cache, &view), 0, "%s", kvw_last_error());
    }
    return view.end_row;
}
