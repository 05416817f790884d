/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaching to a large and to a small cache; a reader stays attached to each, so that
 * they live on. The floor is what any such daemon has to do: one message to another
 * process and its answer with three descriptors, over SEQPACKET, and three mappings of
 * the same sizes. Nothing is read or written through the mappings in either.
 */
#include "bench/local.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CYCLES_PER_ROUND 4
#define N_SIZES 2
#define N_SEGMENTS 3

/* Bytes of rows; the smaller cache first. */
static const uint64_t sizes_bytes[N_SIZES] = {16ull << 20, 1ull << 30};

/* ---------------------------------------------------- the other process ---------- */

struct echo {
    pid_t pid;
    int socket;
};

static int send_fds(int socket, const int *fds, uint32_t n_fds)
{
    char byte = 0;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(N_SEGMENTS * sizeof(int))];
    } control = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE(n_fds * sizeof(int))};

    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
    memcpy(CMSG_DATA(&control.header), fds, n_fds * sizeof(int));
    return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int receive_fds(int socket, int *fds, uint32_t n_fds)
{
    char byte;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(N_SEGMENTS * sizeof(int))];
    } control;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};

    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
        return -EPIPE;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_len != CMSG_LEN(n_fds * sizeof(int)))
        return -EPROTO;
    memcpy(fds, CMSG_DATA(header), n_fds * sizeof(int));
    return 0;
}

/* Holes cost a mapping nothing and take no memory. */
static int make_segments(int fds[N_SIZES][N_SEGMENTS])
{
    for (uint32_t i = 0; i < N_SIZES; i++) {
        const uint64_t n_bytes[N_SEGMENTS] = {64 << 10, 1 << 20, sizes_bytes[i]};
        for (uint32_t j = 0; j < N_SEGMENTS; j++) {
            fds[i][j] = memfd_create("bench", MFD_CLOEXEC);
            if (fds[i][j] < 0 || ftruncate(fds[i][j], (off_t)n_bytes[j]) < 0)
                return -errno;
        }
    }
    return 0;
}

static _Noreturn void answer(int socket, pid_t parent)
{
    int fds[N_SIZES][N_SEGMENTS];
    uint8_t wanted;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent ||
        make_segments(fds) != 0)
        _exit(1);
    while (recv(socket, &wanted, 1, 0) == 1 && wanted < N_SIZES) {
        if (send_fds(socket, fds[wanted], N_SEGMENTS) != 0)
            break;
    }
    _exit(0);
}

struct echo *echo_new(void)
{
    int pair[2];
    const pid_t parent = getpid();

    struct echo *echo = calloc(1, sizeof *echo);
    if (echo == NULL ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        free(echo);
        return NULL;
    }
    echo->pid = fork();
    if (echo->pid == 0) {
        close(pair[0]);
        answer(pair[1], parent);
    }
    close(pair[1]);
    echo->socket = pair[0];
    return echo->pid < 0 ? echo_free(echo) : echo;
}

struct echo *echo_free(struct echo *echo)
{
    if (echo == NULL)
        return NULL;
    close(echo->socket);
    if (echo->pid > 0)
        (void)waitpid(echo->pid, NULL, 0);
    free(echo);
    return NULL;
}

/* --------------------------------------------------------- what is timed --------- */

struct attaching {
    struct kvw_client *client;
    struct echo *echo;
    uint8_t size; /* index of sizes_bytes */
    char name[64];
    struct kvw_cache *keeper; /* a reader */
};

static int time_cycles(const struct attaching *attaching, bool is_detach,
                       struct bench_samples *samples)
{
    for (int i = 0; i < CYCLES_PER_ROUND; i++) {
        struct kvw_cache *cache;
        uint64_t begun = bench_now_ns();
        int error = kvw_attach(attaching->client, attaching->name, 0, NULL, &cache);
        uint64_t attached = bench_now_ns();
        if (error != 0)
            return error;
        kvw_detach(cache);
        uint64_t ended = bench_now_ns();
        bench_add(samples, is_detach ? ended - attached : attached - begun, 1);
    }
    return 0;
}

static int time_attach(void *context, struct bench_samples *samples)
{
    return time_cycles(context, false, samples);
}

static int time_detach(void *context, struct bench_samples *samples)
{
    return time_cycles(context, true, samples);
}

