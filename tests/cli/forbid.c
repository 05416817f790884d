/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_forbid SYSTEM-CALL COMMAND...: run it, with EPERM for that call. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name;
    uint32_t number;
} calls[] = {
    {"io_uring_setup", SYS_io_uring_setup},
    {"io_uring_register", SYS_io_uring_register},
    {"mbind", SYS_mbind},
    {"memfd_create", SYS_memfd_create},
    {"move_pages", SYS_move_pages},
    {"pidfd_open", SYS_pidfd_open},
    {"set_mempolicy", SYS_set_mempolicy},
};

static int forbid(uint32_t number)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 2 && i < sizeof calls / sizeof calls[0]; i++) {
        if (strcmp(calls[i].name, argv[1]) != 0)
            continue;
        if (forbid(calls[i].number) != 0)
            perror("seccomp");
        else
            execvp(argv[2], argv + 2);
        return 125;
    }
    fprintf(stderr, "usage: %s SYSTEM-CALL COMMAND...\n", argv[0]);
    return 125;
}
