/* SPDX-License-Identifier: Apache-2.0 */
/* Creations and places: who gets one, and what ends it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
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

TestSuite(attach, .init = setup, .fini = teardown, .timeout = 20);

static void create(const char *name, uint32_t lifetime)
{
    struct kvw_geometry geometry = small_geometry(8);

    cr_assert_eq(ask_create(client, name, &geometry, lifetime, 3600, &answer), 0, "%s",
                 answer.refused.text);
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

static bool cache_is_gone(void *context)
{
    return ask_stat(client, context, &answer) == -ENOENT;
}

Test(attach, create_attach_detach)
{
    struct place place;

    create("a", KEEP);

    cr_assert_eq(answer.created.existed, 0);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);
    cr_assert_eq(place.incarnation, 1);
    cr_assert_eq(place.was_dead, 0);
    cr_assert_eq(load_acquire(&seat_of(&place, 0)->state), KVW_SEAT_OWNED);
    cr_assert_eq(load_relaxed(&seat_of(&place, 0)->pid), (uint32_t)getpid());
    cr_assert_eq(load_relaxed(&seat_of(&place, 0)->owner), place.attachment);
    cr_assert_eq(ask_detach(client, place.attachment, &answer), 0);
    cr_assert_eq(load_acquire(&seat_of(&place, 0)->state), KVW_SEAT_FREE);
    place_close(&place);
}

Test(attach, segments_are_allocated_sealed_and_private)
{
    struct place place;
    struct stat status;

    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);

    for (int i = 0; i < 3; i++) {
        cr_assert_eq(fstat(place.fds[i], &status), 0);
        cr_assert_eq((uint64_t)status.st_blocks * 512, (uint64_t)status.st_size);
        cr_assert_eq(status.st_mode & 0777, i == 1 ? 0600 : 0400);
        int seals = fcntl(place.fds[i], F_GET_SEALS);
        cr_assert_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        cr_assert_eq(seals & F_SEAL_WRITE, 0);
    }
    place_close(&place);
}

Test(attach, reader_can_write_pins_only)
{
    struct place place;

    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", KVW_RANK_READER, &place, &answer), 0);

    cr_assert_eq(fcntl(place.fds[0], F_GETFL) & O_ACCMODE, O_RDONLY);
    cr_assert_eq(fcntl(place.fds[1], F_GETFL) & O_ACCMODE, O_RDWR);
    cr_assert_eq(fcntl(place.fds[2], F_GETFL) & O_ACCMODE, O_RDONLY);
    place_close(&place);
}

Test(attach, second_writer_is_refused_with_the_pid_of_the_first)
{
    struct place place;
    char want[64];

    create("a", KEEP);
    pid_t worker = worker_start(&rig, "a", 0, false);
    cr_assert_gt(worker, 0);

    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), -EBUSY);
    (void)snprintf(want, sizeof want, "rank 0 of 'a' is held by pid %d (connected)",
                   worker);
    cr_assert_not_null(strstr(answer.refused.text, want), "%s", answer.refused.text);
    worker_kill(worker);
}

static bool is_disconnected(void *context)
{
    (void)context;
    return ask_who(client, 0, 0, &answer) == 0 && answer.who_is.is_connected == 0;
}

Test(attach, hang_up_is_not_death)
{
    struct place place;

    create("a", KEEP);
    pid_t worker = worker_start(&rig, "a", 0, true);
    cr_assert_gt(worker, 0);
    cr_assert(soon(is_disconnected, NULL));

    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), -EBUSY);
    cr_assert_not_null(strstr(answer.refused.text, "which lost its connection"));
    cr_assert_eq(ask_attach(client, "a", 1, &place, &answer), 0);
    cr_assert_eq(load_acquire(&seat_of(&place, 0)->state), KVW_SEAT_OWNED);
    worker_kill(worker);
    place_close(&place);
}

Test(attach, kill_is_death_and_is_told)
{
    struct place place;
    struct place successor;
    struct seat_wait dead = {.place = &place, .rank = 0, .state = KVW_SEAT_DEAD};

    create("a", KEEP);
    pid_t worker = worker_start(&rig, "a", 0, false);
    cr_assert_eq(ask_attach(client, "a", 1, &place, &answer), 0);
    struct kvw_board *board = layout_board(place.control, &place.layout, 2, 0, 1);
    uint32_t event = load_acquire(&board->event);

    worker_kill(worker);

    cr_assert(soon(seat_is, &dead));
    cr_assert_neq(load_acquire(&board->event), event);
    cr_assert_eq(ask_attach(client, "a", 0, &successor, &answer), 0);
    cr_assert_eq(successor.was_dead, 1);
    cr_assert_eq(successor.incarnation, 2);
    cr_assert_eq(load_acquire(&seat_of(&place, 0)->state), KVW_SEAT_OWNED);
    place_close(&place);
    place_close(&successor);
}

Test(attach, pins_of_the_dead_vanish)
{
    struct place place;
    struct seat_wait dead = {.place = &place, .rank = 0, .state = KVW_SEAT_DEAD};

    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", 1, &place, &answer), 0);
    pid_t worker = worker_start(&rig, "a", 0, false);
    struct kvw_pin *pin = layout_pin(place.pins, &place.layout, 1, 3);
    store_relaxed(&pin->since_ns, 77);
    store_release(&pin->lo_plus_1, 5);
    store_release(layout_high(place.pins, &place.layout, 1), 4);
    cr_assert_eq(ask_who(client, 0, place.attachment, &answer), 0);
    cr_assert_eq(answer.who_is.slot, 1);
    cr_assert_eq(answer.who_is.n_pins, 1);
    cr_assert_eq(answer.who_is.pinned_since_ns, 77);

    worker_kill(worker);

    cr_assert(soon(seat_is, &dead));
    cr_assert(soon(cache_is_gone, "not there"));
    cr_assert_eq(load_acquire(&pin->lo_plus_1), 0);
    cr_assert_eq(load_acquire(layout_high(place.pins, &place.layout, 1)), 0);
    place_close(&place);
}

Test(attach, create_is_idempotent_and_says_what_differs)
{
    struct kvw_geometry same = small_geometry(8);
    struct kvw_geometry other = small_geometry(9);

    create("a", KEEP);
    uint64_t id = answer.created.cache;

    cr_assert_eq(ask_create(client, "a", &same, KEEP, 0, &answer), 0);
    cr_assert_eq(answer.created.existed, 1);
    cr_assert_eq(answer.created.cache, id);
    cr_assert_eq(ask_create(client, "a", &other, KEEP, 0, &answer), -EEXIST);
    cr_assert_not_null(strstr(answer.refused.text, "window_rows is 8 there, asked 9"),
                       "%s", answer.refused.text);
}

Test(attach, bad_requests_are_refused_in_words)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct place place;

    cr_assert_eq(ask_create(client, "a/b", &geometry, KEEP, 0, &answer), -EINVAL);
    cr_assert_eq(ask_create(client, "a", &geometry, 9, 0, &answer), -EINVAL);
    geometry.n_ranks = 3;
    cr_assert_eq(ask_create(client, "a", &geometry, KEEP, 0, &answer), -EINVAL);
    cr_assert_gt(strlen(answer.refused.text), 10);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), -ENOENT);
    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", 2, &place, &answer), -ERANGE);
    cr_assert_eq(ask_detach(client, 99, &answer), -ENOENT);
}

Test(attach, job_ends_with_its_last_attachment)
{
    struct place place;

    create("a", JOB);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);
    pid_t worker = worker_start(&rig, "a", 1, false);
    cr_assert_eq(ask_detach(client, place.attachment, &answer), 0);
    cr_assert_eq(ask_stat(client, "a", &answer), 0);

    worker_kill(worker);

    cr_assert(soon(cache_is_gone, "a"));
    const struct kvw_control_header *header = place.control;
    cr_assert_eq(load_acquire(&header->state), KVW_CONTROL_REMOVED);
    place_close(&place);
}

Test(attach, ttl_ends_after_the_last_attachment_and_keep_never)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct place place;

    cr_assert_eq(ask_create(client, "t", &geometry, TTL, 1, &answer), 0);
    cr_assert_eq(ask_create(client, "k", &geometry, KEEP, 0, &answer), 0);
    cr_assert_eq(ask_attach(client, "t", 0, &place, &answer), 0);
    uint64_t begin_ns = now_ns();
    cr_assert_eq(ask_detach(client, place.attachment, &answer), 0);

    cr_assert(soon(cache_is_gone, "t"));
    cr_assert_geq(now_ns() - begin_ns, 1000000000ull);
    cr_assert_eq(ask_stat(client, "k", &answer), 0);
    place_close(&place);
}

Test(attach, removal_while_attached)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct place place;

    create("a", KEEP);
    uint64_t id = answer.created.cache;
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);
    const struct kvw_control_header *header = place.control;

    cr_assert_eq(ask_remove(client, "a", false, &answer), -EBUSY);
    cr_assert_eq(load_acquire(&header->state), KVW_CONTROL_LIVE);
    cr_assert_eq(ask_remove(client, "a", true, &answer), 0);
    cr_assert_eq(load_acquire(&header->state), KVW_CONTROL_REMOVED);
    /* The name is free, the bytes are not. */
    cr_assert_eq(ask_create(client, "a", &geometry, KEEP, 0, &answer), 0);
    cr_assert_neq(answer.created.cache, id);
    cr_assert_eq(answer.created.existed, 0);
    cr_assert_eq(ask_stat(client, "", &answer), 0);
    cr_assert_eq(answer.stated.cache, id);
    cr_assert_eq(answer.stated.state, KVW_CONTROL_REMOVED);
    cr_assert_eq(ask_detach(client, place.attachment, &answer), 0);
    cr_assert_eq(ask_stat(client, "", &answer), 0);
    cr_assert_neq(answer.stated.cache, id);
    place_close(&place);
}

