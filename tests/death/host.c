/* SPDX-License-Identifier: Apache-2.0 */
/* See host.h. */
#include "tests/death/host.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/start.h"

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

int host_start(struct host *host)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message answer;
    struct start start;
    char program[512];

    if (getenv("KVW_BIN") != NULL) {
        snprintf(program, sizeof program, "%s/kvwheeld", getenv("KVW_BIN"));
        setenv("KVWHEELD", program, 1);
    }
    snprintf(host->folder, sizeof host->folder, "/tmp/kvwheel-test-XXXXXX");
    if (mkdtemp(host->folder) == NULL)
        return -1;
    snprintf(host->socket, sizeof host->socket, "%s/s", host->folder);
    if (start_daemon(host->socket, NULL, &start) != 0)
        return -1;
    start_fini(&start);
    int error = -1;
    for (int tries = 0; tries < 500 && error != 0; tries++) {
        error = client_open(host->socket, false, &host->client);
        if (error != 0)
            poll(NULL, 0, 20); /* the socket may not be there yet */
    }
    if (error != 0 || ask(host, &request, &answer) != 0)
        return -1;
    host->daemon = (pid_t)answer.status_is.pid;
    host->keeper = (pid_t)answer.status_is.keeper_pid;
    running = host;
    owner = getpid();
    return atexit(stop_at_exit);
}

static bool is_gone(pid_t pid)
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
    bool is_stopped = ask(host, &request, &answer) == 0;
    kvw_disconnect(host->client);
    is_stopped = is_gone(host->daemon) && is_stopped;
    is_stopped = is_gone(host->keeper) && is_stopped;
    snprintf(command, sizeof command, "rm -rf '%s'", host->folder);
    return system(command) == 0 && is_stopped;
}

static uint32_t count_fds(pid_t pid)
{
    char path[64];
    uint32_t n_fds = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return 0;
    while (readdir(folder) != NULL)
        n_fds++;
    closedir(folder);
    return n_fds;
}

static uint32_t count_maps(pid_t pid)
{
    char path[64];
    uint32_t n_lines = 0;

    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    for (int byte = fgetc(file); byte != EOF; byte = fgetc(file))
        n_lines += byte == '\n';
    fclose(file);
    return n_lines;
}

void host_look(struct host *host, const char *cache, struct holdings *holdings)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message status = {0};
    struct kvw_message stated = {0};

    (void)!ask(host, &request, &status);
    request = (struct kvw_message){.type = KVW_MESSAGE_STAT};
    snprintf(request.stat.name, sizeof request.stat.name, "%s", cache);
    (void)!ask(host, &request, &stated);
    memset(holdings, 0, sizeof *holdings);
    *holdings = (struct holdings){
        .n_caches = status.status_is.n_caches,
        .n_attachments = status.status_is.n_attachments,
        .n_clients = status.status_is.n_clients,
        .n_owned = stated.stated.n_owned,
        .n_daemon_fds = count_fds(host->daemon),
        .n_daemon_maps = count_maps(host->daemon),
        .n_keeper_fds = count_fds(host->keeper),
    };
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
    fprintf(
        stderr,
        "caches %u, were %u; attachments %u, %u; clients %u, %u; owned ranks %u, %u; "
        "the daemon's descriptors %u, %u; mappings %u, %u; the keeper's descriptors "
        "%u, %u\n",
        now.n_caches, start->n_caches, now.n_attachments, start->n_attachments,
        now.n_clients, start->n_clients, now.n_owned, start->n_owned, now.n_daemon_fds,
        start->n_daemon_fds, now.n_daemon_maps, start->n_daemon_maps, now.n_keeper_fds,
        start->n_keeper_fds);
    return false;
}
