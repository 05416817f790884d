/* SPDX-License-Identifier: Apache-2.0 */
/* The death of the daemon, of the keeper, and of both in turn, loses nothing. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/daemon/raw.h"

enum { JOB = 0, TTL = 1, KEEP = 2 };

static struct rig rig;
static int client;
static struct kvw_message answer;

static void setup(void)
{
    rig_start(&rig, NULL);
    client = raw_open(&rig);
}

static void teardown(void)
{
    close(client);
    rig_stop(&rig);
}

TestSuite(restart, .init = setup, .fini = teardown, .timeout = 30);

static void create(const char *name, uint32_t lifetime)
{
    struct kvw_geometry geometry = small_geometry(8);

    cr_assert_eq(ask_create(client, name, &geometry, lifetime, 3600, &answer), 0, "%s",
                 answer.refused.text);
}

static struct kvw_message_status_is status(void)
{
    cr_assert_eq(ask_status(client, &answer), 0);
    return answer.status_is;
}

/* Kill the daemon, and speak to the next one. @return nanoseconds from kill to welcome.
 */
static uint64_t kill_daemon(void)
{
    uint32_t pid = status().pid;
    uint64_t begin_ns = now_ns();

    cr_assert_eq(kill((pid_t)pid, SIGKILL), 0);
    close(client);
    client = raw_open(&rig);
    uint64_t took_ns = now_ns() - begin_ns;
    cr_assert_neq(status().pid, pid);
    return took_ns;
}

static bool is_keeper_another(void *context)
{
    const uint32_t *old = context;

    return status().keeper_pid != *old;
}

static void kill_keeper(void)
{
    uint32_t pid = status().keeper_pid;

    cr_assert_eq(kill((pid_t)pid, SIGKILL), 0);
    cr_assert(soon(is_keeper_another, &pid));
}

static ino_t inode_of(int fd)
{
    struct stat stat;

    cr_assert_eq(fstat(fd, &stat), 0);
    return stat.st_ino;
}

Test(restart, death_of_the_daemon_loses_nothing)
{
    struct place place;
    struct place reader;
    struct place second;

    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);
    cr_assert_eq(ask_attach(client, "a", KVW_RANK_READER, &reader, &answer), 0);
    char *data = mmap(NULL, place.layout.data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      place.fds[2], 0);
    memset(data, 0x5a, place.layout.data_bytes);

    uint64_t took_ns = kill_daemon();

    fprintf(stderr, "kill -9 to welcome: %.1f ms\n", (double)took_ns / 1e6);
    cr_assert_lt(took_ns, 1000000000ull);
    cr_assert_eq(status().n_restarts, 1);
    cr_assert_eq(load_acquire(&seat_of(&place, 0)->state), KVW_SEAT_OWNED);
    cr_assert_eq(load_relaxed(&seat_of(&place, 0)->owner), place.attachment);
    cr_assert_eq(load_relaxed(&seat_of(&place, 0)->incarnation), 1);
    cr_assert_eq(ask_attach(client, "a", 1, &second, &answer), 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(inode_of(place.fds[i]), inode_of(second.fds[i]));
    char byte;
    cr_assert_eq(pread(second.fds[2], &byte, 1, 4096), 1);
    cr_assert_eq(byte, 0x5a);
    cr_assert_neq(second.slot, place.slot);
    cr_assert_neq(second.slot, reader.slot);
    cr_assert_eq(ask_resume(client, place.attachment, &answer), 0);
    cr_assert_eq(ask_detach(client, place.attachment, &answer), 0);
    cr_assert_eq(load_acquire(&seat_of(&place, 0)->state), KVW_SEAT_FREE);
    munmap(data, place.layout.data_bytes);
    place_close(&place);
    place_close(&reader);
    place_close(&second);
}

