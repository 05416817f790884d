/* SPDX-License-Identifier: Apache-2.0 */
/* Offers that are not what they say: refused in words, nothing of them stays. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/offer.h"
#include "client/wire.h"
#include "tests/daemon/proc.h"
#include "tests/restart/forged.h"
#include "tests/restart/stage.h"

#define OK(call) cr_assert_geq((call), 0, "%s", kvw_last_error())

static struct stage stage;
static char text[512];

static void setup(void)
{
    stage_start(&stage);
}

static void teardown(void)
{
    stage_stop(&stage);
}

TestSuite(hostile, .init = setup, .fini = teardown, .timeout = 60);

/* One offer of three descriptors. @return 0 or the negative error; words in `text`. */
static int offer_as(const int *fds, uint64_t attachment, uint32_t rank, uint32_t slot)
{
    static uint8_t packet[KVW_MESSAGE_MAX];
    struct kvw_message message = {.type = KVW_MESSAGE_OFFER,
                                  .request = ++stage.node.client->request,
                                  .offer = {.attachment = attachment,
                                            .rank = rank,
                                            .slot = slot,
                                            .incarnation = FORGED_INCARNATION}};
    struct wire_fds none;
    uint64_t deadline_ms = wire_now_ms() + 5000;

    OK(offer_send(stage.node.client->socket, &message, fds, deadline_ms));
    OK(wire_receive(stage.node.client->socket, packet, &message, &none, deadline_ms));
    cr_assert_eq(none.n_fds, 0);
    if (message.type == KVW_MESSAGE_OFFERED)
        return 0;
    cr_assert_eq(message.type, KVW_MESSAGE_REFUSED);
    snprintf(text, sizeof text, "%s", message.refused.text);
    return -(int)message.refused.error;
}

static int offer(const int *fds)
{
    return offer_as(fds, FORGED_ATTACHMENT, 0, 0);
}

static void expect_text(const char *part)
{
    cr_assert_not_null(strstr(text, part), "no '%s' in: %s", part, text);
}

/* Nothing of what was refused is left. */
static void expect_nothing(const struct kvw_message_status_is *before, int n_fds)
{
    struct kvw_message_status_is after = stage_status(&stage);

    cr_assert_eq(after.pid, before->pid);
    cr_assert_eq(after.n_caches, before->n_caches);
    cr_assert_eq(after.n_attachments, before->n_attachments);
    /* Until those who hung up are let go. */
    for (int tries = 0; tries < 1000 && proc_count_fds((pid_t)after.pid) != n_fds;
         tries++)
        poll(NULL, 0, 5);
    cr_assert_eq(proc_count_fds((pid_t)after.pid), n_fds);
}

Test(hostile, what_a_daemon_would_have_made_is_taken_once)
{
    struct forged forged;
    forged_init(&forged, "c");
    forged_seal(&forged);

    cr_assert_eq(offer(forged.fds), 0, "%s", text);
    cr_assert_eq(stage_status(&stage).n_caches, 1);
    cr_assert_eq(stage_status(&stage).n_attachments, 1);
    cr_assert_eq(offer(forged.fds), -ESTALE);
    expect_text("not this worker's any more");
    cr_assert_eq(stage_status(&stage).n_caches, 1);

    /* Same name, same uuid, other memory. */
    struct forged again;
    forged_init(&again, "c");
    forged_seal(&again);
    cr_assert_eq(offer(again.fds), -EEXIST);
    expect_text("another cache 'c'");
    forged_close(&again);
    forged_init(&again, "d");
    forged_seal(&again);
    cr_assert_eq(offer(again.fds), -EEXIST);
    expect_text("uuid");
    /* A control segment of its own, the data of another cache. */
    again.header->uuid[0] = 9;
    const int mixed[3] = {again.fds[0], again.fds[1], forged.fds[2]};
    cr_assert_eq(offer(mixed), -EINVAL);
    expect_text("belongs to cache 'c'");
    const int others[3] = {forged.fds[0], forged.fds[1], again.fds[2]};
    cr_assert_eq(offer(others), -EINVAL);
    expect_text("is not that of cache 'c'");
    forged_close(&again);
    forged_close(&forged);
}

