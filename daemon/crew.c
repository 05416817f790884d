/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One list of jobs under one lock; a slice is done outside of it. Worker w takes the
 * ranges of the nodes w, w + n, ... A job is done when each worker has come to its end,
 * be it because it failed or was cancelled.
 */
#include "daemon/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/base/align.h"
#include "proto/base/cleanup.h"
#include "proto/cpus.h"
#include "proto/messages.h"

struct worker {
    struct crew *crew;
    uint32_t index;
    uint64_t last; /* id of the job served last */
    char cpus[sizeof((struct kvw_topology_node *)0)->cpus];
    pthread_t thread;
};

struct crew {
    pthread_mutex_t lock;
    pthread_cond_t has_work;
    int event;
    uint32_t n_workers;
    uint32_t n_jobs;
    uint64_t last_id;
    struct crew_job *jobs;
    struct crew_job *done;
    struct worker worker[CREW_MAX];
};

/* ----------------------------------------------------------------- jobs ---------- */

static struct kvw_plan *copy_plan(const struct kvw_plan *plan)
{
    const size_t n = (size_t)plan->n_layers * plan->n_ranks;
    struct kvw_plan *copy = calloc(1, sizeof *copy);

    if (copy == NULL)
        return NULL;
    memcpy(copy, plan, offsetof(struct kvw_plan, node));
    memcpy(copy->node, plan->node, n);
    memcpy(copy->why, plan->why, n);
    return copy;
}

struct crew_job *crew_job_new(int fd, const struct kvw_geometry *geometry,
                              const struct kvw_layout *layout,
                              const struct kvw_plan *plan,
                              const struct topology *topology)
{
    struct crew_job *job = calloc(1, sizeof *job);

    if (job == NULL)
        return NULL;
    job->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    job->plan = copy_plan(plan);
    if (job->fd < 0 || job->plan == NULL) {
        crew_job_free(job);
        return NULL;
    }
    job->rank = KVW_RANK_READER;
    job->geometry = *geometry;
    job->layout = *layout;
    job->n_numbers = topology->nodes.n_nodes;
    for (uint32_t i = 0; i < job->n_numbers; i++)
        job->number[i] = topology->nodes.node[i].number;
    return job;
}

void crew_job_free(struct crew_job *job)
{
    if (job == NULL)
        return;
    kvw_fd_cleanup(&job->fd);
    free(job->plan);
    free(job);
}

/* ----------------------------------------------------------------- work ---------- */

/* The next range of this worker's nodes, cut to a slice; a cut goes between huge pages.
 * @return false at the end. */
static bool next_range(const struct crew_job *job, uint32_t worker, uint32_t n_workers,
                       uint64_t begin, struct kvw_placement_range *range)
{
    const bool is_by_rank = job->rank != KVW_RANK_READER;

    while (placement_range(&job->geometry, &job->layout, job->plan, begin,
                           PAGES_SLICE_BYTES - begin % KVW_HUGE_PAGE, is_by_rank,
                           range)) {
        if (range->node % n_workers == worker &&
            (!is_by_rank || range->rank == job->rank))
            return true;
        begin = range->end;
    }
    return false;
}

/* One slice. @return false when there is nothing left for this worker. */
static bool do_slice(struct crew_job *job, uint32_t worker, uint32_t n_workers,
                     int *error, struct pages_tally *tally)
{
    struct kvw_placement_range range;

    if (load_relaxed(&job->is_cancelled) != 0)
        return false;
    const bool is_binding = job->work == PAGES_MOVE && !job->has_bound[worker];
    if (!next_range(job, worker, n_workers, job->cursor[worker], &range)) {
        job->has_bound[worker] = true;
        job->cursor[worker] = 0;
        return is_binding;
    }
    const struct pages_slice slice = {
        .fd = job->fd,
        .offset = range.begin,
        .bytes = range.end - range.begin,
        .node = range.node < job->n_numbers ? job->number[range.node] : PAGES_NO_NODE,
        .kind = job->kind,
        .can_bind = job->can_bind,
        .can_ask = job->can_ask,
        .can_move = job->can_move,
    };
    *error = pages_do(is_binding ? PAGES_BIND : job->work, &slice, tally);
    job->cursor[worker] = range.end;
    return *error == 0;
}

/* The job with the next greater id than that of the last one, of those that want this
 * worker. Under the lock. */
static struct crew_job *choose(struct worker *worker)
{
    struct crew_job *first = NULL;
    struct crew_job *next = NULL;

    for (struct crew_job *job = worker->crew->jobs; job != NULL; job = job->next) {
        if ((job->workers_left >> worker->index & 1) == 0)
            continue;
        if (first == NULL || job->id < first->id)
            first = job;
        if (job->id > worker->last && (next == NULL || job->id < next->id))
            next = job;
    }
    return next != NULL ? next : first;
}

/* Under the lock. */
static void leave(struct worker *worker, struct crew_job *job)
{
    struct crew *crew = worker->crew;
    struct crew_job **link = &crew->jobs;

    job->workers_left &= ~(1u << worker->index);
    if (job->workers_left != 0)
        return;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    job->next = crew->done;
    crew->done = job;
}

