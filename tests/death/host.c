/* SPDX-License-Identifier: Apache-2.0 */
/* See host.h. */
#include "tests/death/host.h"

#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/start.h"
#include "tests/daemon/proc.h"

#define MEMFD "/memfd:kvwheel:"
#define MEMFDS_MAX 1024

static struct host *running; /* to be stopped at exit() of this process */
static pid_t owner;

static void stop_at_exit(void)
{
    if (running != NULL && getpid() == owner)
        (void)host_stop(running);
}

static int ask(struct host *host, struct kvw_message *request,
               struct kvw_message *answer)
{
    return client_call(host->client, request, answer, NULL, 0, NULL, NULL);
}

static bool ask_status(struct host *host, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};

    if (ask(host, &request, answer) != 0)
        return false;
    host->daemon = (pid_t)answer->status_is.pid;
    host->keeper = (pid_t)answer->status_is.keeper_pid;
    return true;
}

static int begin(struct host *host)
{
    struct kvw_message answer;
    struct start start;
    int error = -1;

    if (start_daemon(host->socket, NULL, &start) != 0)
        return -1;
    start_fini(&start);
    for (int tries = 0; tries < 500 && error != 0; tries++) {
        error = host->client == NULL ? client_open(host->socket, false, &host->client)
                                     : -!ask_status(host, &answer);
        if (error != 0)
            poll(NULL, 0, 20); /* the socket may not be there yet */
    }
    return error != 0 || !ask_status(host, &answer) ? -1 : 0;
}

int host_start(struct host *host)
{
    char program[512];

    if (getenv("KVW_BIN") != NULL) {
        snprintf(program, sizeof program, "%s/kvwheeld", getenv("KVW_BIN"));
        setenv("KVWHEELD", program, 1);
    }
    *host = (struct host){.folder = "/tmp/kvwheel-test-XXXXXX"};
    if (mkdtemp(host->folder) == NULL)
        return -1;
    snprintf(host->socket, sizeof host->socket, "%s/s", host->folder);
    if (begin(host) != 0)
        return -1;
    running = host;
    owner = getpid();
    return atexit(stop_at_exit);
}

int host_start_again(struct host *host)
{
    return begin(host);
}

bool host_is_gone(pid_t pid)
{
    struct pollfd gone = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

    if (gone.fd < 0)
        return true;
    bool has_ended = poll(&gone, 1, 10000) == 1;
    close(gone.fd);
    return has_ended;
}

bool host_stop(struct host *host)
{
    struct kvw_message request = {.type = KVW_MESSAGE_SHUTDOWN,
                                  .shutdown = {.is_forced = 1}};
    struct kvw_message answer;
    char command[128];

    running = NULL;
    bool is_stopped = ask_status(host, &answer) && ask(host, &request, &answer) == 0;
    kvw_disconnect(host->client);
    is_stopped = host_is_gone(host->daemon) && is_stopped;
    is_stopped = host_is_gone(host->keeper) && is_stopped;
    snprintf(command, sizeof command, "rm -rf '%s'", host->folder);
    return system(command) == 0 && is_stopped;
}

/* ------------------------------------------------------ holdings ---------- */

/* Memfds of caches, by inode. */
struct memfds {
    uint32_t n;
    ino_t inode[MEMFDS_MAX];
};

static void note_memfd(struct memfds *memfds, const char *path)
{
    struct stat status;
    char target[64];

    ssize_t n_bytes = readlink(path, target, sizeof target);
    if (n_bytes < (ssize_t)sizeof MEMFD - 1 ||
        memcmp(target, MEMFD, sizeof MEMFD - 1) != 0 || stat(path, &status) != 0)
        return;
    for (uint32_t i = 0; i < memfds->n; i++)
        if (memfds->inode[i] == status.st_ino)
            return;
    if (memfds->n < MEMFDS_MAX)
        memfds->inode[memfds->n++] = status.st_ino;
}

