/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new daemon's adoption of what a keeper has: entries with any name and descriptors
 * of anything, and proper caches whose record or control segment somebody changed. What
 * is adopted is then looked at as `kvwheel ls` and `who` do, and ended; no descriptor
 * and no memory is left.
 *
 * The keeper is a socket that has all its packets already. Real are adopt.c, kept.c,
 * link.c, store.c, store_keeper.c, stamp.c, restart.c, segment.c, cache.c, attachment.c
 * and report.c; see adopt_outside.c.
 *
 * Input: up to six entries, see send_entry(); what the keeper answers to puts and drops
 * follows.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/adopt.h"
#include "daemon/attachment.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/kept.h"
#include "daemon/link.h"
#include "daemon/request.h"
#include "daemon/stamp.h"
#include "daemon/store.h"
#include "proto/base/cleanup.h"
#include "tests/fuzz/input.h"

enum {
    ENTRIES_MAX = 6,
    ANSWERS = 24,       /* of the keeper to what is put and dropped; then it is dead */
    POKES_MAX = 8,      /* of a record, and of a control segment */
    FDS_END = 96,       /* more than are ever open */
    BYTES_MAX = 1 << 24 /* of a segment; nothing of the data is touched */
};

/* The keeper's end. */
struct keeper {
    struct input *input;
    int socket;
    int last_fds[KEPT_FDS_MAX]; /* of the cache before, to be offered again; owned */
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct cache_meta meta;
};

static void send_packet(const struct keeper *keeper, uint32_t kind, int value,
                        const char *name, const int *fds, uint32_t n_fds)
{
    struct kept_packet packet = {.kind = kind, .value = value};

    (void)snprintf(packet.name, sizeof packet.name, "%s", name);
    KVW_CHECK(kept_send(keeper->socket, &packet, fds, n_fds) == 0);
}

/* ----------------------------------------------------------- descriptors ------------
 */

static void poke(struct input *input, void *bytes, uint64_t n_bytes)
{
    uint64_t at = input_below(input, n_bytes / 8);
    uint64_t word;

    memcpy(&word, (char *)bytes + 8 * at, 8);
    word = input_number(input, word);
    memcpy((char *)bytes + 8 * at, &word, 8);
}