Test(hostile, seals_and_sizes_are_looked_at_first)
{
    static const int wrong[] = {0,
                                F_SEAL_SHRINK,
                                F_SEAL_SHRINK | F_SEAL_GROW,
                                F_SEAL_GROW | F_SEAL_SEAL,
                                FORGED_SEALS | F_SEAL_WRITE,
                                FORGED_SEALS | F_SEAL_FUTURE_WRITE};
    struct forged forged;
    struct kvw_message_status_is before = stage_status(&stage);
    int n_fds = proc_count_fds((pid_t)before.pid);

    for (int bad = 0; bad < 3; bad++) {
        for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
            forged_init(&forged, "c");
            if (bad == 0)
                munmap(forged.header, forged.bytes[0]);
            for (int i = 0; i < 3; i++)
                cr_assert_eq(fcntl(forged.fds[i], F_ADD_SEALS,
                                   i == bad ? wrong[w] : FORGED_SEALS),
                             0);
            cr_assert_lt(offer(forged.fds), 0, "seals %#x of %d", wrong[w], bad);
            if (bad == 0)
                forged.header = mmap(NULL, forged.bytes[0], PROT_READ, MAP_SHARED,
                                     forged.fds[0], 0);
            forged_close(&forged);
        }
        for (int change = -4096; change <= 4096; change += 8192) {
            forged_init(&forged, "c");
            cr_assert_eq(ftruncate(forged.fds[bad], (off_t)forged.bytes[bad] + change),
                         0);
            cr_assert_eq(
                fallocate(forged.fds[bad], 0, 0, (off_t)forged.bytes[bad] + change), 0);
            forged_seal(&forged);
            cr_assert_eq(offer(forged.fds), -EINVAL, "%s", text);
            forged_close(&forged);
        }
        forged_init(&forged, "c");
        cr_assert_eq(fallocate(forged.fds[bad],
                               FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096),
                     0);
        forged_seal(&forged);
        cr_assert_eq(offer(forged.fds), -EINVAL, "%s", text);
        expect_text("not fully allocated");
        forged_close(&forged);
    }
    expect_nothing(&before, n_fds);
}

Test(hostile, what_is_no_memfd_is_refused)
{
    struct forged forged;
    struct kvw_message_status_is before = stage_status(&stage);
    int n_fds = proc_count_fds((pid_t)before.pid);
    char path[128];
    int others[6];
    int ends[2];

    forged_init(&forged, "c");
    forged_seal(&forged);
    snprintf(path, sizeof path, "%s/file", stage.folder);
    others[0] = open(path, O_RDWR | O_CREAT, 0600);
    cr_assert_eq(ftruncate(others[0], (off_t)forged.bytes[0]), 0);
    others[1] = open("/dev/null", O_RDWR);
    others[2] = open(stage.folder, O_RDONLY);
    cr_assert_eq(pipe(ends), 0);
    others[3] = ends[0];
    others[4] = ends[1];
    others[5] = dup(stage.node.client->socket);
    for (int bad = 0; bad < 3; bad++) {
        for (size_t o = 0; o < sizeof others / sizeof others[0]; o++) {
            int fds[3] = {forged.fds[0], forged.fds[1], forged.fds[2]};
            fds[bad] = others[o];
            cr_assert_eq(offer(fds), -EINVAL, "%zu as %d", o, bad);
            expect_text("no memfd");
        }
        int fds[3] = {forged.fds[0], forged.fds[1], forged.fds[2]};
        snprintf(path, sizeof path, "/proc/self/fd/%d", forged.fds[bad]);
        fds[bad] = open(path, O_RDONLY);
        cr_assert_eq(offer(fds), -EACCES);
        expect_text("cannot be written");
        close(fds[bad]);
        fds[bad] = forged.fds[(bad + 1) % 3];
        cr_assert_lt(offer(fds), 0, "one memfd twice");
    }
    for (size_t o = 0; o < sizeof others / sizeof others[0]; o++)
        close(others[o]);
    expect_nothing(&before, n_fds);
    forged_close(&forged);
}

Test(hostile, one_memfd_does_not_stand_for_two_segments_of_one_size)
{
    struct forged forged;
    struct kvw_message_status_is before = stage_status(&stage);
    int n_fds = proc_count_fds((pid_t)before.pid);
    forged_init(&forged, "c");
    forged_seal(&forged);
    const int fds[3] = {forged.fds[0], forged.fds[0], forged.fds[0]};

    cr_assert_eq(offer(fds), -EINVAL);

    expect_nothing(&before, n_fds);
    forged_close(&forged);
}

Test(hostile, bytes_of_the_header_are_believed_only_as_far_as_they_are_checked)
{
    struct forged forged;
    unsigned seed = (unsigned)stage_now_ns();
    struct kvw_message_status_is before = stage_status(&stage);
    int n_fds = proc_count_fds((pid_t)before.pid);

    fprintf(stderr, "seed %u\n", seed);
    for (int round = 0; round < 60; round++) {
        forged_init(&forged, "c");
        unsigned char *bytes = (unsigned char *)forged.header;
        size_t from = round % 3 == 0 ? 0 : KVW_PAGE;
        size_t n = round % 3 == 0   ? sizeof *forged.header
                   : round % 3 == 1 ? sizeof(struct kvw_geometry)
                                    : 64;
        for (size_t i = 0; i < n; i++)
            bytes[from + i] = (unsigned char)rand_r(&seed);
        forged_seal(&forged);
        cr_assert_lt(offer(forged.fds), 0, "round %d", round);
        forged_close(&forged);
    }
    forged_init(&forged, "c");
    forged.header->layout_major = 9;
    forged_seal(&forged);
    cr_assert_eq(offer(forged.fds), -EINVAL);
    expect_text("layout 9.");
    forged.header->layout_major = KVW_LAYOUT_MAJOR;
    store_relaxed(&forged.header->state, KVW_CONTROL_REMOVED);
    cr_assert_eq(offer(forged.fds), -ESTALE);
    expect_text("was removed");
    store_relaxed(&forged.header->state, KVW_CONTROL_LIVE);
    memset(forged.header->name, 'x', sizeof forged.header->name);
    cr_assert_eq(offer(forged.fds), -EINVAL);
    memset(forged.header->name, 0, sizeof forged.header->name);
    memcpy(forged.header->name, "../c", 5);
    cr_assert_eq(offer(forged.fds), -EINVAL);
    memcpy(forged.header->name, "c", 2);
    memset(forged.header->uuid, 0, sizeof forged.header->uuid);
    cr_assert_eq(offer(forged.fds), -EINVAL);
    expect_text("no uuid");
    expect_nothing(&before, n_fds);
    forged_close(&forged);
}

