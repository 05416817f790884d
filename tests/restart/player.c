/* SPDX-License-Identifier: Apache-2.0 */
/* See player.h. One thread receives, reaps and starts. */
#include "tests/restart/player.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS 20000000000ull
#define NAMES_BYTES 65536

extern char **environ;

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* -------------------------------------------------------------- starting ---------- */

/* The listener, then the store from its end: the order says nothing. */
static void pass(const struct player *player, int *fds, char *names)
{
    size_t at = (size_t)snprintf(names, NAMES_BYTES, "LISTEN_FDNAMES=kvwheeld.socket");

    fds[0] = player->listener;
    for (uint32_t i = 0; i < player->n_stored; i++) {
        uint32_t from = player->n_stored - 1 - i;
        fds[1 + i] = player->stored[from].fd;
        at += (size_t)snprintf(names + at, NAMES_BYTES - at, ":%s",
                               player->stored[from].name);
    }
}

static void become(const struct player *player, const int *fds, uint32_t n_fds,
                   char **variables)
{
    char *argv[] = {"kvwheeld", "--systemd", "--socket", (char *)player->socket, NULL};
    char pid[32];
    char path[128];

    (void)snprintf(path, sizeof path, "%s/log", player->folder);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (log >= 0)
        (void)dup2(log, STDERR_FILENO);
    /* All of them are above the numbers that they get. */
    for (uint32_t i = 0; i < n_fds; i++) {
        if (dup2(fds[i], 3 + (int)i) < 0)
            _exit(126);
    }
    (void)syscall(SYS_close_range, 3 + n_fds, ~0u, 0);
    (void)snprintf(pid, sizeof pid, "LISTEN_PID=%d", getpid());
    variables[0] = pid;
    (void)execve(player->program, argv, variables);
    _exit(127);
}

static void start(struct player *player)
{
    static char names[NAMES_BYTES];
    char *variables[512] = {NULL};
    char count[32];
    char notify[128];
    char store[32];
    int fds[PLAYER_FDS_MAX + 1];
    uint32_t n = 0;

    pass(player, fds, names);
    (void)snprintf(count, sizeof count, "LISTEN_FDS=%u", 1 + player->n_stored);
    (void)snprintf(notify, sizeof notify, "NOTIFY_SOCKET=%s", player->notify);
    variables[n++] = ""; /* LISTEN_PID comes here */
    variables[n++] = count;
    variables[n++] = notify;
    variables[n++] = names;
    if (player->fdstore != NULL) {
        (void)snprintf(store, sizeof store, "FDSTORE=%s", player->fdstore);
        variables[n++] = store;
    }
    for (char **v = environ; *v != NULL && n < 511; v++)
        variables[n++] = *v;
    player->n_started++;
    player->pid = fork();
    if (player->pid == 0)
        become(player, fds, 1 + player->n_stored, variables);
}

/* --------------------------------------------------------------- messages ---------- */

static bool is_known(const struct player *player, int fd)
{
    pid_t self = getpid();

    for (uint32_t i = 0; i < player->n_stored; i++) {
        if (syscall(SYS_kcmp, self, self, KCMP_FILE, fd, player->stored[i].fd) == 0)
            return true;
    }
    return false;
}

static bool is_name(const char *name)
{
    if (strlen(name) > 255)
        return false;
    for (; *name != 0; name++) {
        if (*name < ' ' || *name > '~' || *name == ':')
            return false;
    }
    return true;
}

/* Above the numbers that start() deals out. */
static int move_up(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3 + PLAYER_FDS_MAX + 10);

    close(fd);
    return moved;
}

static void store(struct player *player, const char *name, int fd)
{
    if (!is_name(name) || player->n_stored == PLAYER_FDS_MAX) {
        player->n_wrong++;
        close(fd);
    } else if (is_known(player, fd)) {
        close(fd);
    } else {
        snprintf(player->stored[player->n_stored].name, 256, "%s", name);
        player->stored[player->n_stored++].fd = move_up(fd);
    }
}

static void drop(struct player *player, const char *name)
{
    for (uint32_t i = 0; i < player->n_stored; i++) {
        if (strcmp(player->stored[i].name, name) != 0)
            continue;
        close(player->stored[i].fd);
        player->stored[i--] = player->stored[--player->n_stored];
    }
}

/* The value of a line `key=value`, or NULL. */
static const char *value_of(const char *text, const char *key, char *value)
{
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        line += strlen(key);
        snprintf(value, 512, "%.*s", (int)strcspn(line, "\n"), line);
        return value;
    }
    return NULL;
}

static void take(struct player *player, const char *text, int fd)
{
    char name[512] = "stored";
    char value[512];

    if (value_of(text, "READY=1", value) != NULL)
        player->n_ready++;
    if (value_of(text, "STATUS=", value) != NULL)
        memcpy(player->status, value, sizeof player->status);
    (void)value_of(text, "FDNAME=", name);
    if (value_of(text, "FDSTOREREMOVE=1", value) != NULL)
        drop(player, name);
    if (value_of(text, "FDSTORE=1", value) == NULL)
        return;
    if (fd < 0 || value_of(text, "FDPOLL=0", value) == NULL)
        player->n_wrong++;
    else
        store(player, name, fd);
}