static uint64_t count_fds(pid_t pid, struct memfds *memfds)
{
    char path[300];
    uint64_t n_fds = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return 0;
    for (struct dirent *entry = readdir(folder); entry != NULL;
         entry = readdir(folder)) {
        n_fds++;
        snprintf(path, sizeof path, "/proc/%d/fd/%.255s", pid, entry->d_name);
        note_memfd(memfds, path);
    }
    closedir(folder);
    return n_fds;
}

static uint64_t count_maps(pid_t pid)
{
    char line[512];
    uint64_t n_maps = 0;

    snprintf(line, sizeof line, "/proc/%d/maps", pid);
    FILE *file = fopen(line, "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        n_maps += strstr(line, MEMFD) != NULL;
    fclose(file);
    return n_maps;
}

void host_look(struct host *host, const char *cache, struct holdings *holdings)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STAT};
    struct kvw_message status = {0};
    struct kvw_message stated = {0};
    struct memfds memfds = {0};

    (void)ask_status(host, &status);
    snprintf(request.stat.name, sizeof request.stat.name, "%s", cache);
    (void)!ask(host, &request, &stated);
    (void)proc_settle(host->daemon);
    *holdings =
        (struct holdings){.of = {
                              [HOLD_CACHES] = status.status_is.n_caches,
                              [HOLD_BYTES] = status.status_is.bytes_used,
                              [HOLD_ATTACHMENTS] = status.status_is.n_attachments,
                              [HOLD_CLIENTS] = status.status_is.n_clients,
                              [HOLD_OWNED] = stated.stated.n_owned,
                              [HOLD_DAEMON_FDS] = count_fds(host->daemon, &memfds),
                              [HOLD_DAEMON_MAPS] = count_maps(host->daemon),
                              [HOLD_KEEPER_FDS] = count_fds(host->keeper, &memfds),
                          }};
    if (host->worker != 0) {
        holdings->of[HOLD_WORKER_FDS] = count_fds(host->worker, &memfds);
        holdings->of[HOLD_WORKER_MAPS] = count_maps(host->worker);
    }
    holdings->of[HOLD_MEMFDS] = memfds.n;
}

static void say_differences(const struct holdings *now, const struct holdings *start)
{
    static const char *const names[HOLDINGS] = {
        [HOLD_CACHES] = "caches",
        [HOLD_BYTES] = "bytes",
        [HOLD_ATTACHMENTS] = "attachments",
        [HOLD_CLIENTS] = "clients",
        [HOLD_OWNED] = "owned ranks",
        [HOLD_DAEMON_FDS] = "the daemon's descriptors",
        [HOLD_DAEMON_MAPS] = "the daemon's mappings",
        [HOLD_KEEPER_FDS] = "the keeper's descriptors",
        [HOLD_WORKER_FDS] = "the worker's descriptors",
        [HOLD_WORKER_MAPS] = "the worker's mappings",
        [HOLD_MEMFDS] = "memfds",
    };

    for (uint32_t i = 0; i < HOLDINGS; i++)
        if (now->of[i] != start->of[i])
            fprintf(stderr, "%s: %" PRIu64 ", were %" PRIu64 "\n", names[i], now->of[i],
                    start->of[i]);
}

bool host_returns_to(struct host *host, const char *cache, const struct holdings *start)
{
    struct holdings now;

    for (int tries = 0; tries < 5000; tries++) {
        host_look(host, cache, &now);
        if (memcmp(&now, start, sizeof now) == 0)
            return true;
        poll(NULL, 0, 1);
    }
    say_differences(&now, start);
    return false;
}

bool host_renew_keeper(struct host *host)
{
    struct kvw_message answer;

    if (!ask_status(host, &answer))
        return false;
    const pid_t old = host->keeper;
    (void)kill(old, SIGKILL);
    for (int tries = 0; tries < 5000; tries++) {
        if (ask_status(host, &answer) && host->keeper != old && host->keeper != 0)
            return true;
        poll(NULL, 0, 1);
    }
    fprintf(stderr, "the keeper %d is not replaced\n", old);
    return false;
}