Test(attach, one_process_holds_several_places)
{
    struct place a0;
    struct place a1;
    struct place b0;

    create("a", KEEP);
    create("b", KEEP);

    cr_assert_eq(ask_attach(client, "a", 0, &a0, &answer), 0);
    cr_assert_eq(ask_attach(client, "a", 1, &a1, &answer), 0);
    cr_assert_eq(ask_attach(client, "b", 0, &b0, &answer), 0);
    cr_assert_neq(a0.slot, a1.slot);
    const struct kvw_control_header *header = a0.control;
    cr_assert_eq(load_acquire(&header->attachments_high), 2);
    cr_assert_eq(ask_stat(client, "a", &answer), 0);
    cr_assert_eq(answer.stated.n_attachments, 2);
    cr_assert_eq(answer.stated.n_owned, 2);
    place_close(&a0);
    place_close(&a1);
    place_close(&b0);
}

Test(attach, places_of_a_cache_are_bounded_and_readers_leave_those_of_its_ranks)
{
    struct kvw_message request = {.type = KVW_MESSAGE_ATTACH,
                                  .attach = {.name = "a", .rank = KVW_RANK_READER}};

    create("a", KEEP);
    for (uint32_t i = 0; i < KVW_ATTACHMENTS_MAX - 2; i++)
        cr_assert_eq(raw_call(client, &request, &answer), 0);

    cr_assert_eq(raw_call(client, &request, &answer), -EMFILE);
    cr_assert_eq(answer.refused.have, KVW_ATTACHMENTS_MAX);
    cr_assert_not_null(strstr(answer.refused.text, "2 are kept"), "%s",
                       answer.refused.text);
    for (uint32_t rank = 0; rank < 2; rank++) {
        request.attach.rank = rank;
        cr_assert_eq(raw_call(client, &request, &answer), 0);
    }
}