Test(restart, lifetime_and_record_are_remembered)
{
    struct kvw_geometry geometry = small_geometry(8);

    cr_assert_eq(ask_create(client, "t", &geometry, TTL, 1234, &answer), 0);
    cr_assert_eq(ask_stat(client, "t", &answer), 0);
    struct kvw_message_stated before = answer.stated;
    uint8_t uuid[16];
    memcpy(uuid, before.uuid, sizeof uuid);

    (void)kill_daemon();

    cr_assert_eq(ask_stat(client, "t", &answer), 0);
    cr_assert_eq(answer.stated.cache, before.cache);
    cr_assert_eq(answer.stated.created_ns, before.created_ns);
    cr_assert_eq(answer.stated.ttl_seconds, 1234);
    cr_assert_eq(answer.stated.total_bytes, before.total_bytes);
    cr_assert_eq(memcmp(answer.stated.uuid, uuid, sizeof uuid), 0);
    cr_assert_eq(ask_create(client, "t", &geometry, TTL, 1234, &answer), 0);
    cr_assert_eq(answer.created.existed, 1);
}

struct seat_wait {
    const struct place *place;
    uint32_t rank;
    uint32_t state;
};

static bool seat_is(void *context)
{
    const struct seat_wait *wait = context;

    return load_acquire(&seat_of(wait->place, wait->rank)->state) == wait->state;
}

static uint64_t used_ns(const char *name)
{
    cr_assert_eq(ask_stat(client, name, &answer), 0);
    return answer.stated.used_ns;
}

/* The time to live and gc's idle time go on from the last use. */
Test(restart, last_use_is_remembered_and_time_to_live_goes_on)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct place place;

    cr_assert_eq(ask_create(client, "t", &geometry, TTL, 1, &answer), 0);
    create("k", KEEP);
    cr_assert_eq(ask_attach(client, "t", 0, &place, &answer), 0);
    cr_assert_eq(ask_detach(client, place.attachment, &answer), 0);
    place_close(&place);
    const uint64_t let_go_ns = used_ns("t");
    const uint64_t created_ns = used_ns("k");

    kill_daemon();
    cr_assert_eq(used_ns("t"), let_go_ns);
    cr_assert_eq(used_ns("k"), created_ns);
    /* None of these daemons lives for so long: were the time to start again, it would not
     * end. */
    const uint64_t begin_ns = now_ns();
    while (ask_stat(client, "t", &answer) == 0 && now_ns() - begin_ns < 20000000000ull)
        kill_daemon();

    cr_assert_eq(ask_stat(client, "t", &answer), -ENOENT);
    cr_assert_eq(used_ns("k"), created_ns);
}

Test(restart, who_lives_is_known_to_the_next_daemon)
{
    struct place place;
    struct place other;
    struct seat_wait dead = {.place = &place, .rank = 0, .state = KVW_SEAT_DEAD};

    create("a", KEEP);
    pid_t worker = worker_start(&rig, "a", 0, false);
    cr_assert_eq(ask_attach(client, "a", 1, &place, &answer), 0);
    cr_assert_eq(kill(worker, SIGSTOP), 0);

    (void)kill_daemon();

    /* A stopped worker does not come back to say that it lives. */
    cr_assert_eq(ask_attach(client, "a", 0, &other, &answer), -EBUSY);
    cr_assert_not_null(strstr(answer.refused.text, "which lost its connection"));
    worker_kill(worker);
    cr_assert(soon(seat_is, &dead));
    place_close(&place);
}

Test(restart, death_of_a_worker_meanwhile_is_noticed)
{
    struct place place;
    struct seat_wait dead = {.place = &place, .rank = 0, .state = KVW_SEAT_DEAD};

    create("a", KEEP);
    pid_t worker = worker_start(&rig, "a", 0, false);
    cr_assert_eq(ask_attach(client, "a", 1, &place, &answer), 0);
    cr_assert_eq(kill((pid_t)status().pid, SIGSTOP), 0);
    worker_kill(worker);

    /* The daemon was stopped when it died, and dies without having looked. */
    uint32_t stopped = answer.status_is.pid;
    cr_assert_eq(kill((pid_t)stopped, SIGKILL), 0);
    close(client);
    client = raw_open(&rig);

    cr_assert(soon(seat_is, &dead));
    place_close(&place);
}

