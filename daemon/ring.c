/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only file that knows liburing. Linked statically, for liburing.so 2.3 lacks
 * symbols that its header declares (axboe/liburing issue 773).
 *
 * Single-shot receive instead of multishot: no buffer ring that can run dry, and each
 * connection has at most one packet in flight, which is its bound.
 */
#include "daemon/ring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"

#define SUBMISSIONS 256u
#define COMPLETIONS 16384u /* two per client and one per attachment, and room */

struct ring {
    struct io_uring uring;
};

static uint64_t pack(struct ring_tag tag)
{
    return (uint64_t)tag.kind << 56 |
           (uint64_t)(tag.generation & RING_GENERATION_MASK) << 32 | tag.slot;
}

static struct ring_tag unpack(uint64_t word)
{
    return (struct ring_tag){.slot = (uint32_t)word,
                             .generation =
                                 (uint32_t)(word >> 32) & RING_GENERATION_MASK,
                             .kind = (enum ring_kind)(word >> 56)};
}

static int check_operations(struct ring *ring, struct kvw_refusal *refusal)
{
    static const struct {
        int code;
        const char *name;
    } needed[] = {
        {IORING_OP_RECVMSG, "recvmsg"},     {IORING_OP_SENDMSG, "sendmsg"},
        {IORING_OP_POLL_ADD, "poll"},       {IORING_OP_POLL_REMOVE, "poll_remove"},
        {IORING_OP_FALLOCATE, "fallocate"},
    };
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring->uring);

    if (probe == NULL)
        return refuse(
            refusal, -ENOSYS, 0, 0,
            "io_uring: which operations there are cannot be told: there is no "
            "memory, or io_uring_register is forbidden, or the kernel is older "
            "than Linux 5.11");
    int error = 0;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0] && error == 0; i++) {
        if (!io_uring_opcode_supported(probe, needed[i].code))
            error =
                refuse(refusal, -ENOSYS, 0, 0,
                       "io_uring: this kernel lacks the operation %s; Linux 5.11 is "
                       "needed",
                       needed[i].name);
    }
    io_uring_free_probe(probe);
    if (error == 0 && (ring->uring.features & IORING_FEAT_EXT_ARG) == 0)
        error =
            refuse(refusal, -ENOSYS, 0, 0,
                   "io_uring: this kernel lacks waits with a timeout; Linux 5.11 is "
                   "needed");
    return error;
}

static int refuse_setup(int error, struct kvw_refusal *refusal)
{
    if (error == -EPERM || error == -EACCES)
        return refuse(refusal, error, 0, 0,
                      "io_uring is forbidden here (%s): look at sysctl "
                      "kernel.io_uring_disabled, and in a container at its seccomp "
                      "profile, which must allow io_uring_setup, io_uring_enter and "
                      "io_uring_register",
                      strerrordesc_np(-error));
    return refuse(refusal, error, 0, 0, "io_uring cannot be set up: %s",
                  strerrordesc_np(-error));
}

int ring_open(struct ring **out, struct kvw_refusal *refusal)
{
    KVW_CLEANUP(kvw_free_cleanup)
    struct ring *ring = calloc(1, sizeof *ring);
    struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                                              IORING_SETUP_SINGLE_ISSUER |
                                              IORING_SETUP_DEFER_TASKRUN,
                                     .cq_entries = COMPLETIONS};

    if (ring == NULL)
        return refuse(refusal, -ENOMEM, sizeof *ring, 0,
                      "no memory for the event loop");
    int error = io_uring_queue_init_params(SUBMISSIONS, &ring->uring, &params);
    if (error == -EINVAL) {
        /* Before Linux 6.1; those two are a matter of speed. */
        params =
            (struct io_uring_params){.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
                                     .cq_entries = COMPLETIONS};
        error = io_uring_queue_init_params(SUBMISSIONS, &ring->uring, &params);
    }
    if (error != 0)
        return refuse_setup(error, refusal);
    error = check_operations(ring, refusal);
    if (error != 0) {
        io_uring_queue_exit(&ring->uring);
        return error;
    }
    *out = take_pointer(&ring);
    return 0;
}

