/* SPDX-License-Identifier: Apache-2.0 */
/* See nodes_server.h. */
#include "bench/nodes_server.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 10
#define START_MS 5000 /* at most until a server listens */

static const char *const names[SERVER_KINDS] = {"redis", "memcached"};

struct server {
    enum server_kind kind;
    int fd;
    int rank;         /* part of its keys */
    char buffer[256]; /* of what was received beyond a line */
    size_t n_buffered;
};

struct servers {
    char folder[64];
    pid_t pid[SERVER_KINDS]; /* 0: not started here */
    struct server *server[SERVER_KINDS];
};

/* ------------------------------------------------------------------- start -------- */

static void path_of(const struct servers *servers, enum server_kind kind, char *path,
                    size_t n_bytes)
{
    (void)snprintf(path, n_bytes, "%s/%s.sock", servers->folder, names[kind]);
}

/* In the child. Ends with its parent. */
static _Noreturn void become(enum server_kind kind, char *path, char *folder,
                             pid_t parent)
{
    const struct passwd *user = getpwuid(geteuid());
    char *user_name = user == NULL ? "root" : user->pw_name;
    char *const redis[] = {"redis-server", "--port", "0",    "--unixsocket",
                           path,           "--save", "",     "--appendonly",
                           "no",           "--dir",  folder, NULL};
    char *const memcached[] = {"memcached", "-s",  path, "-u",  user_name,
                               "-m",        "512", "-I", "64m", NULL};
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 ||
        prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
        _exit(127);
    for (int fd = 3; fd < 1024; fd++) /* none of MPI's */
        (void)close(fd);
    (void)execvp(kind == SERVER_REDIS ? redis[0] : memcached[0],
                 kind == SERVER_REDIS ? redis : memcached);
    _exit(127);
}

static int dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int error = -errno;
    (void)close(fd);
    return error;
}

/* Until it listens, or has ended (not installed). */
static bool is_up(pid_t *pid, const char *path)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (int ms = 0; ms < START_MS; ms++) {
        int fd = dial(path);
        if (fd >= 0) {
            (void)close(fd);
            return true;
        }
        if (waitpid(*pid, NULL, WNOHANG) == *pid) {
            *pid = 0;
            return false;
        }
        (void)nanosleep(&pause, NULL);
    }
    return false;
}

static bool start(struct servers *servers, enum server_kind kind)
{
    char path[96];
    const pid_t parent = getpid();

    path_of(servers, kind, path, sizeof path);
    servers->pid[kind] = fork();
    if (servers->pid[kind] == 0)
        become(kind, path, servers->folder, parent);
    return servers->pid[kind] > 0 && is_up(&servers->pid[kind], path);
}

static void connect_to(struct nodes *nodes, enum server_kind kind)
{
    char path[96];
    struct server *server = nodes_memory(nodes, sizeof *server);

    path_of(nodes->servers, kind, path, sizeof path);
    *server = (struct server){.kind = kind, .fd = dial(path), .rank = nodes->rank};
    nodes_must(nodes, names[kind], server->fd);
    nodes->servers->server[kind] = server;
}

void servers_start(struct nodes *nodes)
{
    struct servers *servers = nodes_memory(nodes, sizeof *servers);

    nodes->servers = servers;
    (void)snprintf(servers->folder, sizeof servers->folder, "/tmp/kvw-bench.XXXXXX");
    if (nodes->node_rank == 0 && mkdtemp(servers->folder) == NULL)
        nodes_fail(nodes, "a temporary folder", -errno);
    (void)MPI_Bcast(servers->folder, sizeof servers->folder, MPI_CHAR, 0, nodes->node);
    for (uint32_t kind = 0; kind < SERVER_KINDS; kind++) {
        int is_there = nodes->node_rank != 0 || start(servers, kind);
        (void)MPI_Allreduce(MPI_IN_PLACE, &is_there, 1, MPI_INT, MPI_MIN, nodes->world);
        if (is_there)
            connect_to(nodes, kind);
        else
            nodes_absent(nodes, names[kind], "it is not installed on every node");
    }
}

void servers_stop(struct nodes *nodes)
{
    struct servers *servers = nodes->servers;
    char path[96];

    if (servers == NULL)
        return;
    for (uint32_t kind = 0; kind < SERVER_KINDS; kind++) {
        if (servers->server[kind] != NULL)
            (void)close(servers->server[kind]->fd);
        free(servers->server[kind]);
        if (servers->pid[kind] > 0) {
            (void)kill(servers->pid[kind], SIGKILL);
            (void)waitpid(servers->pid[kind], NULL, 0);
        }
        path_of(servers, kind, path, sizeof path);
        (void)unlink(path);
    }
    if (nodes->node_rank == 0)
        (void)rmdir(servers->folder);
    free(servers);
    nodes->servers = NULL;
}