Test(restart, death_of_the_keeper_and_then_of_the_daemon)
{
    struct place place;
    struct place second;

    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);

    kill_keeper();
    create("b", KEEP);
    (void)kill_daemon();

    cr_assert_eq(ask_attach(client, "a", 1, &second, &answer), 0);
    cr_assert_eq(inode_of(place.fds[2]), inode_of(second.fds[2]));
    cr_assert_eq(load_acquire(&seat_of(&place, 0)->state), KVW_SEAT_OWNED);
    cr_assert_eq(ask_stat(client, "b", &answer), 0);
    kill_keeper();
    (void)kill_daemon();
    cr_assert_eq(status().n_caches, 2);
    cr_assert_eq(status().n_attachments, 2);
    place_close(&place);
    place_close(&second);
}

Test(restart, keeper_that_dies_unseen_costs_no_request)
{
    struct place place;

    create("a", KEEP);
    uint32_t keeper = status().keeper_pid;

    /* The next request may come before the daemon has seen the hang-up. */
    cr_assert_eq(kill((pid_t)keeper, SIGKILL), 0);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);
    (void)kill_daemon();

    cr_assert_eq(status().n_attachments, 1);
    place_close(&place);
}

Test(restart, removed_cache_stays_removed)
{
    struct place place;

    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);
    cr_assert_eq(ask_remove(client, "a", true, &answer), 0);
    create("b", KEEP);
    cr_assert_eq(ask_remove(client, "b", false, &answer), 0);

    (void)kill_daemon();

    cr_assert_eq(ask_stat(client, "a", &answer), -ENOENT);
    cr_assert_eq(ask_stat(client, "b", &answer), -ENOENT);
    cr_assert_eq(status().n_caches, 1);
    cr_assert_eq(ask_detach(client, place.attachment, &answer), 0);
    cr_assert_eq(status().n_caches, 0);
    place_close(&place);
}

Test(restart, own_rank_without_an_answer_is_given_again)
{
    struct place place;
    struct place again;

    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);

    (void)kill_daemon();

    /* As if the answer had been lost: this process does not know that it has rank 0. */
    cr_assert_eq(ask_attach(client, "a", 0, &again, &answer), 0);
    cr_assert_eq(again.incarnation, 2);
    cr_assert_eq(ask_resume(client, place.attachment, &answer), -ENOENT);
    place_close(&place);
    place_close(&again);
}

Test(restart, damaged_control_segment_is_removed_not_followed)
{
    struct place a;
    struct place b;

    create("a", KEEP);
    create("b", KEEP);
    create("c", KEEP);
    cr_assert_eq(ask_attach(client, "a", 0, &a, &answer), 0);
    cr_assert_eq(ask_attach(client, "b", 0, &b, &answer), 0);
    /* A worker's writable mapping can be wiped although it is sealed. */
    cr_assert_eq(madvise(a.control, a.layout.control_bytes, MADV_REMOVE), 0);
    cr_assert_eq(madvise(a.pins, a.layout.pins_bytes, MADV_REMOVE), 0);
    memset((char *)b.control + b.layout.geometry_offset, 0xff,
           sizeof(struct kvw_geometry));

    (void)kill_daemon();

    cr_assert_eq(ask_stat(client, "a", &answer), -ENOENT);
    cr_assert_eq(ask_stat(client, "b", &answer), -ENOENT);
    cr_assert_eq(ask_stat(client, "c", &answer), 0);
    cr_assert_eq(ask_detach(client, a.attachment, &answer), 0);
    cr_assert_eq(ask_detach(client, b.attachment, &answer), 0);
    cr_assert_eq(status().n_caches, 1);
    place_close(&a);
    place_close(&b);
}

Test(restart, daemon_that_dies_often_is_still_started)
{
    create("a", KEEP);

    for (uint32_t i = 0; i < 6; i++)
        (void)kill_daemon();

    cr_assert_eq(status().n_restarts, 6);
    cr_assert_eq(ask_stat(client, "a", &answer), 0);
}