struct ring *ring_close(struct ring *ring)
{
    if (ring != NULL)
        io_uring_queue_exit(&ring->uring);
    free(ring);
    return NULL;
}

/* A free submission entry. When all are taken they are submitted, which frees them. */
static struct io_uring_sqe *entry(struct ring *ring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);

    /* EBUSY: completions overflowed; a later submission takes them in. */
    for (int i = 0; sqe == NULL && i < 1000; i++) {
        (void)io_uring_submit_and_get_events(&ring->uring);
        sqe = io_uring_get_sqe(&ring->uring);
    }
    KVW_CHECK(sqe != NULL);
    return sqe;
}

void ring_peek(struct ring *ring, int socket, struct msghdr *head, struct ring_tag tag)
{
    struct io_uring_sqe *sqe = entry(ring);

    io_uring_prep_recvmsg(sqe, socket, head, MSG_PEEK);
    io_uring_sqe_set_data64(sqe, pack(tag));
}

void ring_send(struct ring *ring, int socket, const struct msghdr *head,
               struct ring_tag tag)
{
    struct io_uring_sqe *sqe = entry(ring);

    io_uring_prep_sendmsg(sqe, socket, head, MSG_NOSIGNAL);
    io_uring_sqe_set_data64(sqe, pack(tag));
}

void ring_poll(struct ring *ring, int fd, short events, struct ring_tag tag)
{
    struct io_uring_sqe *sqe = entry(ring);

    io_uring_prep_poll_add(sqe, fd, (unsigned)events);
    io_uring_sqe_set_data64(sqe, pack(tag));
}

void ring_poll_cancel(struct ring *ring, struct ring_tag tag)
{
    struct io_uring_sqe *sqe = entry(ring);

    io_uring_prep_poll_remove(sqe, pack(tag));
    io_uring_sqe_set_data64(sqe, pack((struct ring_tag){.kind = RING_NONE}));
}

void ring_allocate(struct ring *ring, int fd, uint64_t offset, uint64_t bytes,
                   struct ring_tag tag)
{
    struct io_uring_sqe *sqe = entry(ring);

    io_uring_prep_fallocate(sqe, fd, 0, (off_t)offset, (off_t)bytes);
    io_uring_sqe_set_data64(sqe, pack(tag));
}

uint32_t ring_wait(struct ring *ring, uint64_t timeout_ns, struct ring_event *events,
                   uint32_t n_max)
{
    struct __kernel_timespec timeout = {.tv_sec = (int64_t)(timeout_ns / 1000000000ull),
                                        .tv_nsec =
                                            (int64_t)(timeout_ns % 1000000000ull)};
    struct io_uring_cqe *cqe;
    unsigned head;
    uint32_t n_events = 0;

    /* Where completions wait already, the waiting call would not look for others: with
     * enough of them, connections and deaths would never be seen. */
    int result = io_uring_cq_ready(&ring->uring) > 0 || timeout_ns == 0
                     ? io_uring_submit_and_get_events(&ring->uring)
                     : io_uring_submit_and_wait_timeout(
                           &ring->uring, &cqe, 1,
                           timeout_ns == UINT64_MAX ? NULL : &timeout, NULL);
    /* Anything else would be a loop that never waits. */
    KVW_CHECK(result >= 0 || result == -ETIME || result == -EINTR ||
              result == -EAGAIN || result == -EBUSY);
    io_uring_for_each_cqe(&ring->uring, head, cqe)
    {
        if (n_events == n_max)
            break;
        events[n_events++] =
            (struct ring_event){.tag = unpack(cqe->user_data), .result = cqe->res};
    }
    io_uring_cq_advance(&ring->uring, n_events);
    return n_events;
}