Test(attach, resume_needs_the_same_process)
{
    struct place place;

    create("a", KEEP);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);
    pid_t worker = worker_start(&rig, "a", 1, true);
    cr_assert_eq(ask_who(client, 0, place.attachment, &answer), 0);
    uint64_t others = answer.who_is.attachment;

    close(client);
    client = raw_open(&rig);

    cr_assert_eq(ask_resume(client, place.attachment, &answer), 0);
    cr_assert_eq(ask_who(client, 0, 0, &answer), 0);
    cr_assert_eq(answer.who_is.is_connected, 1);
    cr_assert_eq(ask_resume(client, others, &answer), -EACCES);
    cr_assert_eq(ask_detach(client, others, &answer), -EACCES);
    worker_kill(worker);
    place_close(&place);
}

Test(attach, kick_kills_and_answers_when_it_is_dead)
{
    struct kvw_message request = {.type = KVW_MESSAGE_KICK,
                                  .kick = {.name = "a", .rank = 0}};
    struct place place;

    create("a", KEEP);
    pid_t worker = worker_start(&rig, "a", 0, true);
    cr_assert_eq(kill(worker, SIGSTOP), 0);

    cr_assert_eq(raw_call(client, &request, &answer), 0);
    cr_assert_eq(answer.type, KVW_MESSAGE_KICKED);
    cr_assert_eq(answer.kicked.pid, (uint32_t)worker);
    cr_assert_eq(ask_attach(client, "a", 0, &place, &answer), 0);
    cr_assert_eq(place.was_dead, 1);
    cr_assert_eq(raw_call(client,
                          &(struct kvw_message){.type = KVW_MESSAGE_KICK,
                                                .kick = {.name = "a", .rank = 1}},
                          &answer),
                 -ESRCH);
    worker_kill(worker);
    place_close(&place);
}

Test(attach, gc_removes_what_nobody_uses)
{
    struct kvw_message dry = {.type = KVW_MESSAGE_GC,
                              .gc = {.idle_seconds = UINT64_MAX, .is_dry_run = 1}};
    struct kvw_message wet = {.type = KVW_MESSAGE_GC,
                              .gc = {.idle_seconds = UINT64_MAX}};
    struct kvw_message all = {.type = KVW_MESSAGE_GC, .gc = {.idle_seconds = 0}};
    struct place place;

    create("job", JOB);
    create("used", JOB);
    create("keep", KEEP);
    cr_assert_eq(ask_attach(client, "used", 0, &place, &answer), 0);

    cr_assert_eq(raw_call(client, &dry, &answer), 0);
    cr_assert_eq(answer.gc_done.n_caches, 1);
    cr_assert_eq(ask_stat(client, "job", &answer), 0);
    cr_assert_eq(raw_call(client, &wet, &answer), 0);
    cr_assert_eq(answer.gc_done.n_caches, 1);
    cr_assert_gt(answer.gc_done.freed_bytes, 0);
    cr_assert_eq(ask_stat(client, "job", &answer), -ENOENT);
    cr_assert_eq(raw_call(client, &all, &answer), 0);
    cr_assert_eq(answer.gc_done.n_caches, 1);
    cr_assert_eq(ask_stat(client, "keep", &answer), -ENOENT);
    cr_assert_eq(ask_stat(client, "used", &answer), 0);
    place_close(&place);
}
