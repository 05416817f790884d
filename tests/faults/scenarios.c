/* SPDX-License-Identifier: Apache-2.0 */
/* See scenarios.h. */
#include "tests/faults/scenarios.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/faults/page.h"

#define ALL (FAULT_CLIENT | FAULT_KEEPER | FAULT_DAEMON)
#define WAIT_TRIES 4000

static void fill_spec(struct kvw_spec *spec, const char *name, bool is_contiguous)
{
    kvw_spec_init(spec, name);
    struct kvw_spec_group *self = kvw_spec_add_group(spec, "self", 2, NULL);
    self->n_heads = 2;
    self->window_rows = 16;
    self->chunk_rows_max = 4;
    self->is_contiguous = is_contiguous;
    (void)!kvw_spec_add_plane(self, "k", KVW_F32, 16);
    (void)!kvw_spec_add_plane(self, "v", KVW_F32, 16);
    spec->lifetime = KVW_LIFETIME_KEEP;
}

static int create(struct kvw_client *client, const char *name, bool is_contiguous)
{
    struct kvw_spec spec;

    fill_spec(&spec, name, is_contiguous);
    int result = kvw_create(client, &spec, NULL, NULL);
    return result > 0 ? 0 : result;
}

int scene_begin(struct scene *scene)
{
    int error = create(scene->host.client, BASE, false);

    return error != 0 ? error : create(scene->host.client, TWICE, true);
}

static int ask_status(struct kvw_client *client, struct kvw_message_status_is *status)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message answer;

    int error = client_call(client, &request, &answer, NULL, 0, NULL, NULL);
    if (error == 0)
        *status = answer.status_is;
    return error;
}

int scene_status(struct scene *scene, struct kvw_message_status_is *status)
{
    return ask_status(scene->host.client, status);
}

void scene_leave(struct scene *scene)
{
    if (scene->cache != NULL)
        kvw_detach(scene->cache);
    if (scene->other != NULL)
        kvw_detach(scene->other);
    kvw_disconnect(scene->client);
    scene->client = NULL;
    scene->cache = NULL;
    scene->other = NULL;
}

static int connect_again(struct scene *scene)
{
    return scene->client != NULL
               ? 0
               : client_open(scene->host.socket, false, &scene->client);
}

static void prepare_client(struct scene *scene)
{
    (void)!connect_again(scene);
}

static void prepare_nothing(struct scene *scene)
{
    (void)scene;
}

/* ------------------------------------------------------------- caches ---------- */

static int run_create(struct scene *scene)
{
    return create(scene->client, "new", false);
}

static void undo_create(struct scene *scene)
{
    (void)!kvw_remove(scene->client, "new", 1);
    scene_leave(scene);
}

static void prepare_remove(struct scene *scene)
{
    prepare_client(scene);
    (void)!create(scene->client, "old", false);
}

static void prepare_remove_attached(struct scene *scene)
{
    prepare_remove(scene);
    (void)!kvw_attach(scene->client, "old", 0, NULL, &scene->cache);
}

/* Its answer may have been lost. */
static int run_remove(struct scene *scene)
{
    int error = kvw_remove(scene->client, "old", scene->cache != NULL);

    return error == -ENOENT ? 0 : error;
}

static void undo_remove(struct scene *scene)
{
    (void)!kvw_remove(scene->client, "old", 1);
    scene_leave(scene);
}

/* -------------------------------------------------------- attachments ---------- */

static int run_attach(struct scene *scene)
{
    return kvw_attach(scene->client, BASE, 0, NULL, &scene->cache);
}

static int run_attach_reader(struct scene *scene)
{
    return kvw_attach(scene->client, BASE, KVW_READER, NULL, &scene->cache);
}

static int run_attach_twice(struct scene *scene)
{
    return kvw_attach(scene->client, TWICE, 0, NULL, &scene->cache);
}

static void prepare_detach(struct scene *scene)
{
    prepare_client(scene);
    (void)!kvw_attach(scene->client, BASE, 0, NULL, &scene->cache);
}

static int run_detach(struct scene *scene)
{
    kvw_detach(scene->cache);
    scene->cache = NULL;
    return 0;
}

/* ------------------------------------------------------------- deaths ---------- */

/* A rank, a reader, and a cache that was removed under an owner. */
static void prepare_death(struct scene *scene)
{
    struct kvw_message_status_is status;

    prepare_client(scene);
    (void)!kvw_attach(scene->client, BASE, 0, NULL, &scene->cache);
    (void)!kvw_attach(scene->client, BASE, KVW_READER, NULL, &scene->other);
    if (scene_status(scene, &status) == 0) {
        scene->host.daemon = (pid_t)status.pid;
        scene->host.keeper = (pid_t)status.keeper_pid;
    }
}

static bool is_whole(const struct scene *scene,
                     const struct kvw_message_status_is *status)
{
    return status->pid != 0 && status->keeper_pid != 0 && status->n_caches == 2 &&
           status->n_attachments == 2 && scene->client->socket >= 0;
}

