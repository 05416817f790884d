/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemons and keepers that die: stopped at every system call, at its entry and at its
 * exit, and killed there.
 *
 * 1. The daemon, under every request, and while it hands everything to a new keeper.
 * 2. The keeper, while it is given something or told to drop it.
 * 3. A new daemon, from its first instruction on, while it adopts what the dead one left.
 *
 * While the victim is stopped, a worker rolls on. Afterwards the request has happened or
 * has not, and making it again does; the worker's next request finds the next daemon;
 * caches, bytes, attachments, seats, descriptors, mappings and memfds are what they were.
 *
 *   --every N    only at every N-th stop
 *   --only WORD  only under requests whose name has that word
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/wire.h"
#include "tests/death/actor.h"
#include "tests/death/host.h"
#include "tests/death/requests.h"
#include "tests/death/rows.h"
#include "tests/death/scene.h"
#include "tests/death/stalk.h"

#define CACHE "rolling"

/* A keeper starts five daemons at once and the sixth after a pause; so does a daemon with
 * keepers. */
enum { DEATHS_MAX = 3 };

static struct host host;
static struct actor worker;
static uint64_t every = 1;
static const char *only = "";
static uint32_t n_daemon_deaths; /* that the keeper of now has seen */
static uint32_t n_keeper_deaths; /* that the daemon of now has seen */
static uint64_t n_kills;

/* Seconds since the program began. */
static double now_s(void)
{
    static struct timespec begun;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (begun.tv_sec == 0)
        begun = now;
    return (double)(now.tv_sec - begun.tv_sec) +
           (double)(now.tv_nsec - begun.tv_nsec) / 1e9;
}

/* ------------------------------------------------------- players ---------- */

/* Makes its cache and attaches (a), rolls (r), makes a request (s), detaches, which takes
 * the cache along (d). */
static char work(void *context, char order)
{
    static struct kvw_client *client;
    static struct kvw_cache *cache;
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message answer;
    struct kvw_spec spec;
    const char *wrong;
    int error = 0;

    (void)context;
    switch (order) {
    case 'a':
        rows_spec(&spec, CACHE, 1, KVW_LIFETIME_JOB);
        error = client == NULL ? kvw_connect(host.socket, &client) : 0;
        if (error == 0)
            error = kvw_create(client, &spec, NULL, NULL);
        if (error == 0)
            error = kvw_attach(client, CACHE, 0, NULL, &cache);
        break;
    case 'd':
        kvw_detach(cache);
        break;
    case 'r':
        error = rows_roll(cache);
        break;
    case 's':
        error = client_call(client, &request, &answer, NULL, 0, NULL, NULL);
        break;
    default:
        kvw_disconnect(client);
        return 0;
    }
    wrong = error != 0 ? kvw_last_error() : order == 'r' ? rows_check(cache) : NULL;
    if (wrong != NULL)
        fprintf(stderr, "the worker, order %c: %s\n", order, wrong);
    return wrong != NULL;
}

/* Prepares (p), asks and stops itself (c), settles (s). */
static char ask(void *context, char order)
{
    struct asker *asker = context;

    switch (order) {
    case 'p':
        OK(kvw_connect(host.socket, &asker->client));
        if (asker->request->prepare != NULL)
            asker->request->prepare(asker);
        break;
    case 'c':
        asker->error = asker->request->call(asker);
        (void)raise(SIGSTOP);
        break;
    case 's':
        asker->request->settle(asker);
        break;
    default:
        kvw_disconnect(asker->client);
        break;
    }
    return test_failures() > 0;
}

/* --------------------------------------------------------- death ---------- */

/* Whom to kill, stopped, and whom else we trace; 0 = nobody. */
struct prey {
    pid_t victim;
    pid_t parent;
};

static bool seize(enum victim who, bool is_newborn, struct prey *prey)
{
    *prey = (struct prey){.victim = who == VICTIM_KEEPER ? host.keeper : host.daemon};
    if (!is_newborn)
        return stalk_seize(prey->victim);
    prey->parent = host.keeper;
    prey->victim = stalk_birth(host.keeper, host.daemon);
    n_daemon_deaths++;
    return prey->victim > 0;
}

/* Whether somebody listens, and still does after the moment by which a listener may
 * outlive its daemon. */
static bool is_listening(void)
{
    for (int tries = 0; tries < 50; tries++) {
        int fd = -1;
        if (wire_connect(host.socket, &fd) != 0)
            return false;
        close(fd);
        (void)poll(NULL, 0, 1);
    }
    return true;
}

/* Both were dead. Where the new keeper had not got the listener yet, nobody is there to
 * start the next daemon. Before the worker has made a request, its rank may be unknown,
 * but it is nobody else's. */
static void bring_up(void)
{
    struct holdings ignored;
    struct kvw_cache *cache;
    const pid_t old = host.daemon;
    bool is_up = false;

    for (int tries = 0; tries < 5 && !is_up; tries++) {
        if (!is_listening())
            is_up = host_start_again(&host) == 0;
        else
            host_look(&host, CACHE, &ignored);
        is_up = is_up || host.daemon != old;
    }
    EXPECT(is_up, "no daemon: %s", kvw_last_error());
    int error = kvw_attach(host.client, CACHE, 0, NULL, &cache);
    EXPECT(error == -EBUSY || error == -ENOENT,
           "the worker's rank is given away: %d, %s", error, kvw_last_error());
}

