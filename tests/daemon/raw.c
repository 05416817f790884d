/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_NS 5000000000ull

static void die(const char *what)
{
    fprintf(stderr, "raw: %s: %s\n", what, strerror(errno));
    abort();
}

uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

bool soon(bool (*condition)(void *context), void *context)
{
    uint64_t deadline_ns = now_ns() + DEADLINE_NS;

    while (!condition(context)) {
        if (now_ns() > deadline_ns)
            return false;
        (void)poll(NULL, 0, 1);
    }
    return true;
}

static void program_path(char *path, size_t path_bytes)
{
    const char *folder = getenv("KVW_BIN");

    (void)snprintf(path, path_bytes, "%s/kvwheeld", folder != NULL ? folder : "bin");
}

/* In the child: become kvwheeld, stderr into a file. */
static void become_daemon(const char *socket, const char *log,
                          const char *const *options)
{
    const char *argv[32] = {"kvwheeld", "--socket", socket};
    char path[512];
    int n = 3;

    program_path(path, sizeof path);
    for (; options != NULL && *options != NULL && n < 31; options++)
        argv[n++] = *options;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd >= 0)
        (void)dup2(fd, STDERR_FILENO);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    execv(path, (char *const *)(uintptr_t)argv);
    die(path);
}

void rig_start(struct rig *rig, const char *const *options)
{
    (void)snprintf(rig->directory, sizeof rig->directory, "/tmp/kvwheeld-test-XXXXXX");
    if (mkdtemp(rig->directory) == NULL)
        die("mkdtemp");
    (void)snprintf(rig->socket, sizeof rig->socket, "%s/d.sock", rig->directory);
    rig_start_again(rig, options);
}

void rig_start_again(struct rig *rig, const char *const *options)
{
    char log[96];

    (void)snprintf(log, sizeof log, "%s/log", rig->directory);
    /* Daemons and keepers whose parent dies become ours to reap. */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    rig->started = fork();
    if (rig->started < 0)
        die("fork");
    if (rig->started == 0)
        become_daemon(rig->socket, log, options);
}

/* The lock is free once both processes are gone. */
static bool is_lock_free(void *context)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s.lock", ((const struct rig *)context)->socket);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return true;
    bool is_free = flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return is_free;
}

static void remove_files(const struct rig *rig)
{
    static const char *const names[] = {"d.sock", "d.sock.lock", "log"};
    char path[128];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", rig->directory, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(rig->directory);
}

/* A sanitizer's report in the daemon's log must be seen by the test's runner. */
static void show_reports(const struct rig *rig)
{
    char path[128];
    char line[512];

    (void)snprintf(path, sizeof path, "%s/log", rig->directory);
    FILE *log = fopen(path, "re");
    while (log != NULL && fgets(line, sizeof line, log) != NULL) {
        if (strstr(line, "Sanitizer") != NULL ||
            strstr(line, "runtime error") != NULL || strstr(line, "bug:") != NULL ||
            getenv("KVW_SHOW_LOG") != NULL)
            fputs(line, stderr);
    }
    if (log != NULL)
        fclose(log);
}

void rig_stop(struct rig *rig)
{
    struct kvw_message request = {.type = KVW_MESSAGE_SHUTDOWN,
                                  .shutdown = {.is_forced = 1}};
    struct kvw_message answer;

    if (!is_lock_free(rig)) {
        int fd = raw_open(rig);
        (void)raw_call(fd, &request, &answer);
        close(fd);
    }
    if (!soon(is_lock_free, rig))
        die("the daemon does not stop");
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    show_reports(rig);
    remove_files(rig);
}

