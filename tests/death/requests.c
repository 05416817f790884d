/* SPDX-License-Identifier: Apache-2.0 */
/* See requests.h. */
#include "tests/death/requests.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/death/rows.h"
#include "tests/death/scene.h"

#define OTHER "made-and-removed"

static int create(struct kvw_client *client, const char *name,
                  enum kvw_lifetime lifetime)
{
    struct kvw_spec spec;

    rows_spec(&spec, name, 1, lifetime);
    return kvw_create(client, &spec, NULL, NULL);
}

int requests_create(struct kvw_client *client)
{
    return create(client, REQUESTS_CACHE, KVW_LIFETIME_KEEP);
}

static int ask_status(struct asker *asker, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};

    return client_call(asker->client, &request, answer, NULL, 0, NULL, NULL);
}

/* -------------------------------------------------------- create ---------- */

static int call_create(struct asker *asker)
{
    return create(asker->client, OTHER, KVW_LIFETIME_KEEP);
}

static void settle_create(struct asker *asker)
{
    EXPECT(asker->error >= 0, "create: %d, %s", asker->error, kvw_last_error());
    int again = create(asker->client, OTHER, KVW_LIFETIME_KEEP);
    EXPECT(again == 1, "create again: %d, %s", again, kvw_last_error());
    OK(kvw_attach(asker->client, OTHER, 0, NULL, &asker->cache));
    OK(rows_roll(asker->cache));
    kvw_detach(asker->cache);
    OK(kvw_remove(asker->client, OTHER, 0));
}

/* ------------------------------------------------ attach, detach ---------- */

static int call_attach(struct asker *asker)
{
    return kvw_attach(asker->client, REQUESTS_CACHE, 0, NULL, &asker->cache);
}

static int call_attach_reader(struct asker *asker)
{
    return kvw_attach(asker->client, REQUESTS_CACHE, KVW_READER, NULL, &asker->cache);
}

static void roll_and_detach(struct asker *asker)
{
    if (kvw_cache_rank(asker->cache) != KVW_READER)
        OK(rows_roll(asker->cache));
    const char *wrong = rows_check(asker->cache);
    EXPECT(wrong == NULL, "%s", wrong);
    kvw_detach(asker->cache);
}

static void settle_attach(struct asker *asker)
{
    EXPECT(asker->error == 0, "attach: %d, %s", asker->error, kvw_last_error());
    if (asker->error == 0)
        roll_and_detach(asker);
}

static void prepare_attached(struct asker *asker)
{
    OK(call_attach(asker));
}

static int call_detach(struct asker *asker)
{
    kvw_detach(asker->cache);
    return 0;
}

static void settle_detach(struct asker *asker)
{
    OK(call_attach(asker));
    roll_and_detach(asker);
}

/* ---------------------------------------------------- remove, gc ---------- */

static void prepare_made(struct asker *asker)
{
    OK(create(asker->client, OTHER, KVW_LIFETIME_JOB));
}

static void prepare_made_and_attached(struct asker *asker)
{
    prepare_made(asker);
    OK(kvw_attach(asker->client, OTHER, 0, NULL, &asker->cache));
    OK(rows_roll(asker->cache));
}

static int call_remove(struct asker *asker)
{
    return kvw_remove(asker->client, OTHER, 1);
}

/* The library does not repeat what it may not: whoever calls looks and decides. */
static void settle_remove(struct asker *asker)
{
    EXPECT(asker->error == 0 || asker->error == -EPIPE, "remove: %d, %s", asker->error,
           kvw_last_error());
    int again = call_remove(asker);
    EXPECT(again == -ENOENT || (again == 0 && asker->error != 0),
           "remove again: %d, %s", again, kvw_last_error());
    if (asker->cache == NULL)
        return;
    int error = rows_roll(asker->cache);
    EXPECT(error == -KVW_EGONE, "begin in a removed cache: %d", error);
    kvw_detach(asker->cache);
}

/* The last attachment of a cache of lifetime `job` takes it along. */
static void settle_last_detach(struct asker *asker)
{
    int error = kvw_attach(asker->client, OTHER, 0, NULL, &asker->cache);
    EXPECT(error == -ENOENT, "attach to what is gone: %d, %s", error, kvw_last_error());
}

static int call_gc(struct asker *asker)
{
    struct kvw_message request = {.type = KVW_MESSAGE_GC,
                                  .gc = {.idle_seconds = UINT64_MAX}};
    struct kvw_message answer;

    return client_call(asker->client, &request, &answer, NULL, 0, NULL, NULL);
}

