/* SPDX-License-Identifier: Apache-2.0 */
/* See page.h. The errors are those that Linux gives when it is short of something, or
 * when a signal comes; not those of a wrong call. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/page.h"

static struct fault_page *page;
static enum fault_role own_role;
static int64_t n_allocations;

extern const char
    __executable_start; /* of the linker; NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

bool fault_strikes(const char *name, uintptr_t caller, const int *errors,
                   uint32_t n_errors)
{
    if (page == NULL || (atomic_load(&page->armed) & own_role) == 0 ||
        atomic_fetch_add(&page->n_calls, 1) + 1 != atomic_load(&page->at))
        return false;
    uint32_t variant = atomic_load(&page->variant);
    int error = variant < n_errors ? errors[variant] : 0;
    (void)snprintf(page->name, sizeof page->name, "%s", name);
    atomic_store(&page->caller, caller - (uintptr_t)&__executable_start);
    atomic_store(&page->error, error);
    atomic_store(&page->n_variants, n_errors);
    errno = error;
    return error != 0;
}

int64_t fault_allocations(void)
{
    return n_allocations;
}

/* ------------------------------------------------------------- memory ---------- */

void *real_malloc(size_t n_bytes) __asm__("__real_malloc");
void *fault_malloc(size_t n_bytes) __asm__("__wrap_malloc");
void *real_calloc(size_t n, size_t n_bytes) __asm__("__real_calloc");
void *fault_calloc(size_t n, size_t n_bytes) __asm__("__wrap_calloc");
void *real_realloc(void *old, size_t n_bytes) __asm__("__real_realloc");
void *fault_realloc(void *old, size_t n_bytes) __asm__("__wrap_realloc");
void real_free(void *old) __asm__("__real_free");
void fault_free(void *old) __asm__("__wrap_free");

void *fault_malloc(size_t n_bytes)
{
    if (FAULT_STRIKES("malloc", ENOMEM))
        return NULL;
    n_allocations++;
    return real_malloc(n_bytes);
}

void *fault_calloc(size_t n, size_t n_bytes)
{
    if (FAULT_STRIKES("calloc", ENOMEM))
        return NULL;
    n_allocations++;
    return real_calloc(n, n_bytes);
}

void *fault_realloc(void *old, size_t n_bytes)
{
    if (FAULT_STRIKES("realloc", ENOMEM))
        return NULL;
    n_allocations += old == NULL;
    return real_realloc(old, n_bytes);
}

void fault_free(void *old)
{
    n_allocations -= old != NULL;
    real_free(old);
}

FAULTY(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset),
       (at, n, prot, flags, fd, offset), MAP_FAILED, ENOMEM, EPERM)
FAULTY(int, madvise, (void *at, size_t n, int advice), (at, n, advice), -1, ENOMEM)
FAULTY(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1, EMFILE,
       ENFILE, ENOMEM)
FAULTY(int, ftruncate, (int fd, off_t n_bytes), (fd, n_bytes), -1, ENOMEM)

/* --------------------------------------------------------------- files ---------- */

int real_open(const char *path, int flags, ...) __asm__("__real_open");
int fault_open(const char *path, int flags, ...) __asm__("__wrap_open");
int real_openat(int folder, const char *path, int flags, ...) __asm__("__real_openat");
int fault_openat(int folder, const char *path, int flags, ...) __asm__("__wrap_openat");
int real_fcntl(int fd, int command, ...) __asm__("__real_fcntl");
int fault_fcntl(int fd, int command, ...) __asm__("__wrap_fcntl");

int fault_open(const char *path, int flags, ...)
{
    va_list more;

    va_start(more, flags);
    unsigned mode = (flags & O_CREAT) != 0 ? va_arg(more, unsigned) : 0;
    va_end(more);
    if (FAULT_STRIKES("open", EMFILE, ENFILE, ENOMEM))
        return -1;
    return real_open(path, flags, mode);
}

int fault_openat(int folder, const char *path, int flags, ...)
{
    if (FAULT_STRIKES("openat", EMFILE, ENFILE, ENOMEM))
        return -1;
    return real_openat(folder, path, flags);
}

/* Only two commands can fail on a good descriptor. */
int fault_fcntl(int fd, int command, ...)
{
    va_list more;

    va_start(more, command);
    int value = va_arg(more, int);
    va_end(more);
    if (command == F_DUPFD_CLOEXEC && FAULT_STRIKES("dup", EMFILE, ENOMEM))
        return -1;
    if (command == F_ADD_SEALS && FAULT_STRIKES("add_seals", EBUSY, EPERM))
        return -1;
    return real_fcntl(fd, command, value);
}

FAULTY(int, dup2, (int from, int to), (from, to), -1, EBUSY, EINTR)
FAULTY(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), -1, EIO, EINTR)
FAULTY(ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), -1, EIO,
       EINTR)
FAULTY(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), -1, ENOSPC,
       EINTR)
FAULTY(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at),
       (fd, from, n, at), -1, ENOSPC, EINTR)
