/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon of a scene. What it does to seats, pins and events is done by the daemon's
 * own functions, cut out of its sources by `mutate` (the rest of these sources is of
 * sockets, rings and keepers).
 */
#include "tests/race/scene_daemon.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/attachment.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "tests/race/explore.h"

uint64_t host_wall_ns(void)
{
    return 0;
}

/* A process is a task of the explorer; its number is the pid. */
bool peer_is_dead(const struct peer *peer)
{
    return explore_is_dead((int)peer->pid);
}

void ring_poll(struct ring *ring, int fd, short events, struct ring_tag tag)
{
    (void)ring;
    (void)fd;
    (void)events;
    (void)tag;
}

void log_peer(struct log *log, enum log_level level, const char *format, ...)
{
    (void)log;
    (void)level;
    (void)format;
}

#include RACE_CACHE
/* cache_wake(), cache_announce_removed(); now leave_seat() and others: */
#include RACE_ATTACHMENT

static struct cache cache_here;
static struct daemon daemon_here;
static bool has_ended;

void scene_daemon_init(void *control, void *pins, void *data,
                       const struct kvw_geometry *geometry,
                       const struct kvw_layout *layout)
{
    cache_here = (struct cache){.meta = {.geometry = *geometry}, .layout = *layout};
    cache_here.segment[SEGMENT_CONTROL].base = control;
    cache_here.segment[SEGMENT_PINS].base = pins;
    cache_here.segment[SEGMENT_DATA].base = data;
}

static struct attachment attachment_of(uint32_t rank, uint32_t slot)
{
    return (struct attachment){.id = slot + 1,
                               .rank = rank,
                               .slot = slot,
                               .cache = &cache_here,
                               .peer = {.pid = slot + 1, .pidfd = -1}};
}

void scene_daemon_enter(uint32_t rank, uint32_t slot)
{
    struct kvw_control_header *header = cache_here.segment[SEGMENT_CONTROL].base;
    const struct attachment attachment = attachment_of(rank, slot);

    if (load_relaxed(&header->attachments_high) <= slot)
        store_relaxed(&header->attachments_high, slot + 1);
    if (rank != KVW_RANK_READER)
        attachment_seat(&attachment,
                        load_relaxed(&seat_of(&cache_here, rank)->incarnation) + 1);
}

void scene_daemon_free(uint32_t rank, uint32_t slot)
{
    const struct attachment attachment = attachment_of(rank, slot);

    leave_seat(&attachment, ENDING_DETACHED);
}

void scene_daemon_bury(uint32_t rank, uint32_t slot)
{
    const struct attachment attachment = attachment_of(rank, slot);

    if (rank != KVW_RANK_READER)
        leave_seat(&attachment, ENDING_DEAD);
    clear_pins(&cache_here, slot);
}

void scene_daemon_remove(void)
{
    cache_announce_removed(&cache_here);
}

/* What is left of it here: the keeper, the log and the table are not of the scene. */
void attachment_end(struct daemon *daemon, struct attachment *attachment,
                    enum ending ending)
{
    daemon->attachments[attachment->index] = NULL;
    leave_seat(attachment, ending);
    clear_pins(attachment->cache, attachment->slot);
    has_ended = true;
}

bool scene_daemon_pidfd_event(uint32_t rank, uint32_t slot, int task)
{
    struct attachment attachment = attachment_of(rank, slot);
    const struct ring_event event = {.tag = tag_of(&attachment)};

    attachment.peer.pid = (uint32_t)task;
    daemon_here.attachments[attachment.index] = &attachment;
    has_ended = false;
    attachment_event(&daemon_here, &event);
    return has_ended;
}
