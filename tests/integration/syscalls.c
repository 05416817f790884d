/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fast path makes no system call and allocates nothing. A child attaches, warms up,
 * takes on a seccomp filter that kills it on any system call but exit_group and write,
 * and then rolls through three windows with everything that the public header promises.
 * A second child shows that the filter bites. The clock belongs to the fast path (begin
 * and get look at it): a third child finds out whether the vDSO answers; where it does
 * not, the filter lets clock_gettime through and the test says so.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"

#define SKIPPED 77
#define CACHE "syscalls"
#define N_LAYERS 3u /* of group `self` */
#define WINDOW_ROWS 12u
#define CHUNK_ROWS 4u
#define N_HEADS 2u
#define N_ELEMS 8u

/* -------------------------------------------------------------- malloc ---------- */

static unsigned long n_heap_calls;

void *__real_malloc(size_t n_bytes);
void *__real_calloc(size_t n, size_t n_bytes);
void *__real_realloc(void *pointer, size_t n_bytes);
void __real_free(void *pointer);
void *__wrap_malloc(size_t n_bytes);
void *__wrap_calloc(size_t n, size_t n_bytes);
void *__wrap_realloc(void *pointer, size_t n_bytes);
void __wrap_free(void *pointer);

void *__wrap_malloc(size_t n_bytes)
{
    n_heap_calls++;
    return __real_malloc(n_bytes);
}

void *__wrap_calloc(size_t n, size_t n_bytes)
{
    n_heap_calls++;
    return __real_calloc(n, n_bytes);
}

void *__wrap_realloc(void *pointer, size_t n_bytes)
{
    n_heap_calls++;
    return __real_realloc(pointer, n_bytes);
}

void __wrap_free(void *pointer)
{
    n_heap_calls++;
    __real_free(pointer);
}

/* -------------------------------------------------------------- filter ---------- */

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* Kill on every system call but exit_group, write and `also`. */
static int close_the_door(long also)
{
#ifdef ARCH
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)also, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof code / sizeof code[0],
                                      (struct sock_filter *)(uintptr_t)code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) < 0)
        return -errno;
    return 0;
#else
    (void)also;
    return -ENOSYS;
#endif
}

/* Stdio is out of the question, for it may ask for its file, and so is _exit(): before
 * a call that never returns AddressSanitizer makes a system call of its own. */
static void end_with(int code, const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        code = 1;
    (void)syscall(SYS_exit_group, code);
}

static void call_getpid(void)
{
    if (close_the_door(SYS_exit_group) != 0)
        end_with(SKIPPED, "no seccomp filters here\n");
    (void)syscall(SYS_getpid);
    end_with(1, "getpid() got through the filter\n");
}

static void read_clocks(void)
{
    struct timespec now;

    if (close_the_door(SYS_exit_group) != 0)
        end_with(SKIPPED, "");
    for (int i = 0; i < 1000; i++) {
        if (clock_gettime(CLOCK_MONOTONIC, &now) != 0 ||
            clock_gettime(CLOCK_MONOTONIC_COARSE, &now) != 0)
            end_with(1, "the clock does not answer\n");
    }
    end_with(0, "");
}

/* ----------------------------------------------------------- fast path ---------- */

/* A worker: a rank, a reader, and what they have done. */
struct worker {
    struct kvw_client *client;
    struct kvw_cache *writer;
    struct kvw_cache *reader;
    uint64_t rows;
    uint64_t step;
    char source[CHUNK_ROWS * N_HEADS * N_ELEMS * 2];
};