int rig_run(const char *socket, char *text, size_t text_bytes)
{
    char log[] = "/tmp/kvwheeld-run-XXXXXX";
    int status;

    int log_fd = mkstemp(log);
    if (log_fd < 0)
        die("mkstemp");
    pid_t pid = fork();
    if (pid == 0)
        become_daemon(socket, log, NULL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    ssize_t n_bytes = pread(log_fd, text, text_bytes - 1, 0);
    text[n_bytes > 0 ? n_bytes : 0] = 0;
    close(log_fd);
    (void)unlink(log);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int rig_run_options(const char *const *options)
{
    const char *argv[8] = {"kvwheeld"};
    char path[512];
    int status;
    int n = 1;

    program_path(path, sizeof path);
    for (; *options != NULL && n < 7; options++)
        argv[n++] = *options;
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open("/dev/null", O_WRONLY);
        (void)dup2(fd, STDOUT_FILENO);
        (void)dup2(fd, STDERR_FILENO);
        execv(path, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void limit_descriptors(pid_t pid, uint64_t limit)
{
    struct rlimit limits = {.rlim_cur = limit, .rlim_max = 1024};

    if (prlimit(pid, RLIMIT_NOFILE, &limits, NULL) < 0)
        die("prlimit");
}

uint64_t cpu_ms(pid_t pid)
{
    char path[64];
    unsigned long user = 0;
    unsigned long system = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL ||
        fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
               &user, &system) != 2)
        die(path);
    fclose(file);
    return (user + system) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

struct ending {
    pid_t pid;
    int status;
};

static bool has_ended(void *context)
{
    struct ending *ending = context;

    return waitpid(ending->pid, &ending->status, WNOHANG) == ending->pid;
}

int rig_wait_end(struct rig *rig)
{
    struct ending ending = {.pid = rig->started};

    if (!soon(has_ended, &ending))
        return -1;
    return WIFEXITED(ending.status) ? WEXITSTATUS(ending.status) : -1;
}

int raw_connect(const char *socket_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

int raw_open(const struct rig *rig)
{
    struct kvw_message hello = {.type = KVW_MESSAGE_HELLO,
                                .hello = {.protocol = KVW_PROTOCOL_VERSION,
                                          .layout_hash = layout_hash(),
                                          .program = "test"}};
    struct kvw_message answer;
    uint64_t deadline_ns = now_ns() + DEADLINE_NS;

    while (now_ns() < deadline_ns) {
        int fd = raw_connect(rig->socket);
        if (fd >= 0) {
            if (raw_call(fd, &hello, &answer) == 0)
                return fd;
            close(fd);
        }
        (void)poll(NULL, 0, 1);
    }
    errno = ETIMEDOUT;
    die("no daemon answers");
    return -1;
}

int raw_send(int fd, const struct kvw_message *message)
{
    uint8_t packet[KVW_MESSAGE_MAX];
    int n_bytes = message_encode(message, packet, sizeof packet);

    if (n_bytes < 0)
        return n_bytes;
    return send(fd, packet, (size_t)n_bytes, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int raw_receive(int fd, struct kvw_message *message, uint8_t *packet, int *fds,
                uint32_t *n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KVW_MESSAGE_FDS_MAX * sizeof(int))];
    } control;
    struct iovec body = {.iov_base = packet, .iov_len = KVW_MESSAGE_MAX};
    struct msghdr head = {.msg_iov = &body,
                          .msg_iovlen = 1,
                          .msg_control = control.bytes,
                          .msg_controllen = sizeof control.bytes};
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    *n_fds = 0;
    if (poll(&poll_fd, 1, DEADLINE_NS / 1000000) <= 0)
        return -ETIMEDOUT;
    ssize_t n_bytes = recvmsg(fd, &head, MSG_CMSG_CLOEXEC);
    if (n_bytes < 0)
        return -errno;
    if (n_bytes == 0)
        return -EPIPE;
    struct cmsghdr *part = CMSG_FIRSTHDR(&head);
    if (part != NULL && part->cmsg_type == SCM_RIGHTS) {
        *n_fds = (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(part), *n_fds * sizeof(int));
    }
    return message_decode(packet, (size_t)n_bytes, message);
}

static int call_with_fds(int fd, struct kvw_message *request,
                         struct kvw_message *answer, int *fds, uint32_t *n_fds)
{
    static uint8_t packet[KVW_MESSAGE_MAX];

    request->request = (uint32_t)now_ns();
    *n_fds = 0;
    int error = raw_send(fd, request);
    if (error != 0)
        return error;
    do
        error = raw_receive(fd, answer, packet, fds, n_fds);
    while (error == 0 && answer->type == KVW_MESSAGE_PROGRESS);
    if (error != 0)
        return error;
    if (answer->request != request->request)
        return -EBADMSG;
    return answer->type == KVW_MESSAGE_REFUSED ? -(int)answer->refused.error : 0;
}

int raw_call(int fd, struct kvw_message *request, struct kvw_message *answer)
{
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;
    int error = call_with_fds(fd, request, answer, fds, &n_fds);

    while (n_fds > 0)
        close(fds[--n_fds]);
    return error;
}

struct kvw_geometry small_geometry(uint64_t window_rows)
{
    struct kvw_geometry geometry = {
        .n_groups = 1,
        .n_lanes = 2,
        .n_ranks = 2,
        .n_layers = 2,
        .partition = {.head_parts = 2,
                      .layer_parts = 1,
                      .lane_parts = 1,
                      .row_parts = 1},
        .group = {{.window_rows = window_rows,
                   .sink_rows = 1,
                   .chunk_rows_max = 2,
                   .slack_chunks = 1,
                   .n_layers = 2,
                   .n_heads = 2,
                   .n_planes = 2,
                   .policy = KVW_GEOMETRY_ROLL,
                   .kind = KVW_GEOMETRY_CHUNK,
                   .positions = KVW_GEOMETRY_ABSOLUTE,
                   .name = "self",
                   .plane = {{.elems = 64, .type = KVW_GEOMETRY_F32, .name = "k"},
                             {.elems = 64, .type = KVW_GEOMETRY_F32, .name = "v"}}}},
        .model_layer = {0, 1}};

    return geometry;
}

int ask_create(int fd, const char *name, const struct kvw_geometry *geometry,
               uint32_t lifetime, uint64_t ttl_seconds, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_CREATE,
                                  .create = {.lifetime = lifetime,
                                             .ttl_seconds = ttl_seconds,
                                             .mode = 0600,
                                             .geometry = (const uint8_t *)geometry,
                                             .geometry_bytes = sizeof *geometry}};

    (void)snprintf(request.create.name, sizeof request.create.name, "%s", name);
    return raw_call(fd, &request, answer);
}

int ask_remove(int fd, const char *name, bool is_forced, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_REMOVE,
                                  .remove = {.is_forced = is_forced}};

    (void)snprintf(request.remove.name, sizeof request.remove.name, "%s", name);
    return raw_call(fd, &request, answer);
}

int ask_detach(int fd, uint64_t attachment, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_DETACH,
                                  .detach = {.attachment = attachment}};

    return raw_call(fd, &request, answer);
}