Test(restart, stopped_keeper_is_replaced)
{
    struct place place;

    create("a", KEEP);
    uint32_t keeper = status().keeper_pid;
    cr_assert_eq(kill((pid_t)keeper, SIGSTOP), 0);

    /* Its answer does not come; two seconds later it is as good as dead. */
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0, "%s",
                 answer.refused.text);

    cr_assert_neq(status().keeper_pid, keeper);
    (void)kill_daemon();
    cr_assert_eq(status().n_attachments, 1);
    place_close(&place);
}

Test(restart, keepers_that_die_often_are_replaced_ever_more_slowly)
{
    create("a", KEEP);

    uint64_t begin_ns = now_ns();
    for (int i = 0; i < 7; i++)
        kill_keeper();

    cr_assert_geq(now_ns() - begin_ns, 100000000ull);
    (void)kill_daemon();
    cr_assert_eq(ask_stat(client, "a", &answer), 0);
}

/* Ask for everything, again and again, whatever the answers. */
static void be_busy(uint32_t number)
{
    struct kvw_geometry geometry = small_geometry(8);
    char name[16];

    (void)snprintf(name, sizeof name, "busy%u", number);
    for (uint32_t i = 0;; i++) {
        struct place place;
        int fd = raw_open(&rig);
        uint64_t cache = 0;
        for (int error = 0; error != -EPIPE && error != -ECONNRESET; i++) {
            error =
                ask_create(fd, name, &geometry, i % 3 == 0 ? JOB : KEEP, 0, &answer);
            if (error == 0)
                error = ask_attach(fd, name, i % 2, &place, &answer);
            if (error == 0) {
                cache = place.attachment;
                place_close(&place);
                error = ask_attach(fd, name, KVW_RANK_READER, &place, &answer);
            }
            if (error == 0) {
                place_close(&place);
                error = ask_detach(fd, cache, &answer);
            }
            if (error == 0 && i % 5 == 0)
                error = ask_remove(fd, name, true, &answer);
            if (error == -EBUSY || error == -EMFILE)
                _exit(
                    0); /* what it held before the daemon died; its own death ends it */
        }
        close(fd);
    }
}

/* Every cache is whole, and nobody has a place in one; creations are rolled back by
 * now. */
static bool is_settled(void *context)
{
    struct kvw_message_status_is now = status();
    uint32_t n_caches = 0;

    (void)context;
    for (uint64_t after = 0;; n_caches++) {
        struct kvw_message request = {.type = KVW_MESSAGE_STAT,
                                      .stat = {.after = after}};
        if (raw_call(client, &request, &answer) != 0)
            break;
        after = answer.stated.cache;
        if (answer.stated.state != KVW_CONTROL_LIVE || answer.stated.n_owned != 0)
            return false;
    }
    return now.n_attachments == 0 && now.n_clients == 1 && now.n_caches == n_caches;
}

Test(restart, deaths_at_any_moment_leave_no_contradiction)
{
    enum { N_BUSY = 3, N_DEATHS = 7 };
    pid_t busy[N_BUSY];
    unsigned seed = (unsigned)now_ns();

    fprintf(stderr, "seed %u\n", seed);
    for (uint32_t i = 0; i < N_BUSY; i++) {
        busy[i] = fork();
        if (busy[i] == 0)
            be_busy(i);
    }
    for (int i = 0; i < N_DEATHS; i++) {
        /* Not to wait for anything: to die at a moment that nobody chose. */
        (void)poll(NULL, 0, 5 + rand_r(&seed) % 20);
        (void)kill_daemon();
    }
    for (uint32_t i = 0; i < N_BUSY; i++)
        worker_kill(busy[i]);

    cr_assert(soon(is_settled, NULL));
    struct kvw_message_status_is before = status();
    (void)kill_daemon();
    cr_assert_eq(status().n_caches, before.n_caches);
    cr_assert_eq(status().bytes_used, before.bytes_used);
    cr_assert_eq(status().n_attachments, 0);
}