#define MUST(call)                                                     \
    do {                                                               \
        if ((call) < 0) {                                              \
            (void)!write(STDERR_FILENO, #call ": ", sizeof #call + 1); \
            end_with(1, kvw_last_error());                             \
        }                                                              \
    } while (0)

/* Two copies of half a chunk into each layer but the last, which is written in place.
 */
static void write_rows(struct worker *worker)
{
    const int64_t row_bytes = N_HEADS * N_ELEMS * 2;
    const struct kvw_source source = {worker->source, row_bytes, N_ELEMS * 2};
    const struct kvw_source sources[2] = {source, source};
    const struct kvw_layer last = {N_LAYERS - 1};
    const struct kvw_layer ids = {N_LAYERS};
    struct kvw_slots slots;

    for (uint32_t layer = 0; layer + 1 < N_LAYERS; layer++) {
        MUST(kvw_update(worker->writer, 0, (struct kvw_layer){layer}, 0, CHUNK_ROWS / 2,
                        sources));
        MUST(kvw_update(worker->writer, 0, (struct kvw_layer){layer}, CHUNK_ROWS / 2,
                        CHUNK_ROWS / 2, sources));
    }
    MUST(kvw_update(worker->writer, 0, ids, 0, CHUNK_ROWS, sources));
    MUST(kvw_slots(worker->writer, 0, last, 0, CHUNK_ROWS, &slots));
    for (uint32_t p = 0; p < slots.n_planes; p++)
        for (uint32_t i = 0; i < slots.n_pieces; i++)
            for (uint32_t h = 0; h < slots.n_heads; h++)
                memset(kvw_piece_at(&slots.plane[p], &slots.piece[i], h), 1,
                       slots.piece[i].n_rows * slots.plane[p].row_bytes);
    MUST(kvw_written(worker->writer, 0, last, 0, CHUNK_ROWS));
}

static void look(struct worker *worker)
{
    static const uint32_t flags[] = {KVW_COMMITTED, KVW_STAGED, KVW_UNPINNED,
                                     KVW_STAGED | KVW_UNPINNED};
    struct kvw_view view;

    for (uint32_t layer = 0; layer <= N_LAYERS; layer++) {
        const struct kvw_layer of = {layer};
        for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
            MUST(kvw_get(worker->writer, 0, of, flags[i], &view));
            MUST(kvw_release(worker->writer, &view));
        }
        MUST(kvw_get(worker->reader, 0, of, KVW_COMMITTED, &view));
        MUST(kvw_release(worker->reader, &view));
        MUST(kvw_cut(worker->reader, 0, of, 1, KVW_UNPINNED, &view));
        MUST(kvw_release(worker->reader, &view));
        MUST(kvw_get(worker->reader, 0, of, KVW_STAGED, &view));
        MUST(kvw_release(worker->reader, &view));
        MUST(kvw_cut(worker->writer, 0, of, 0, KVW_STAGED | KVW_UNPINNED, &view));
        MUST(kvw_release(worker->writer, &view));
    }
}

static void begin(struct worker *worker)
{
    const struct kvw_item items[2] = {
        {.group = 0, .row = worker->rows, .n = CHUNK_ROWS},
        {.group = 1, .row = worker->rows, .n = CHUNK_ROWS, .has_epoch = 1, .epoch = 7}};
    struct kvw_begun begun[2];

    MUST(kvw_begin(worker->writer, 0, items, 2, begun));
    MUST(kvw_begin(worker->writer, 0, items, 2, NULL)); /* the same again */
}

/* What ranks do that read each other's rows in every pass: two updates of layer 0. */
static void exchange(struct worker *worker, uint64_t timeout_ns)
{
    const struct kvw_layer layer = {0};

    MUST(kvw_have_read(worker->writer, 0, layer, 2));
    MUST(kvw_wait_written(worker->writer, 0, 0, layer, 2, timeout_ns));
    MUST(kvw_wait_written(worker->reader, 0, KVW_ALL_RANKS, layer, 2, timeout_ns));
    MUST(kvw_wait_read(worker->writer, 0, KVW_ALL_RANKS, layer, 2, timeout_ns));
    MUST(kvw_wait_read(worker->reader, 0, 0, layer, 2, timeout_ns));
}

/* One chunk begun in vain, one committed, with every look that there is. */
static void roll(struct worker *worker)
{
    const uint64_t timeout_ns = 1000000000;

    begin(worker);
    write_rows(worker);
    MUST(kvw_abort(worker->writer, 0));
    begin(worker);
    write_rows(worker);
    exchange(worker, timeout_ns);
    look(worker);
    MUST(kvw_commit(worker->writer, 0, NULL, 0));
    worker->rows += CHUNK_ROWS;
    worker->step++;
    look(worker);
    MUST(kvw_wait_step(worker->reader, 0, 0, worker->step, timeout_ns));
    MUST(kvw_wait_rows(worker->reader, 0, KVW_ALL_RANKS, 0, worker->rows, timeout_ns));
    MUST(kvw_wait_step(worker->writer, 0, KVW_ALL_RANKS, worker->step, timeout_ns));
}