static int map_segments(const struct attaching *attaching, void *mapped[N_SEGMENTS])
{
    const uint64_t n_bytes[N_SEGMENTS] = {64 << 10, 1 << 20,
                                          sizes_bytes[attaching->size]};
    int fds[N_SEGMENTS];

    if (send(attaching->echo->socket, &attaching->size, 1, MSG_NOSIGNAL) != 1)
        return -EPIPE;
    int error = receive_fds(attaching->echo->socket, fds, N_SEGMENTS);
    for (uint32_t i = 0; i < N_SEGMENTS && error == 0; i++) {
        mapped[i] =
            mmap(NULL, n_bytes[i], PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
        if (mapped[i] == MAP_FAILED)
            error = -errno;
        close(fds[i]);
    }
    return error;
}

static int time_floor(void *context, struct bench_samples *samples)
{
    const struct attaching *attaching = context;
    void *mapped[N_SEGMENTS];

    for (int i = 0; i < CYCLES_PER_ROUND; i++) {
        uint64_t begun = bench_now_ns();
        int error = map_segments(attaching, mapped);
        bench_add(samples, bench_now_ns() - begun, 1);
        if (error != 0)
            return error;
        (void)munmap(mapped[0], 64 << 10);
        (void)munmap(mapped[1], 1 << 20);
        (void)munmap(mapped[2], sizes_bytes[attaching->size]);
    }
    return 0;
}

/* ----------------------------------------------------------------- the part ------- */

/* A video model's cache of the wanted size: 16 layers, 16 heads. */
static int open_cache(struct attaching *attaching)
{
    const uint32_t layers = 16;
    const uint32_t heads = 16;
    const uint64_t row_bytes = layers * heads * LOCAL_HEAD_DIM * 2 * 2;
    struct kvw_spec spec;

    (void)snprintf(attaching->name, sizeof attaching->name, "bench-attach-%ld-%u",
                   (long)getpid(), attaching->size);
    kvw_spec_init(&spec, attaching->name);
    struct kvw_spec_group *group = kvw_spec_add_group(&spec, "self", layers, NULL);
    if (group == NULL)
        return -EINVAL;
    group->n_heads = heads;
    group->chunk_rows_max = sizes_bytes[attaching->size] / row_bytes / 4;
    group->window_rows = 3 * group->chunk_rows_max;
    if (kvw_spec_add_plane(group, "k", KVW_BF16, LOCAL_HEAD_DIM) == NULL ||
        kvw_spec_add_plane(group, "v", KVW_BF16, LOCAL_HEAD_DIM) == NULL)
        return -EINVAL;
    int error = kvw_create(attaching->client, &spec, NULL, NULL);
    if (error < 0)
        return error;
    return kvw_attach(attaching->client, attaching->name, KVW_READER, NULL,
                      &attaching->keeper);
}

static int compare(struct bench *bench, struct attaching *small,
                   struct attaching *large)
{
    const struct bench_variant variants[] = {
        {.name = "attach, 1 GiB",
         .floor = {"attach, 16 MiB", "message and mappings, 1 GiB"},
         .each = time_attach,
         .context = large},
        {.name = "attach, 16 MiB",
         .floor = {"message and mappings, 16 MiB"},
         .each = time_attach,
         .context = small},
        {.name = "detach, 1 GiB",
         .floor = {"detach, 16 MiB"},
         .each = time_detach,
         .context = large},
        {.name = "detach, 16 MiB", .each = time_detach, .context = small},
        {.name = "message and mappings, 1 GiB", .each = time_floor, .context = large},
        {.name = "message and mappings, 16 MiB", .each = time_floor, .context = small},
    };

    return bench_compare(bench, "attach as a rank", variants,
                         sizeof variants / sizeof variants[0]);
}

int local_attach(struct bench *bench, struct kvw_client *client, struct echo *echo)
{
    struct attaching small = {.client = client, .echo = echo, .size = 0};
    struct attaching large = {.client = client, .echo = echo, .size = 1};

    int error = open_cache(&small);
    if (error == 0)
        error = open_cache(&large);
    if (error == 0)
        error = compare(bench, &small, &large);
    kvw_detach(large.keeper); /* the last attachments: the caches go with them */
    kvw_detach(small.keeper);
    return error;
}