int ask_resume(int fd, uint64_t attachment, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_RESUME,
                                  .resume = {.attachment = attachment}};

    return raw_call(fd, &request, answer);
}

int ask_stat(int fd, const char *name, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STAT};

    (void)snprintf(request.stat.name, sizeof request.stat.name, "%s", name);
    return raw_call(fd, &request, answer);
}

int ask_who(int fd, uint64_t cache, uint64_t after, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_WHO,
                                  .who = {.cache = cache, .after = after}};

    return raw_call(fd, &request, answer);
}

int ask_status(int fd, struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};

    return raw_call(fd, &request, answer);
}

static void *map_whole(int fd)
{
    struct stat status;
    int access = fcntl(fd, F_GETFL) & O_ACCMODE;

    if (fstat(fd, &status) < 0)
        die("fstat");
    void *base =
        mmap(NULL, (size_t)status.st_size,
             access == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        die("mmap");
    return base;
}

int ask_attach(int fd, const char *name, uint32_t rank, struct place *place,
               struct kvw_message *answer)
{
    struct kvw_message request = {.type = KVW_MESSAGE_ATTACH, .attach = {.rank = rank}};
    struct kvw_geometry geometry;
    struct kvw_refusal refusal;
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;

    (void)snprintf(request.attach.name, sizeof request.attach.name, "%s", name);
    int error = call_with_fds(fd, &request, answer, fds, &n_fds);
    if (error != 0)
        return error;
    if (n_fds != 3)
        return -EBADMSG;
    *place = (struct place){.attachment = answer->attached.attachment,
                            .incarnation = answer->attached.incarnation,
                            .slot = answer->attached.slot,
                            .was_dead = answer->attached.was_dead,
                            .fds = {fds[0], fds[1], fds[2]},
                            .control = map_whole(fds[0]),
                            .pins = map_whole(fds[1])};
    const struct kvw_control_header *header = place->control;
    return layout_control_read(place->control, header->control_bytes,
                               header->pins_bytes, header->data_bytes, &geometry,
                               &place->layout, &refusal);
}

void place_close(struct place *place)
{
    (void)munmap(place->control, place->layout.control_bytes);
    (void)munmap(place->pins, place->layout.pins_bytes);
    for (int i = 0; i < 3; i++)
        close(place->fds[i]);
}

pid_t worker_start(const struct rig *rig, const char *name, uint32_t rank,
                   bool hangs_up)
{
    int ready[2];
    char byte;

    if (pipe2(ready, O_CLOEXEC) < 0)
        die("pipe2");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        struct place place;
        struct kvw_message answer;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = raw_open(rig);
        if (ask_attach(fd, name, rank, &place, &answer) != 0)
            _exit(1);
        if (hangs_up)
            close(fd);
        if (write(ready[1], "r", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        pid = -1;
    close(ready[0]);
    return pid;
}

void worker_kill(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

struct kvw_seat *seat_of(const struct place *place, uint32_t rank)
{
    return layout_seat(place->control, &place->layout, rank);
}
