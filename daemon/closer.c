/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs go through a pipe: its size bounds them, and it is what the thread sleeps on. The
 * kernel lets a close that lingers sleep interruptibly: a timer's signal, once a
 * millisecond while a close goes on, ends it.
 */
#include "daemon/closer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/atomic.h"
#include "proto/base/cleanup.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define PIPE_BYTES (1 << 20)
#define PATIENCE_NS 1000000
#define DRAIN_MAX 1000u /* packets; a socket's queue has room for some hundred */

struct job {
    int fd;
    uint64_t bytes;
};

struct worker {
    enum closer_kind kind;
    int pipe[2];
    uint32_t n_taken; /* by the loop alone, as the bytes */
    uint64_t taken_bytes;
    shared_u32 n_done; /* by the thread alone */
    shared_u64 done_bytes;
    pthread_t thread;
};

struct closer {
    struct worker worker[N_CLOSERS];
};

static void on_signal(int number)
{
    (void)number;
}

static bool make_timer(timer_t *timer)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN};
    sigset_t own;

    event.sigev_notify_thread_id = gettid();
    sigemptyset(&own);
    sigaddset(&own, SIGRTMIN);
    (void)pthread_sigmask(SIG_UNBLOCK, &own, NULL);
    return timer_create(CLOCK_MONOTONIC, &event, timer) == 0;
}

/* Packets that nobody will read, and with them their descriptors. A socket that is closed
 * with something unread would take the last answer back from its peer. */
static void drain(int socket)
{
    char byte;

    for (uint32_t i = 0; i < DRAIN_MAX; i++) {
        if (recv(socket, &byte, sizeof byte, MSG_DONTWAIT | MSG_TRUNC) <= 0)
            return;
    }
}

static void *work(void *context)
{
    const struct itimerspec armed = {.it_interval = {.tv_nsec = PATIENCE_NS},
                                     .it_value = {.tv_nsec = PATIENCE_NS}};
    const struct itimerspec disarmed = {0};
    struct worker *worker = context;
    timer_t timer;
    struct job job;

    bool has_timer = make_timer(&timer);
    for (;;) {
        if (read(worker->pipe[0], &job, sizeof job) != sizeof job)
            continue; /* interrupted: the pipe is never closed */
        if (has_timer)
            (void)timer_settime(timer, 0, &armed, NULL);
        if (worker->kind == CLOSER_SOCKETS)
            drain(job.fd);
        close(job.fd);
        if (has_timer)
            (void)timer_settime(timer, 0, &disarmed, NULL);
        store_relaxed(&worker->done_bytes,
                      load_relaxed(&worker->done_bytes) + job.bytes);
        store_relaxed(&worker->n_done, load_relaxed(&worker->n_done) + 1);
    }
    return NULL;
}

static int start(struct worker *worker)
{
    sigset_t all;
    sigset_t before;

    if (pipe2(worker->pipe, O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(worker->pipe[1], F_SETPIPE_SZ, PIPE_BYTES);
    (void)fcntl(worker->pipe[1], F_SETFL, O_NONBLOCK);
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = -pthread_create(&worker->thread, NULL, work, worker);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int closer_open(struct closer **out)
{
    const struct sigaction action = {.sa_handler = on_signal};
    struct closer *closer = calloc(1, sizeof *closer);
    int error = 0;

    if (closer == NULL)
        return -ENOMEM;
    (void)sigaction(SIGRTMIN, &action, NULL);
    *out = closer; /* its threads may have it: it is never freed */
    for (uint32_t k = 0; k < N_CLOSERS && error == 0; k++) {
        closer->worker[k].kind = (enum closer_kind)k;
        error = start(&closer->worker[k]);
    }
    return error;
}

void closer_take(struct closer *closer, enum closer_kind kind, int *fd, uint64_t bytes)
{
    struct worker *worker = &closer->worker[kind];
    const struct job job = {.fd = *fd, .bytes = bytes};

    if (*fd < 0)
        return;
    if (write(worker->pipe[1], &job, sizeof job) == sizeof job) {
        worker->n_taken++;
        worker->taken_bytes += bytes;
    } else { /* 65536 wait already: more than there are descriptors */
        close(*fd);
    }
    *fd = -1;
}

uint32_t closer_waiting(struct closer *closer, enum closer_kind kind)
{
    const struct worker *worker = &closer->worker[kind];

    return worker->n_taken - load_relaxed(&worker->n_done);
}

uint64_t closer_bytes(struct closer *closer)
{
    const struct worker *worker = &closer->worker[CLOSER_MEMORY];

    return worker->taken_bytes - load_relaxed(&worker->done_bytes);
}