static void receive(struct player *player)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char text[1024];
    struct iovec body = {text, sizeof text - 1};
    struct msghdr head = {.msg_iov = &body,
                          .msg_iovlen = 1,
                          .msg_control = control.bytes,
                          .msg_controllen = sizeof control.bytes};
    int fd = -1;

    ssize_t n_bytes = recvmsg(player->notify_fd, &head, MSG_CMSG_CLOEXEC);
    if (n_bytes < 0)
        return;
    text[n_bytes] = 0;
    struct cmsghdr *part = CMSG_FIRSTHDR(&head);
    if (part != NULL && part->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(part), sizeof fd);
    if (strstr(text, "FDSTORE=1") == NULL && fd >= 0) {
        close(fd); /* BARRIER=1 */
        fd = -1;
    }
    take(player, text, fd);
}

static void reap(struct player *player)
{
    int status;

    if (player->pid == 0 || waitpid(player->pid, &status, WNOHANG) != player->pid)
        return;
    player->pid = 0;
    player->exit_status = status;
    if (!player->is_holding && (WIFSIGNALED(status) || WEXITSTATUS(status) == 7))
        start(player);
}

static void *play(void *context)
{
    struct player *player = context;
    struct pollfd message = {.fd = player->notify_fd, .events = POLLIN};

    for (bool is_stopping = false; !is_stopping;) {
        bool is_there = poll(&message, 1, 1) > 0;
        pthread_mutex_lock(&player->mutex);
        is_stopping = player->is_stopping;
        if (is_there)
            receive(player);
        else
            reap(player); /* after all that it has said, as systemd does */
        pthread_mutex_unlock(&player->mutex);
    }
    return NULL;
}

/* --------------------------------------------------------------- outside ---------- */

static int bind_at(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

void player_start(struct player *player, const char *program, const char *fdstore)
{
    *player = (struct player){.folder = "/tmp/kvwheel-player-XXXXXX",
                              .fdstore = fdstore,
                              .mutex = PTHREAD_MUTEX_INITIALIZER};
    cr_assert_not_null(mkdtemp(player->folder));
    snprintf(player->socket, sizeof player->socket, "%s/s", player->folder);
    snprintf(player->notify, sizeof player->notify, "%s/notify", player->folder);
    snprintf(player->program, sizeof player->program, "%s", program);
    int listener = bind_at(player->socket, SOCK_SEQPACKET);
    cr_assert_eq(listen(listener, 128), 0);
    player->listener = move_up(listener);
    player->notify_fd = bind_at(player->notify, SOCK_DGRAM);
    start(player);
    cr_assert_eq(pthread_create(&player->thread, NULL, play, player), 0);
}

void player_resume(struct player *player)
{
    pthread_mutex_lock(&player->mutex);
    player->is_holding = false;
    start(player);
    pthread_mutex_unlock(&player->mutex);
}

/* A word under the mutex. */
static uint32_t look(struct player *player, const uint32_t *word)
{
    pthread_mutex_lock(&player->mutex);
    uint32_t value = *word;
    pthread_mutex_unlock(&player->mutex);
    return value;
}

uint32_t player_count(struct player *player)
{
    return look(player, &player->n_stored);
}

pid_t player_pid(struct player *player)
{
    pthread_mutex_lock(&player->mutex);
    pid_t pid = player->pid;
    pthread_mutex_unlock(&player->mutex);
    return pid;
}

void player_await_ready(struct player *player, uint32_t n)
{
    uint64_t deadline_ns = now_ns() + WAIT_NS;

    while (look(player, &player->n_ready) < n) {
        cr_assert_lt(now_ns(), deadline_ns, "the service is not ready");
        poll(NULL, 0, 1);
    }
}

int player_await_end(struct player *player)
{
    uint64_t deadline_ns = now_ns() + WAIT_NS;

    while (player_pid(player) != 0) {
        cr_assert_lt(now_ns(), deadline_ns, "the service does not end");
        poll(NULL, 0, 1);
    }
    return player->exit_status;
}

static void show_reports(const struct player *player)
{
    char path[128];
    char line[512];

    snprintf(path, sizeof path, "%s/log", player->folder);
    FILE *log = fopen(path, "re");
    while (log != NULL && fgets(line, sizeof line, log) != NULL) {
        if (strstr(line, "Sanitizer") != NULL || strstr(line, "bug:") != NULL ||
            strstr(line, "runtime error") != NULL || getenv("KVW_SHOW_LOG") != NULL)
            fputs(line, stderr);
    }
    if (log != NULL)
        fclose(log);
}

void player_stop(struct player *player)
{
    char command[128];

    pthread_mutex_lock(&player->mutex);
    player->is_holding = true;
    if (player->pid != 0)
        kill(player->pid, SIGTERM);
    pthread_mutex_unlock(&player->mutex);
    (void)player_await_end(player);
    pthread_mutex_lock(&player->mutex);
    player->is_stopping = true;
    pthread_mutex_unlock(&player->mutex);
    pthread_join(player->thread, NULL);
    cr_expect_eq(player->n_wrong, 0, "messages that systemd would not take");
    for (uint32_t i = 0; i < player->n_stored; i++)
        close(player->stored[i].fd);
    close(player->listener);
    close(player->notify_fd);
    show_reports(player);
    snprintf(command, sizeof command, "rm -rf '%s'", player->folder);
    cr_assert_eq(system(command), 0);
}