struct server *server_of(const struct nodes *nodes, enum server_kind kind)
{
    return nodes->servers == NULL ? NULL : nodes->servers->server[kind];
}

/* ---------------------------------------------------------------- commands -------- */

static int send_all(struct server *server, struct iovec *part, int n_parts)
{
    while (n_parts > 0) {
        struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)n_parts};
        ssize_t n = sendmsg(server->fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -EIO;
        for (; n_parts > 0 && (size_t)n >= part->iov_len; part++, n_parts--)
            n -= (ssize_t)part->iov_len;
        if (n_parts > 0) {
            part->iov_base = (char *)part->iov_base + n;
            part->iov_len -= (size_t)n;
        }
    }
    return 0;
}

static int receive_some(struct server *server, char *to, size_t n_bytes)
{
    ssize_t n;

    do
        n = recv(server->fd, to, n_bytes, 0);
    while (n < 0 && errno == EINTR);
    return n <= 0 ? -EIO : (int)n;
}

/* A line without its end. What follows it stays in the buffer. */
static int receive_line(struct server *server, char *line, size_t line_bytes)
{
    for (;;) {
        char *end = memchr(server->buffer, '\n', server->n_buffered);
        if (end != NULL) {
            const size_t n = (size_t)(end - server->buffer) + 1;
            if (n < 2 || n >= line_bytes)
                return -EPROTO;
            memcpy(line, server->buffer, n);
            line[n - 2] = 0;
            server->n_buffered -= n;
            memmove(server->buffer, end + 1, server->n_buffered);
            return 0;
        }
        if (server->n_buffered == sizeof server->buffer)
            return -EPROTO;
        int n = receive_some(server, server->buffer + server->n_buffered,
                             sizeof server->buffer - server->n_buffered);
        if (n < 0)
            return n;
        server->n_buffered += (size_t)n;
    }
}

static int receive_bytes(struct server *server, char *to, size_t n_bytes)
{
    size_t n = server->n_buffered < n_bytes ? server->n_buffered : n_bytes;

    memcpy(to, server->buffer, n);
    server->n_buffered -= n;
    memmove(server->buffer, server->buffer + n, server->n_buffered);
    while (n < n_bytes) {
        int more = receive_some(server, to + n, n_bytes - n);
        if (more < 0)
            return more;
        n += (size_t)more;
    }
    return 0;
}

int server_set(struct server *server, uint32_t key, const char *value, size_t n_bytes)
{
    char name[24];
    char head[96];
    char line[64];
    const int name_bytes = snprintf(name, sizeof name, "%d-%u", server->rank, key);
    const bool is_redis = server->kind == SERVER_REDIS;
    const int head_bytes =
        is_redis
            ? snprintf(head, sizeof head, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\n",
                       name_bytes, name, n_bytes)
            : snprintf(head, sizeof head, "set %s 0 0 %zu\r\n", name, n_bytes);
    struct iovec part[3] = {
        {head, (size_t)head_bytes}, {(void *)value, n_bytes}, {"\r\n", 2}};

    int error = send_all(server, part, 3);
    if (error == 0)
        error = receive_line(server, line, sizeof line);
    if (error == 0 && strcmp(line, is_redis ? "+OK" : "STORED") != 0)
        error = -EPROTO;
    return error;
}

/* The number of bytes that the answer announces. */
static int receive_size(struct server *server, size_t *n_bytes)
{
    char line[64];
    int error = receive_line(server, line, sizeof line);

    if (error != 0)
        return error;
    const char *number = server->kind == SERVER_REDIS ? line + 1 : strrchr(line, ' ');
    if (number == NULL)
        return -EPROTO;
    *n_bytes = strtoull(number, NULL, 10);
    return 0;
}

int server_get(struct server *server, uint32_t key, char *value, size_t n_bytes)
{
    char head[96];
    char name[24];
    char line[64];
    size_t n_have = 0;
    const int name_bytes = snprintf(name, sizeof name, "%d-%u", server->rank, key);
    const bool is_redis = server->kind == SERVER_REDIS;
    const int head_bytes =
        is_redis ? snprintf(head, sizeof head, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n",
                            name_bytes, name)
                 : snprintf(head, sizeof head, "get %s\r\n", name);
    struct iovec part = {head, (size_t)head_bytes};

    int error = send_all(server, &part, 1);
    if (error == 0)
        error = receive_size(server, &n_have);
    if (error == 0 && n_have != n_bytes)
        error = -EPROTO;
    if (error == 0)
        error = receive_bytes(server, value, n_bytes);
    if (error == 0)
        error = receive_bytes(server, line, 2); /* the end of the value's line */
    if (error == 0 && !is_redis)
        error = receive_line(server, line, sizeof line); /* END */
    return error;
}
