/* SPDX-License-Identifier: Apache-2.0 */
/* See offer.h. call.c decides when. */
#include "client/offer.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "client/wire.h"

#define N_SEGMENTS 3

/* A test's cache without a mapping has no uuid. */
void offer_identify(const struct kvw_cache *cache, struct kvw_message *resume)
{
    const struct kvw_control_header *header = (const void *)cache->control;

    if (header == NULL)
        return;
    resume->resume.uuid = header->uuid;
    resume->resume.uuid_bytes = sizeof header->uuid;
}

bool offer_request(const struct kvw_cache *cache, struct kvw_message *request)
{
    request->offer = (struct kvw_message_offer){.attachment = cache->attachment,
                                                .rank = cache->rank,
                                                .slot = cache->slot,
                                                .incarnation = cache->incarnation};
    return cache->control != NULL && cache->fds[0] >= 0;
}

void offer_conclude(struct kvw_cache *cache, const struct kvw_message *answer)
{
    if (answer->type == KVW_MESSAGE_OFFERED) {
        cache->cache_id = answer->offered.cache;
        cache->attachment = answer->offered.attachment;
        cache->is_lost = false;
        return;
    }
    switch (answer->refused.error) {
    case EINVAL:
    case EACCES:
    case EEXIST:
    case ERANGE:
    case ESTALE:
        cache->attachment = 0;
        break;
    default: /* nobody who may has brought the cache yet; no room, or no store, now */
        break;
    }
}

int offer_send(int socket, const struct kvw_message *message, const int *segments,
               uint64_t deadline_ms)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(N_SEGMENTS * sizeof(int))];
    } control = {0};
    uint8_t packet[256];
    int n_bytes = message_encode(message, packet, sizeof packet);
    struct iovec body = {.iov_base = packet, .iov_len = (size_t)n_bytes};
    struct msghdr head = {.msg_iov = &body,
                          .msg_iovlen = 1,
                          .msg_control = control.bytes,
                          .msg_controllen = sizeof control.bytes};

    if (n_bytes < 0)
        return n_bytes;
    struct cmsghdr *part = CMSG_FIRSTHDR(&head);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(N_SEGMENTS * sizeof(int));
    memcpy(CMSG_DATA(part), segments, N_SEGMENTS * sizeof(int));
    while (sendmsg(socket, &head, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return -ECONNRESET;
        int result = wire_wait(socket, POLLOUT, errno, deadline_ms);
        if (result < 0)
            return result;
    }
    return 0;
}