/* @return false when the request was over before. */
static bool kill_at(struct actor *asker, enum victim who, const struct request *request,
                    uint64_t at)
{
    struct prey prey;

    if (!seize(who, request == &request_adoption, &prey) || !actor_order(asker, 'c')) {
        test_fail(__FILE__, __LINE__, "the victim cannot be traced");
        return false;
    }
    const enum stalk_end end = stalk_to(prey.victim, asker->pid, at);
    EXPECT(end != STALK_LOST, "the victim or the asker ended");
    if (end == STALK_AT_STOP) {
        EXPECT(actor_ask(&worker, 'r') == 0, "the worker does not roll");
        stalk_kill(prey.victim);
        n_daemon_deaths += who == VICTIM_DAEMON;
        n_keeper_deaths += who == VICTIM_KEEPER;
        n_kills++;
    } else {
        stalk_let_go(prey.victim);
    }
    if (prey.parent != 0)
        stalk_let_go(prey.parent);
    if (end == STALK_AT_STOP && request == &request_new_keeper)
        bring_up();
    if (end == STALK_AT_STOP || end == STALK_LOST)
        EXPECT(stalk_await(asker->pid), "the asker does not return");
    (void)kill(asker->pid, SIGCONT);
    EXPECT(actor_answer(asker) == 0, "the asker failed");
    return end == STALK_AT_STOP;
}

/* Those who have seen too many deaths make room for others. */
static void renew(const struct holdings *start)
{
    if (n_daemon_deaths >= DEATHS_MAX) {
        EXPECT(host_renew_keeper(&host), "no new keeper");
        n_daemon_deaths = 0;
        n_keeper_deaths++;
        EXPECT(host_returns_to(&host, CACHE, start), "not all was handed over");
    }
    if (n_keeper_deaths >= DEATHS_MAX) {
        (void)kill(host.daemon, SIGKILL);
        n_keeper_deaths = 0;
        n_daemon_deaths++;
        EXPECT(actor_ask(&worker, 's') == 0, "the worker finds no daemon");
        EXPECT(host_returns_to(&host, CACHE, start), "not all was adopted");
    }
}

static bool die_at(enum victim who, const struct request *request, uint64_t at,
                   const struct holdings *start)
{
    struct asker asker = {.request = request, .socket = host.socket};
    struct actor actor;

    test_place(request->name,
               who == VICTIM_KEEPER ? "the keeper dies there" : "the daemon dies there",
               at);
    /* A cache that was offered once is not given away for another reason. */
    if (request == &request_new_keeper)
        EXPECT(actor_ask(&worker, 'd') == 0 && actor_ask(&worker, 'a') == 0,
               "the worker does not begin anew");
    if (!actor_start(&actor, ask, &asker) || actor_ask(&actor, 'p') != 0) {
        test_fail(__FILE__, __LINE__, "nobody asks");
        return false;
    }
    const bool is_killed = kill_at(&actor, who, request, at);
    EXPECT(actor_ask(&actor, 's') == 0, "afterwards it is not right");
    EXPECT(actor_ask(&worker, 's') == 0, "the worker finds no daemon");
    EXPECT(actor_ask(&worker, 'r') == 0, "the worker does not roll");
    EXPECT(actor_end(&actor), "the asker failed");
    EXPECT(host_returns_to(&host, CACHE, start), "something is left");
    renew(start);
    return is_killed;
}

static void die_at_every(enum victim who, const struct request *request,
                         const struct holdings *start)
{
    const uint64_t before = n_kills;
    /* What is dangerous about a hand-over are a few stops among many. */
    const uint64_t stride = request == &request_new_keeper ? (every + 3) / 4 : every;
    uint64_t at = 0;

    if (strstr(request->name, only) == NULL)
        return;
    while (die_at(who, request, at, start) && test_failures() < 5)
        at += stride;
    printf("[%5.1f s] %s, the %s dies: %" PRIu64 " kills at %" PRIu64 " stops\n",
           now_s(), request->name, who == VICTIM_KEEPER ? "keeper" : "daemon",
           n_kills - before, at);
    fflush(stdout);
}

/* ---------------------------------------------------------- main ---------- */

static bool set_up(struct holdings *start)
{
    /* The daemon and keepers that lose their parents become our children: who traces
     * may only trace its own, in some places. */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (host_start(&host) != 0 || requests_create(host.client) != 0 ||
        !actor_start(&worker, work, NULL) || actor_ask(&worker, 'a') != 0) {
        fprintf(stderr, "no daemon, cache or worker: %s\n", kvw_last_error());
        return false;
    }
    host.worker = worker.pid;
    for (int i = 0; i < 3 * ROWS_WINDOW; i++)
        OK(actor_ask(&worker, 'r'));
    host_look(&host, CACHE, start);
    return true;
}

static int read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--every") == 0 && i + 1 < argc)
            every = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else
            every = 0;
        if (every == 0) {
            fprintf(stderr, "usage: %s [--every N] [--only WORD]\n", argv[0]);
            return -1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct holdings start;

    if (read_options(argc, argv) != 0)
        return 2;
    (void)now_s();
    if (!set_up(&start))
        return 1;
    for (uint32_t i = 0; i < n_requests; i++)
        die_at_every(VICTIM_DAEMON, &requests[i], &start);
    die_at_every(VICTIM_DAEMON, &request_new_keeper, &start);
    die_at_every(VICTIM_DAEMON, &request_adoption, &start);
    for (uint32_t i = 0; i < n_requests; i++)
        if ((requests[i].victims & VICTIM_KEEPER) != 0)
            die_at_every(VICTIM_KEEPER, &requests[i], &start);
    EXPECT(actor_end(&worker), "the worker failed");
    EXPECT(host_stop(&host), "the daemon or its keeper did not end");
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
    EXPECT(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "a process is left");
    printf("in all %" PRIu64 " deaths of daemons and keepers, %u failures, %.1f s\n",
           n_kills, test_failures(), now_s());
    return test_failures() == 0 ? 0 : 1;
}