Test(hostile, terms_out_of_range_are_replaced)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STAT, .stat = {.name = "c"}};
    struct kvw_message answer;
    struct forged forged;
    forged_init(&forged, "c");
    forged.header->mode = 07777;
    forged.header->lifetime = 1000;
    forged.header->ttl_seconds = UINT64_MAX;
    store_relaxed(&forged.header->attachments_high, UINT32_MAX);
    forged_seal(&forged);

    cr_assert_eq(offer_as(forged.fds, FORGED_ATTACHMENT, 0, 127), 0, "%s", text);

    OK(client_call(stage.node.client, &request, &answer, NULL, 0, NULL, NULL));
    cr_assert_eq(answer.stated.mode, 0600);
    cr_assert_eq(answer.stated.lifetime, KVW_LIFETIME_KEEP);
    cr_assert_leq(load_relaxed(&forged.header->attachments_high), KVW_ATTACHMENTS_MAX);
    forged_close(&forged);
}

Test(hostile, places_that_are_not_the_workers_are_refused)
{
    static const struct {
        uint64_t attachment;
        uint32_t rank;
        uint32_t slot;
    } wrong[] = {{FORGED_ATTACHMENT + 1, 0, 0}, {FORGED_ATTACHMENT, 1, 0},
                 {FORGED_ATTACHMENT, 2, 0},     {FORGED_ATTACHMENT, 1u << 31, 0},
                 {FORGED_ATTACHMENT, 0, 4},     {FORGED_ATTACHMENT, 0, 127},
                 {FORGED_ATTACHMENT, 0, 128},   {FORGED_ATTACHMENT, 0, UINT32_MAX}};
    struct forged forged;
    struct kvw_message_status_is before = stage_status(&stage);
    int n_fds = proc_count_fds((pid_t)before.pid);
    forged_init(&forged, "c");
    forged_seal(&forged);

    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++)
        cr_assert_lt(
            offer_as(forged.fds, wrong[w].attachment, wrong[w].rank, wrong[w].slot), 0,
            "%zu", w);
    cr_assert_eq(offer_as(forged.fds, FORGED_ATTACHMENT, KVW_RANK_READER, 0), -ENOENT);
    expect_nothing(&before, n_fds);

    /* A cache that was never lost has no place for offers. */
    struct kvw_spec spec;
    struct kvw_cache *cache;
    node_spec(&spec, "d", 1);
    OK(kvw_create(stage.node.client, &spec, NULL, NULL));
    OK(kvw_attach(stage.node.client, "d", 0, NULL, &cache));
    cr_assert_eq(offer_as(cache->fds, cache->attachment, 0, 1), -ESTALE);
    cr_assert_eq(offer_as(cache->fds, cache->attachment, KVW_RANK_READER, 1), -ESTALE);
    kvw_detach(cache);
    forged_close(&forged);
}

Test(hostile, another_user_gets_nothing_by_an_offer)
{
    if (getuid() != 0)
        cr_skip_test("needs root");
    struct forged forged;
    struct kvw_message_status_is before = stage_status(&stage);
    int n_fds = proc_count_fds((pid_t)before.pid);
    forged_init(&forged, "c");
    forged_seal(&forged);
    cr_assert_eq(chmod(stage.node.folder, 0755), 0);

    pid_t child = fork();
    if (child == 0) {
        struct forged own;
        if (setuid(65534) < 0 ||
            client_open(stage.node.socket, false, &stage.node.client) != 0)
            _exit(2);
        /* Root's cache, by descriptors that somehow came here. */
        if (offer(forged.fds) != -ENOENT || strstr(text, "of user 0") == NULL)
            _exit(3);
        /* Memory of its own, said to be a daemon's. */
        forged_init(&own, "mine");
        forged_seal(&own);
        if (offer(own.fds) != -EACCES || strstr(text, "made by user 65534") == NULL)
            _exit(4);
        _exit(0);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);

    cr_assert_eq(status, 0);
    expect_nothing(&before, n_fds);
    forged_close(&forged);
}