static int wait_for_another(struct scene *scene, uint32_t daemon, uint32_t keeper)
{
    struct kvw_message_status_is status = {0};
    int error = 0;

    for (int i = 0; i < WAIT_TRIES; i++) {
        error = ask_status(scene->client, &status);
        if (error == 0 && status.pid != daemon && status.keeper_pid != keeper)
            break;
        poll(NULL, 0, 5);
    }
    if (error != 0)
        return error;
    if (!is_whole(scene, &status))
        return fail(-ESTALE, "%u caches and %u attachments are left, keeper %u",
                    status.n_caches, status.n_attachments, status.keeper_pid);
    return 0;
}

static int run_daemon_death(struct scene *scene)
{
    uint32_t before = (uint32_t)scene->host.daemon;

    (void)kill(scene->host.daemon, SIGKILL);
    return wait_for_another(scene, before, 0);
}

static int run_keeper_death(struct scene *scene)
{
    uint32_t before = (uint32_t)scene->host.keeper;

    (void)kill(scene->host.keeper, SIGKILL);
    return wait_for_another(scene, 0, before);
}

/* -------------------------------------------------------------- start ---------- */

/* Another daemon, beside that of all the rest. */
static void start_path(const struct scene *scene, char path[128])
{
    (void)snprintf(path, 128, "%s/start", scene->host.folder);
}

static int run_start(struct scene *scene)
{
    char path[128];

    start_path(scene, path);
    return client_start(path, NULL, &scene->client);
}

/* Whether a process has that path among its words. */
static bool is_started(const char *path)
{
    char name[300];
    char text[512];
    bool is_any = false;

    DIR *folder = opendir("/proc");
    for (struct dirent *entry = folder == NULL ? NULL : readdir(folder);
         entry != NULL && !is_any; entry = readdir(folder)) {
        (void)snprintf(name, sizeof name, "/proc/%s/cmdline", entry->d_name);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        ssize_t n_bytes = fd < 0 ? 0 : read(fd, text, sizeof text);
        is_any =
            n_bytes > 0 && memmem(text, (size_t)n_bytes, path, strlen(path)) != NULL;
        if (fd >= 0)
            (void)close(fd);
    }
    if (folder != NULL)
        closedir(folder);
    return is_any;
}

static void stop(struct kvw_client *client)
{
    struct kvw_message request = {.type = KVW_MESSAGE_SHUTDOWN,
                                  .shutdown = {.is_forced = 1}};
    struct kvw_message answer;

    (void)!client_call(client, &request, &answer, NULL, 0, NULL, NULL);
}

/* Nothing is left of it: neither process nor socket. A start that failed here may have had
 * its process wait for the lock, and that one serves as soon as the other has ended. */
static void undo_start(struct scene *scene)
{
    char path[128];
    int tries = 0;

    start_path(scene, path);
    if (scene->client == NULL) {
        scene->wrong = "no daemon was started";
        return;
    }
    stop(scene->client);
    scene_leave(scene);
    for (; tries < WAIT_TRIES && is_started(path); tries++) {
        struct kvw_client *client;
        poll(NULL, 0, 5);
        if (tries % 100 == 99 && client_open(path, false, &client) == 0) {
            stop(client);
            kvw_disconnect(client);
        }
    }
    if (tries == WAIT_TRIES)
        scene->wrong = "a process of the start is left";
    else if (access(path, F_OK) == 0)
        scene->wrong = "the socket of the start is left";
}

/* ------------------------------------------------------------------------------- */

const struct scenario scenarios[] = {
    {.name = "connect",
     .roles = FAULT_CLIENT | FAULT_DAEMON,
     .prepare = prepare_nothing,
     .run = connect_again,
     .undo = scene_leave},
    {.name = "create",
     .roles = ALL,
     .prepare = prepare_client,
     .run = run_create,
     .undo = undo_create},
    {.name = "attach a rank",
     .roles = ALL,
     .prepare = prepare_client,
     .run = run_attach,
     .undo = scene_leave},
    {.name = "attach a reader",
     .roles = ALL,
     .prepare = prepare_client,
     .run = run_attach_reader,
     .undo = scene_leave},
    {.name = "attach, contiguous",
     .roles = FAULT_CLIENT,
     .prepare = prepare_client,
     .run = run_attach_twice,
     .undo = scene_leave},
    {.name = "detach",
     .roles = ALL,
     .prepare = prepare_detach,
     .run = run_detach,
     .undo = scene_leave},
    {.name = "remove",
     .roles = ALL,
     .prepare = prepare_remove,
     .run = run_remove,
     .undo = undo_remove},
    {.name = "remove under an owner",
     .roles = ALL,
     .prepare = prepare_remove_attached,
     .run = run_remove,
     .undo = undo_remove},
    {.name = "adopt",
     .roles = ALL,
     .replaces_daemon = true,
     .prepare = prepare_death,
     .run = run_daemon_death,
     .undo = scene_leave},
    {.name = "start",
     .roles = ALL,
     .is_slow = true,
     .prepare = prepare_nothing,
     .run = run_start,
     .undo = undo_start},
    {.name = "replace the keeper",
     .roles = FAULT_KEEPER | FAULT_DAEMON,
     .replaces_keeper = true,
     .prepare = prepare_death,
     .run = run_keeper_death,
     .undo = scene_leave},
};

const uint32_t n_scenarios = sizeof scenarios / sizeof scenarios[0];