/* A segment as the daemon makes it, or with one thing wrong. */
static int make_segment(struct input *input, uint64_t n_bytes)
{
    const uint8_t kind = input_u8(input) % 12;
    struct segment segment;

    if (kind == 1)
        n_bytes += KVW_PAGE;
    if (kind == 2)
        n_bytes -= KVW_PAGE;
    KVW_CHECK(segment_create(&segment, "fuzz", n_bytes, 0600, false) == 0);
    if (kind == 3)
        KVW_CHECK(fcntl(segment.fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    if (kind == 4)
        KVW_CHECK(fcntl(segment.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
    if (kind == 5)
        KVW_CHECK(fcntl(segment.fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    else if (kind != 6)
        KVW_CHECK(segment_seal(&segment) == 0);
    if (kind == 7) {
        const int readonly = segment_reopen_readonly(&segment);
        KVW_CHECK(readonly >= 0);
        close(segment.fd);
        return readonly;
    }
    return segment.fd;
}

/* Anything but a segment. */
static int make_other(struct input *input)
{
    static const char *const paths[] = {"/dev/null", "/dev/zero", "/proc/self/stat",
                                        "/proc/self", "/proc/self/exe"};
    const uint64_t kind = input_below(input, sizeof paths / sizeof paths[0] + 2);
    int pair[2];
    int fd;

    if (kind < sizeof paths / sizeof paths[0])
        fd = open(paths[kind], O_RDONLY | O_CLOEXEC);
    else if (kind == sizeof paths / sizeof paths[0])
        fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    else if (pipe2(pair, O_CLOEXEC) == 0) {
        close(pair[1]);
        fd = pair[0];
    } else
        fd = -1;
    KVW_CHECK(fd >= 0);
    return fd;
}

/* ---------------------------------------------------------------- entries -----------
 */

static void write_control(struct keeper *keeper, int fd)
{
    struct input *input = keeper->input;
    const uint64_t n_bytes = keeper->layout.control_bytes;
    off_t have_bytes = lseek(fd, 0, SEEK_END);

    if (have_bytes < (off_t)n_bytes)
        return;
    void *base = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return;
    layout_control_init(base, &keeper->layout, &keeper->geometry, keeper->meta.name,
                        keeper->meta.uuid);
    struct kvw_seat *seat = layout_seat(base, &keeper->layout, 0);
    store_relaxed(&seat->state, (uint32_t)input_below(input, 3));
    for (uint64_t n = input_below(input, POKES_MAX); n > 0; n--)
        poke(input, base, input_u8(input) & 1 ? n_bytes : 256);
    (void)munmap(base, n_bytes);
}

/* A proper record and segments, with a few things changed. */
static bool make_cache(struct keeper *keeper, int fds[KEPT_FDS_MAX])
{
    struct input *input = keeper->input;
    struct cache_meta *meta = &keeper->meta;
    struct kvw_refusal refusal;

    input_geometry(input, &keeper->geometry);
    if (geometry_check(&keeper->geometry, &refusal) != 0 ||
        layout_of(&keeper->geometry, &keeper->layout, &refusal) != 0 ||
        keeper->layout.data_bytes > BYTES_MAX)
        return false;
    *meta = (struct cache_meta){.magic = CACHE_META_MAGIC,
                                .id = input_below(input, 4),
                                .lifetime = input_u8(input) & 3,
                                .ttl_seconds = 1,
                                .mode = 0600,
                                .name = "fuzz",
                                .uuid = {1},
                                .geometry = keeper->geometry};
    fds[1] = make_segment(input, keeper->layout.control_bytes);
    fds[2] = make_segment(input, keeper->layout.pins_bytes);
    fds[3] = make_segment(input, keeper->layout.data_bytes);
    write_control(keeper, fds[1]);
    for (uint64_t n = input_below(input, POKES_MAX); n > 0; n--)
        poke(input, meta, input_u8(input) & 1 ? sizeof *meta : 64);
    const uint64_t cut_bytes = input_u8(input) % 16 == 1 ? 8 : 0;
    fds[0] = segment_freeze("meta", meta, sizeof *meta - cut_bytes);
    KVW_CHECK(fds[0] >= 0);
    return true;
}

/* Offer others instead of the right ones: of the cache before, or no segments at all.
 */
static void swap_fds(struct keeper *keeper, int fds[KEPT_FDS_MAX])
{
    struct input *input = keeper->input;

    for (uint32_t i = 0; i < KEPT_FDS_MAX; i++) {
        const uint8_t kind = input_u8(input) % 16;
        int other = -1;
        if (kind == 1)
            other = make_other(input);
        else if (kind == 2)
            other = fcntl(fds[input_below(input, KEPT_FDS_MAX)], F_DUPFD_CLOEXEC, 3);
        else if (kind >= 12 && keeper->last_fds[i] >= 0)
            other = fcntl(keeper->last_fds[i], F_DUPFD_CLOEXEC, 3);
        if (other < 0)
            continue;
        close(fds[i]);
        fds[i] = other;
    }
}

static void send_cache(struct keeper *keeper, const char *prefix)
{
    struct input *input = keeper->input;
    int fds[KEPT_FDS_MAX];
    char name[KEPT_NAME_MAX + 1];

    if (!make_cache(keeper, fds))
        return;
    swap_fds(keeper, fds);
    (void)snprintf(name, sizeof name, "%s.%" PRIu64, prefix, keeper->meta.id);
    const uint32_t n_fds = input_u8(input) % 16 == 1 ? 3 : KEPT_FDS_MAX;
    send_packet(keeper, KEPT_ENTRY, 0, name, fds, n_fds);
    for (uint32_t i = 0; i < KEPT_FDS_MAX; i++) {
        kvw_fd_cleanup(&keeper->last_fds[i]);
        keeper->last_fds[i] = fds[i];
    }
}

static void send_attachment(const struct keeper *keeper)
{
    struct input *input = keeper->input;
    char name[KEPT_NAME_MAX + 1];
    const uint64_t id = input_number(input, 1);
    const uint64_t cache = input_below(input, 4);
    const uint32_t rank = (uint32_t)input_number(input, 0);
    const uint32_t slot = (uint32_t)input_number(input, 0);
    const int pid = input_u8(input);

    (void)snprintf(name, sizeof name, "attach.%" PRIu64 ".%" PRIu64 ".%u.%u.0.%d.9", id,
                   cache, rank, slot, pid);
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = make_other(input);
    send_packet(keeper, KEPT_ENTRY, 0, name, &fd, 1);
}

/* Any name; a few times its first letters are right. */
static void send_any(const struct keeper *keeper)
{
    static const char *const prefixes[] = {
        "",       "attach.", "attach.1.1.", "cache.1",  "removed.",
        "listen", "lock",    "layout",      "previous", "refused"};
    struct input *input = keeper->input;
    char name[KEPT_NAME_MAX + 1] = {0};
    char rest[32] = {0};
    const uint32_t n_fds = (uint32_t)input_below(input, KEPT_FDS_MAX + 1);
    int fds[KEPT_FDS_MAX];

    for (uint32_t i = 0; i < n_fds; i++)
        fds[i] = make_other(input);
    const uint64_t prefix = input_below(input, sizeof prefixes / sizeof prefixes[0]);
    input_bytes(input, rest, input_below(input, sizeof rest));
    (void)snprintf(name, sizeof name, "%s%s", prefixes[prefix], rest);
    send_packet(keeper, KEPT_ENTRY, 0, name, fds, n_fds);
    for (uint32_t i = 0; i < n_fds; i++)
        close(fds[i]);
}

static void send_entry(struct keeper *keeper)
{
    switch (input_below(keeper->input, 6)) {
    case 0:
    case 1:
        send_cache(keeper, "cache");
        break;
    case 2:
        send_cache(keeper, "removed");
        break;
    case 3:
    case 4:
        send_attachment(keeper);
        break;
    default:
        send_any(keeper);
        break;
    }
}

/* A stamp of this program, or of another one. */
static int make_stamp(struct input *input, bool is_other)
{
    uint8_t bytes[64];

    int fd = stamp_make();
    KVW_CHECK(fd >= 0);
    if (!is_other)
        return fd;
    KVW_CHECK(pread(fd, bytes, sizeof bytes, 0) == sizeof bytes);
    poke(input, bytes, sizeof bytes);
    close(fd);
    fd = segment_freeze("stamp", bytes, sizeof bytes);
    KVW_CHECK(fd >= 0);
    return fd;
}

static void send_all(struct keeper *keeper)
{
    static const char *const names[] = {"listen", "lock", "layout"};
    struct input *input = keeper->input;
    const uint8_t kinds = input_u8(input);

    for (int i = 0; i < 3; i++) {
        KVW_CLEANUP(kvw_fd_cleanup)
        int fd = i == 2 ? make_stamp(input, kinds % 16 == 4)
                        : open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (kinds % 16 != i + 1) /* else it is missing */
            send_packet(keeper, KEPT_ENTRY, 0, names[i], &fd, 1);
    }
    for (uint64_t n = input_below(input, ENTRIES_MAX + 1); n > 0; n--)
        send_entry(keeper);
    send_packet(keeper, KEPT_DONE, 1, "", NULL, 0);
    for (int i = 0; i < ANSWERS; i++) {
        const uint8_t kind = input_u8(input);
        if (kind == 1) /* the keeper dies */
            break;
        send_packet(keeper, kind == 2 ? KEPT_ENTRY : KEPT_DONE, kind == 3 ? -ENFILE : 0,
                    "", NULL, 0);
    }
    KVW_CHECK(shutdown(keeper->socket, SHUT_WR) == 0);
    for (uint32_t i = 0; i < KEPT_FDS_MAX; i++)
        kvw_fd_cleanup(&keeper->last_fds[i]);
}

/* ------------------------------------------------------------- the daemon -----------
 */

static void check_reply(const struct reply *reply)
{
    static uint8_t packet[KVW_MESSAGE_MAX];

    KVW_CHECK(reply->n_fds == 0);
    KVW_CHECK(message_encode(&reply->message, packet, sizeof packet) > 0);
}

static void check_open(int fd, uint64_t n_bytes)
{
    struct stat status;

    KVW_CHECK(fd >= 0 && fstat(fd, &status) == 0);
    KVW_CHECK(n_bytes == 0 || (uint64_t)status.st_size == n_bytes);
}

/* What is adopted has its descriptors still. */
static void check_adopted(const struct daemon *daemon)
{
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        const struct cache *cache = daemon->caches[i];
        for (uint32_t s = 0; cache != NULL && s < N_SEGMENTS; s++)
            check_open(cache->segment[s].fd, cache->segment[s].bytes);
        if (cache != NULL)
            check_open(cache->meta_fd, sizeof cache->meta);
    }
    for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX; i++) {
        if (daemon->attachments[i] != NULL)
            check_open(daemon->attachments[i]->peer.pidfd, 0);
    }
}

/* What `kvwheel ls` and `kvwheel who` ask for, of everything. */
static void look(struct daemon *daemon)
{
    static struct client root;
    static struct reply reply;
    struct kvw_refusal refusal;
    struct kvw_message stat = {.type = KVW_MESSAGE_STAT};
    struct kvw_message who = {.type = KVW_MESSAGE_WHO};

    for (int i = 0; report_stat(daemon, &root, &stat, &reply, &refusal) == 0; i++) {
        check_reply(&reply);
        KVW_CHECK(i < ENTRIES_MAX);
        stat.stat.after = reply.message.stated.cache;
    }
    for (int i = 0; report_who(daemon, &root, &who, &reply, &refusal) == 0; i++) {
        check_reply(&reply);
        KVW_CHECK(i < ENTRIES_MAX);
        who.who.after = reply.message.who_is.attachment;
    }
}

/* Everybody dies, all that has a time to live expires, the rest is closed. */
static void end_all(struct daemon *daemon)
{
    for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX && daemon->n_attachments > 0;
         i++) {
        if (daemon->attachments[i] != NULL)
            attachment_end(daemon, daemon->attachments[i], (enum ending)(i & 1));
    }
    (void)cache_expire(daemon, NEVER_NS - 1);
    for (uint32_t i = 0; i < KVW_CACHES_MAX && daemon->n_caches > 0; i++) {
        if (daemon->caches[i] != NULL)
            cache_free(daemon, daemon->caches[i]);
    }
    KVW_CHECK(daemon->n_attachments == 0 && daemon->n_caches == 0);
    kvw_fd_cleanup(&daemon->listen_fd);
    kvw_fd_cleanup(&daemon->lock_fd);
    kvw_fd_cleanup(&daemon->stamp_fd);
    kvw_fd_cleanup(&daemon->keeper_socket);
    store_entries_free(daemon->held);
}

static uint32_t count_open(void)
{
    uint32_t n_open = 0;

    for (int fd = 0; fd < FDS_END; fd++)
        n_open += fcntl(fd, F_GETFD) >= 0;
    return n_open;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct options options;
    static struct keeper keeper;
    static struct daemon daemon;
    struct input input = {data, size};
    const uint32_t n_open = count_open();
    int pair[2];

    KVW_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    keeper = (struct keeper){
        .input = &input, .socket = pair[0], .last_fds = {-1, -1, -1, -1}};
    daemon = (struct daemon){.options = &options,
                             .listen_fd = -1,
                             .lock_fd = -1,
                             .store = &store_keeper,
                             .stamp_fd = -1,
                             .keeper_socket = pair[1],
                             .keeper_pidfd = -1,
                             /* no new keeper is started for the one that is gone */
                             .is_stopping = true};
    send_all(&keeper);
    if (adopt_all(&daemon) == 0) {
        check_adopted(&daemon);
        look(&daemon);
    }
    end_all(&daemon);
    close(keeper.socket);
    KVW_CHECK(count_open() == n_open);
    return 0;
}