/* To the CPUs of its node. Not nicer than the loop: a worker that waits for a CPU while it
 * holds the lock of the address space has the loop wait, too. */
static void prepare(const struct worker *worker)
{
    cpu_set_t own;
    cpu_set_t cpus;

    cpus_parse(worker->cpus, &cpus);
    if (sched_getaffinity(0, sizeof own, &own) < 0)
        return;
    CPU_AND(&cpus, &cpus, &own);
    if (CPU_COUNT(&cpus) > 0)
        (void)sched_setaffinity(0, sizeof cpus, &cpus);
}

static void *work(void *context)
{
    struct worker *worker = context;
    struct crew *crew = worker->crew;
    const uint64_t one = 1;

    prepare(worker);
    (void)pthread_mutex_lock(&crew->lock);
    for (;;) {
        struct crew_job *job = choose(worker);
        if (job == NULL) {
            (void)pthread_cond_wait(&crew->has_work, &crew->lock);
            continue;
        }
        worker->last = job->id;
        (void)pthread_mutex_unlock(&crew->lock);
        struct pages_tally tally = {0};
        int error = 0;
        bool goes_on = do_slice(job, worker->index, crew->n_workers, &error, &tally);
        (void)pthread_mutex_lock(&crew->lock);
        pages_add(&job->tally, &tally);
        store_relaxed(&job->done_bytes, job->tally.n_pages * KVW_PAGE);
        if (error != 0 && job->error == 0) {
            job->error = error;
            store_relaxed(&job->is_cancelled, 1);
        }
        if (!goes_on)
            leave(worker, job);
        (void)!write(crew->event, &one, sizeof one);
    }
    return NULL;
}

/* ----------------------------------------------------------------- loop ---------- */

int crew_open(struct crew **out, const struct topology *topology)
{
    sigset_t all;
    sigset_t before;
    struct crew *crew = calloc(1, sizeof *crew);
    int error = 0;

    if (crew == NULL)
        return -ENOMEM;
    crew->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (crew->event < 0) {
        error = -errno;
        free(crew);
        return error;
    }
    (void)pthread_mutex_init(&crew->lock, NULL);
    (void)pthread_cond_init(&crew->has_work, NULL);
    const uint32_t n_wanted = (uint32_t)min_u64(topology->nodes.n_nodes, CREW_MAX);
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_mutex_lock(&crew->lock); /* until n_workers is known */
    for (uint32_t w = 0; w < n_wanted && error == 0; w++) {
        struct worker *worker = &crew->worker[w];
        *worker = (struct worker){.crew = crew, .index = w};
        if (topology->is_this_system && topology->nodes.n_nodes <= CREW_MAX)
            memcpy(worker->cpus, topology->nodes.node[w].cpus, sizeof worker->cpus);
        error = -pthread_create(&worker->thread, NULL, work, worker);
        crew->n_workers += error == 0;
    }
    (void)pthread_mutex_unlock(&crew->lock);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    /* With fewer threads than nodes each has more nodes. Without any it is never freed:
     * nothing of it is in use. */
    if (crew->n_workers == 0) {
        close(crew->event);
        free(crew);
        return error;
    }
    *out = crew;
    return 0;
}

int crew_descriptor(const struct crew *crew)
{
    return crew->event;
}

void crew_begin(struct crew *crew, struct crew_job *job)
{
    (void)pthread_mutex_lock(&crew->lock);
    job->id = ++crew->last_id;
    job->workers_left = (1u << crew->n_workers) - 1;
    job->next = crew->jobs;
    crew->jobs = job;
    crew->n_jobs++;
    (void)pthread_cond_broadcast(&crew->has_work);
    (void)pthread_mutex_unlock(&crew->lock);
}

uint32_t crew_jobs(const struct crew *crew)
{
    return crew == NULL ? 0 : crew->n_jobs;
}

void crew_cancel(struct crew *crew, uint64_t cache, uint64_t id)
{
    if (crew == NULL)
        return;
    (void)pthread_mutex_lock(&crew->lock);
    for (struct crew_job *job = crew->jobs; job != NULL; job = job->next) {
        if ((cache == 0 || job->cache == cache) && (id == 0 || job->id == id))
            store_relaxed(&job->is_cancelled, 1);
    }
    (void)pthread_mutex_unlock(&crew->lock);
}

const struct crew_job *crew_find(struct crew *crew, uint64_t id)
{
    struct crew_job *job;

    (void)pthread_mutex_lock(&crew->lock);
    for (job = crew->jobs; job != NULL && job->id != id; job = job->next)
        ;
    (void)pthread_mutex_unlock(&crew->lock);
    return job;
}

struct crew_job *crew_take(struct crew *crew)
{
    uint64_t n;

    (void)!read(crew->event, &n, sizeof n);
    (void)pthread_mutex_lock(&crew->lock);
    struct crew_job *job = crew->done;
    if (job != NULL) {
        crew->done = job->next;
        crew->n_jobs--;
    }
    (void)pthread_mutex_unlock(&crew->lock);
    return job;
}