static void settle_gc(struct asker *asker)
{
    EXPECT(asker->error == 0 || asker->error == -EPIPE, "gc: %d, %s", asker->error,
           kvw_last_error());
    int again = call_gc(asker);
    EXPECT(again == 0, "gc again: %d, %s", again, kvw_last_error());
    int error = kvw_attach(asker->client, OTHER, 0, NULL, &asker->cache);
    EXPECT(error == -ENOENT, "attach to what gc removed: %d", error);
}

/* ------------------------------------------------ a worker's death ---------- */

static void prepare_child(struct asker *asker)
{
    int ready[2];
    char byte = 0;

    if (pipe(ready) != 0)
        return;
    asker->child = fork();
    if (asker->child == 0) {
        struct kvw_client *client;
        struct kvw_cache *cache;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (kvw_connect(asker->socket, &client) == 0 &&
            kvw_attach(client, REQUESTS_CACHE, 0, NULL, &cache) == 0 &&
            rows_write(cache) == 0)
            byte = 1;
        (void)!write(ready[1], &byte, 1);
        for (;;)
            pause();
    }
    (void)!read(ready[0], &byte, 1);
    close(ready[0]);
    close(ready[1]);
    EXPECT(byte == 1, "no child");
}

/* Until the daemon has seen the death, it refuses the rank. */
static int call_succeed(struct asker *asker)
{
    int error = -EBUSY;

    (void)kill(asker->child, SIGKILL);
    (void)waitpid(asker->child, NULL, 0);
    for (int tries = 0; tries < 5000 && error == -EBUSY; tries++) {
        error = call_attach(asker);
        if (error == -EBUSY)
            poll(NULL, 0, 1);
    }
    return error;
}

/* --------------------------------------------- keeper and daemon ---------- */

static void prepare_keeper(struct asker *asker)
{
    struct kvw_message answer;

    OK(ask_status(asker, &answer));
    asker->keeper = (pid_t)answer.status_is.keeper_pid;
}

static int call_new_keeper(struct asker *asker)
{
    struct kvw_message answer;
    int error = -EAGAIN;

    (void)kill(asker->keeper, SIGKILL);
    for (int tries = 0; tries < 5000 && error != 0; tries++) {
        error = ask_status(asker, &answer);
        if (error == 0 && (answer.status_is.keeper_pid == 0 ||
                           (pid_t)answer.status_is.keeper_pid == asker->keeper))
            error = -EAGAIN;
        if (error != 0)
            poll(NULL, 0, 1);
    }
    return error;
}

static void settle_status(struct asker *asker)
{
    struct kvw_message answer;

    EXPECT(asker->error == 0, "status: %d, %s", asker->error, kvw_last_error());
    OK(ask_status(asker, &answer));
}

/* With the keeper dead, the daemon's death takes along what nobody has mapped. */
static void settle_new_keeper(struct asker *asker)
{
    settle_status(asker);
    int error = requests_create(asker->client);
    EXPECT(error >= 0, "create: %d, %s", error, kvw_last_error());
}

static int call_status(struct asker *asker)
{
    struct kvw_message answer;

    return ask_status(asker, &answer);
}

/* ---------------------------------------------------------- list ---------- */

#define BOTH (VICTIM_DAEMON | VICTIM_KEEPER)

const struct request requests[] = {
    {"create", BOTH, NULL, call_create, settle_create},
    {"attach", BOTH, NULL, call_attach, settle_attach},
    {"attach for reading", VICTIM_DAEMON, NULL, call_attach_reader, settle_attach},
    {"detach", BOTH, prepare_attached, call_detach, settle_detach},
    {"last detach of a job", VICTIM_DAEMON, prepare_made_and_attached, call_detach,
     settle_last_detach},
    {"remove", BOTH, prepare_made, call_remove, settle_remove},
    {"remove with an attachment", BOTH, prepare_made_and_attached, call_remove,
     settle_remove},
    {"gc", VICTIM_DAEMON, prepare_made, call_gc, settle_gc},
    {"death of a worker", BOTH, prepare_child, call_succeed, settle_attach},
};

const uint32_t n_requests = sizeof requests / sizeof requests[0];

const struct request request_new_keeper = {"hand-over to a new keeper", VICTIM_DAEMON,
                                           prepare_keeper, call_new_keeper,
                                           settle_new_keeper};

const struct request request_adoption = {"adoption", VICTIM_DAEMON, NULL, call_status,
                                         settle_status};