static void attach(struct worker *worker)
{
    struct kvw_spec spec;

    MUST(kvw_connect(NULL, &worker->client));
    kvw_spec_init(&spec, CACHE);
    struct kvw_spec_group *self = kvw_spec_add_group(&spec, "self", N_LAYERS, NULL);
    struct kvw_spec_group *ids = kvw_spec_add_group(&spec, "ids", 1, NULL);
    if (self == NULL || ids == NULL)
        end_with(1, "no room for groups\n");
    self->n_heads = N_HEADS;
    self->window_rows = ids->window_rows = WINDOW_ROWS;
    self->sink_rows = ids->sink_rows = 2;
    self->chunk_rows_max = ids->chunk_rows_max = CHUNK_ROWS;
    if (kvw_spec_add_plane(self, "k", KVW_BF16, N_ELEMS) == NULL ||
        kvw_spec_add_plane(self, "v", KVW_BF16, N_ELEMS) == NULL ||
        kvw_spec_add_plane(ids, "ids", KVW_U32, 1) == NULL)
        end_with(1, "no room for planes\n");
    MUST(kvw_create(worker->client, &spec, NULL, NULL));
    MUST(kvw_attach(worker->client, CACHE, 0, NULL, &worker->writer));
    MUST(kvw_attach(worker->client, CACHE, KVW_READER, NULL, &worker->reader));
}

static void run_fast_path(bool clock_is_call)
{
    struct worker worker = {0};

    attach(&worker);
    for (uint32_t i = 0; i < 2 * WINDOW_ROWS / CHUNK_ROWS; i++)
        roll(&worker); /* binds functions, maps pages */
    if (close_the_door(clock_is_call ? SYS_clock_gettime : SYS_exit_group) != 0)
        end_with(1, "the filter was refused\n");
    const unsigned long before = n_heap_calls;
    for (uint32_t i = 0; i < 3 * WINDOW_ROWS / CHUNK_ROWS; i++)
        roll(&worker);
    if (before == 0)
        end_with(1, "attaching allocated nothing: malloc is not watched\n");
    if (n_heap_calls != before)
        end_with(1, "the fast path allocated or freed memory\n");
    end_with(0, "");
}

/* ------------------------------------------------------------- parents ---------- */

/* How a child ended: its exit code, or minus the signal. */
static int outcome(pid_t pid)
{
    int status;

    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int run_filtered(void)
{
    pid_t pid = fork();
    if (pid == 0)
        call_getpid();
    int code = outcome(pid);
    if (code == SKIPPED)
        return SKIPPED;
    if (code != -SIGSYS) {
        fprintf(stderr, "a child that called getpid() ended with %d, not SIGSYS\n",
                code);
        return 1;
    }

    pid = fork();
    if (pid == 0)
        read_clocks();
    code = outcome(pid);
    if (code != 0 && code != -SIGSYS) {
        fprintf(stderr, "the child that reads clocks ended with %d\n", code);
        return 1;
    }
    if (code == -SIGSYS)
        fputs("the clock source of this machine makes clock_gettime() a system call: "
              "the filter lets it through\n",
              stderr);

    pid = fork();
    if (pid == 0)
        run_fast_path(code == -SIGSYS);
    code = outcome(pid);
    if (code < 0)
        fprintf(stderr, "the fast path %s, signal %d\n",
                code == -SIGSYS ? "made a system call" : "crashed", -code);
    return code == 0 ? 0 : 1;
}

static void wait_until_gone(uint32_t pid)
{
    struct pollfd gone = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

    if (gone.fd < 0)
        return;
    (void)poll(&gone, 1, 10000);
    close(gone.fd);
}

static int stop_daemon(struct kvw_client *client)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message status;
    struct kvw_message answer;

    int error = client_call(client, &request, &status, NULL, 0, NULL, NULL);
    request = (struct kvw_message){.type = KVW_MESSAGE_SHUTDOWN,
                                   .shutdown = {.is_forced = 1}};
    if (error == 0)
        error = client_call(client, &request, &answer, NULL, 0, NULL, NULL);
    kvw_disconnect(client);
    if (error != 0)
        return error;
    wait_until_gone(status.status_is.pid);
    wait_until_gone(status.status_is.keeper_pid);
    return 0;
}

int main(void)
{
    char folder[] = "/tmp/kvwheel-test-XXXXXX";
    char program[512];
    char socket[64];
    struct kvw_client *client;

    if (getenv("KVW_BIN") == NULL || mkdtemp(folder) == NULL)
        return 1;
    snprintf(program, sizeof program, "%s/kvwheeld", getenv("KVW_BIN"));
    snprintf(socket, sizeof socket, "%s/s", folder);
    setenv("KVWHEELD", program, 1);
    setenv("KVWHEEL_SOCKET", socket, 1);
    if (kvw_connect(NULL, &client) != 0) {
        fprintf(stderr, "no daemon: %s\n", kvw_last_error());
        return 1;
    }
    int code = run_filtered();
    if (stop_daemon(client) != 0) {
        fprintf(stderr, "stopping the daemon: %s\n", kvw_last_error());
        code = 1;
    }
    snprintf(program, sizeof program, "rm -rf %s", folder);
    return system(program) == 0 ? code : 1;
}
