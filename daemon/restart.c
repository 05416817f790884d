/* SPDX-License-Identifier: Apache-2.0 */
/* See restart.h. keeper.h tells the keeper's part of it. */
#include "daemon/restart.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cache.h"
#include "daemon/request.h"
#include "daemon/stamp.h"
#include "proto/base/cleanup.h"

static int check_restart(const struct daemon *daemon, const struct client *client,
                         struct kvw_refusal *refusal)
{
    if (client->peer.uid != 0 && client->peer.uid != geteuid())
        return refuse(refusal, -EACCES, geteuid(), client->peer.uid,
                      "the daemon belongs to user %u: user %u may not restart it",
                      geteuid(), client->peer.uid);
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        const struct cache *cache = daemon->caches[i];
        if (cache != NULL && cache->state == CACHE_CREATING)
            return refuse(refusal, -EBUSY, cache->total_bytes, cache->done_bytes,
                          "cache '%s' is still being created; try again",
                          cache->meta.name);
    }
    return 0;
}

int restart_serve(struct daemon *daemon, struct client *client,
                  const struct kvw_message *request, struct reply *reply,
                  struct kvw_refusal *refusal)
{
    struct kvw_message_restarting *restarting = &reply->message.restarting;
    bool is_done = request->restart.daemon_epoch != daemon->epoch;

    if (is_done && daemon->words[0] != 0)
        return refuse(refusal, -ENOEXEC, 0, 0, "%s", daemon->words);
    reply->message.type = KVW_MESSAGE_RESTARTING;
    *restarting = (struct kvw_message_restarting){.is_done = is_done,
                                                  .pid = (uint32_t)getpid(),
                                                  .keeper_pid = daemon->keeper_pid,
                                                  .daemon_epoch = daemon->epoch};
    memcpy(restarting->version, DAEMON_VERSION, sizeof DAEMON_VERSION);
    if (is_done)
        return 0;
    int error = check_restart(daemon, client, refusal);
    if (error == 0)
        error = daemon->store->restart(daemon, refusal);
    if (error != 0)
        return error;
    log_line(&daemon->log, LOG_INFO, "restarting by pid %u caches %u attachments %u",
             client->peer.pid, daemon->n_caches, daemon->n_attachments);
    daemon->is_leaving = true;
    daemon_stop(daemon, daemon->options->is_systemd ? EXIT_CODE_RESTART : EXIT_CODE_OK);
    return 0;
}

int restart_status(struct daemon *daemon, struct client *client,
                   const struct kvw_message *request, struct reply *reply,
                   struct kvw_refusal *refusal)
{
    char *degraded = reply->message.status_is.degraded;
    char others[sizeof reply->message.status_is.degraded];

    int error = report_status(daemon, client, request, reply, refusal);
    if (error != 0 || daemon->words[0] == 0)
        return error;
    memcpy(others, degraded, sizeof others);
    int n_bytes = snprintf(degraded, sizeof others, "%s", daemon->words);
    if (others[0] != 0 && n_bytes + 2 < (int)sizeof others)
        (void)snprintf(degraded + n_bytes, sizeof others - (size_t)n_bytes, "; %.*s",
                       (int)sizeof others - n_bytes - 3, others);
    return 0;
}

int restart_permits(const struct daemon *daemon, const struct kvw_message *request,
                    struct kvw_refusal *refusal)
{
    if (!daemon->is_holding || request->type == KVW_MESSAGE_HELLO ||
        request->type == KVW_MESSAGE_STATUS || request->type == KVW_MESSAGE_RESTART)
        return 0;
    if (request->type != KVW_MESSAGE_SHUTDOWN)
        return refuse(refusal, -EPROTO, 0, 0, "%s", daemon->words);
    if (!request->shutdown.is_forced)
        return refuse(refusal, -EBUSY, 0, 0,
                      "caches of another layout are kept and would be lost; force it");
    return 0;
}

static bool is_empty(const struct store_entry *entries)
{
    for (; entries != NULL; entries = entries->next) {
        if (strncmp(entries->name, "cache.", 6) == 0 ||
            strncmp(entries->name, "removed.", 8) == 0)
            return false;
    }
    return true;
}

int restart_judge(struct daemon *daemon, struct store_entry *entries)
{
    struct kvw_refusal refusal;
    const struct store_entry *refused = store_entry_find(entries, "refused");

    daemon->stamp_fd = store_entry_take(entries, "layout");
    if (refused != NULL && refused->n_fds == 1) {
        stamp_read_words(refused->fds[0], refusal.text, sizeof refusal.text);
        (void)snprintf(daemon->words, sizeof daemon->words,
                       "the restart failed, the version before goes on: %.*s",
                       (int)sizeof daemon->words - 64, refusal.text);
        log_line(&daemon->log, LOG_WARN, "%s", daemon->words);
    }
    int error = stamp_check(daemon->stamp_fd, &refusal);
    if (error == 0)
        return 0;
    if (error != -EPROTO) {
        log_line(&daemon->log, LOG_ERROR, "%s", refusal.text);
        return error;
    }
    if (is_empty(entries)) {
        kvw_fd_cleanup(&daemon->stamp_fd);
        return 0;
    }
    log_line(&daemon->log, LOG_ERROR, "%s", refusal.text);
    if (store_entry_find(entries, "previous") != NULL) {
        KVW_CLEANUP(kvw_fd_cleanup)
        int words = stamp_words(refusal.text);
        if (words >= 0 && daemon->store->put(daemon, "refused", &words, 1) != 0)
            log_line(&daemon->log, LOG_ERROR, "the keeper does not take the words");
        return -EPROTO;
    }
    daemon->is_holding = true;
    (void)snprintf(daemon->words, sizeof daemon->words,
                   "%.*s: they stay as they are; install that version and run "
                   "kvwheel restart, or kvwheel stop --force, which loses them",
                   (int)sizeof daemon->words - 128, refusal.text);
    return 0;
}

int restart_adopted(struct daemon *daemon)
{
    if (daemon->stamp_fd >= 0)
        return 0;
    daemon->stamp_fd = stamp_make();
    if (daemon->stamp_fd < 0)
        return daemon->stamp_fd;
    return daemon->store->put(daemon, "layout", &daemon->stamp_fd, 1);
}