FAULTY(int, fstat, (int fd, struct stat *status), (fd, status), -1, ENOMEM)
FAULTY(int, fstatfs, (int fd, struct statfs *status), (fd, status), -1, ENOMEM, EINTR)
FAULTY(int, stat, (const char *path, struct stat *status), (path, status), -1, ENOMEM)
FAULTY(int, lstat, (const char *path, struct stat *status), (path, status), -1, ENOMEM)
FAULTY(int, mkdir, (const char *path, mode_t mode), (path, mode), -1, ENOSPC, ENOMEM)
FAULTY(int, chmod, (const char *path, mode_t mode), (path, mode), -1, ENOMEM, EROFS)
FAULTY(int, fchmod, (int fd, mode_t mode), (fd, mode), -1, EPERM)
FAULTY(int, futimens, (int fd, const struct timespec times[2]), (fd, times), -1, EPERM)
FAULTY(int, flock, (int fd, int operation), (fd, operation), -1, ENOLCK, EINTR)
FAULTY(int, unlink, (const char *path), (path), -1, ENOMEM, EIO)
FAULTY(int, access, (const char *path, int mode), (path, mode), -1, ENOMEM)
FAULTY(ssize_t, readlink, (const char *path, char *to, size_t n), (path, to, n), -1,
       ENOMEM)
FAULTY(char *, realpath, (const char *path, char *to), (path, to), NULL, ENOMEM)
FAULTY(char *, getcwd, (char *to, size_t n), (to, n), NULL, ENOMEM)
FAULTY(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL, EMFILE,
       ENOMEM)

/* ------------------------------------------------------------- sockets ---------- */

FAULTY(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1,
       EMFILE, ENFILE, ENOMEM)
FAULTY(int, socketpair, (int domain, int type, int protocol, int pair[2]),
       (domain, type, protocol, pair), -1, EMFILE, ENFILE, ENOMEM)
FAULTY(int, bind, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n), -1,
       ENOMEM, ENOSPC)
FAULTY(int, listen, (int fd, int backlog), (fd, backlog), -1, EADDRINUSE)
FAULTY(int, connect, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n), -1,
       EAGAIN, ECONNREFUSED, ENOMEM)
FAULTY(int, accept4, (int fd, struct sockaddr *from, socklen_t *n, int flags),
       (fd, from, n, flags), -1, EMFILE, ENFILE, ENOMEM, EINTR)
FAULTY(ssize_t, send, (int fd, const void *from, size_t n, int flags),
       (fd, from, n, flags), -1, ENOMEM, ENOBUFS, EINTR, EAGAIN)
FAULTY(ssize_t, sendmsg, (int fd, const struct msghdr *head, int flags),
       (fd, head, flags), -1, ENOMEM, ETOOMANYREFS, EINTR)
FAULTY(ssize_t, recvmsg, (int fd, struct msghdr *head, int flags), (fd, head, flags),
       -1, ENOMEM, EINTR)
FAULTY(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *n),
       (fd, level, name, value, n), -1, EMFILE, ENOMEM)
FAULTY(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t n),
       (fd, level, name, value, n), -1, ENOMEM)
FAULTY(int, poll, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms), -1, EINTR,
       ENOMEM)

/* ----------------------------------------------------------- processes ---------- */

FAULTY(int, signalfd, (int fd, const sigset_t *set, int flags), (fd, set, flags), -1,
       EMFILE, ENOMEM)
FAULTY(int, posix_spawn,
       (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
        const posix_spawnattr_t *attributes, char *const *argv, char *const *envp),
       (pid, path, actions, attributes, argv, envp), errno, ENOMEM, EAGAIN)
FAULTY(int, posix_spawn_file_actions_adddup2,
       (posix_spawn_file_actions_t * actions, int from, int to), (actions, from, to),
       errno, ENOMEM)
FAULTY(int, posix_spawn_file_actions_addopen,
       (posix_spawn_file_actions_t * actions, int fd, const char *path, int flags,
        mode_t mode),
       (actions, fd, path, flags, mode), errno, ENOMEM)
FAULTY(int, posix_spawn_file_actions_addclosefrom_np,
       (posix_spawn_file_actions_t * actions, int from), (actions, from), errno, ENOMEM)
FAULTY(int, posix_spawn_file_actions_addchdir_np,
       (posix_spawn_file_actions_t * actions, const char *path), (actions, path), errno,
       ENOMEM)
FAULTY(int, execve, (const char *path, char *const *argv, char *const *envp),
       (path, argv, envp), -1, ENOMEM, EMFILE)
FAULTY(int, waitid, (idtype_t type, id_t id, siginfo_t *info, int options),
       (type, id, info, options), -1, EINTR)
FAULTY(pid_t, waitpid, (pid_t pid, int *status, int options), (pid, status, options),
       -1, EINTR)

long real_syscall(long number, ...) __asm__("__real_syscall");
long fault_syscall(long number, ...) __asm__("__wrap_syscall");

/* Arguments of the calls that are made this way. */
static int n_arguments(long number)
{
    switch (number) {
    case SYS_pidfd_open:
        return 2;
    case SYS_sched_setaffinity:
        return 3;
    case SYS_pidfd_send_signal:
        return 4;
    default:
        return 6;
    }
}

/* One of them needs something that can be short. */
long fault_syscall(long number, ...)
{
    va_list more;
    long argument[6] = {0};

    va_start(more, number);
    for (int i = 0; i < n_arguments(number); i++)
        argument[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_pidfd_open && FAULT_STRIKES("pidfd_open", EMFILE, ENFILE, ENOMEM))
        return -1;
    return real_syscall(number, argument[0], argument[1], argument[2], argument[3],
                        argument[4], argument[5]);
}

/* --------------------------------------------------------------- page ---------- */

struct fault_page *fault_use(const char *path, enum fault_role role)
{
    int fd = real_open(path, O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return NULL;
    void *mapped =
        real_mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        return NULL;
    own_role = role;
    page = mapped;
    return page;
}
