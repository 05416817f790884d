/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs inside of the emulated machine: numa_guest short|whole. Every claim about a page is
 * checked twice, by the daemon (kvwheel show --numa) and by this program.
 */
#include "tests/numa/guest.h"

#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cpus.h"

#define SOCKET "/tmp/k/kvwheeld.sock"
#define SPEC "--layers 4 --heads 4 --head-dim 128 --window 1000 --chunk 24"

uint32_t guest_failures;

bool claim(bool holds, const char *format, ...)
{
    va_list arguments;

    printf("%s ", holds ? "ok" : "FAILED");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    guest_failures += !holds;
    return holds;
}

int shell(const char *format, ...)
{
    char command[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    fflush(stdout);
    int status = system(command); /* NOLINT(cert-env33-c): of a test, its own words */
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const char *output_of(const char *format, ...)
{
    static char text[8192];
    char command[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    fflush(stdout);
    FILE *file = popen(command, "re"); /* NOLINT(cert-env33-c): likewise */
    size_t n = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    text[n] = 0;
    if (file != NULL)
        (void)pclose(file);
    return text;
}

struct kvw_client *guest_connect(const char *socket)
{
    struct kvw_client *client = NULL;

    if (client_open(socket, false, &client) < 0) {
        claim(false, "connect: %s", kvw_last_error());
        exit(1);
    }
    return client;
}

/* Node n has the CPU n alone (guest, the script). */
void guest_run_on(uint32_t node)
{
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    CPU_SET(node, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) < 0)
        claim(false, "run on node %u: %s", node, strerror(errno));
}

/* ---------------------------------------------------------------- claims --------- */

/* The daemon's count, too. */
static bool daemon_agrees(const char *name)
{
    return strstr(output_of("kvwheel show --numa --json %s", name),
                  "\"misplaced\": 0,\n  \"ranks\"") != NULL;
}

static void pages_are(struct kvw_client *client, const char *name, const uint32_t *node,
                      const char *when)
{
    const uint64_t n = pages_arrive(client, name, node, 5000);
    const bool agrees = daemon_agrees(name);

    if (!claim(n == 0 && agrees,
               "%s: every page of %s lies where it should (%llu do not)", when, name,
               (unsigned long long)n))
        (void)shell("kvwheel show --numa %s", name);
}

/* Ranks are dealt to nodes with CPUs in runs. */
static void dealt(uint32_t n_ranks, uint32_t n_nodes, uint32_t node[KVW_RANKS_MAX])
{
    for (uint32_t r = 0; r < n_ranks; r++)
        node[r] = r * n_nodes / n_ranks;
}

/* A worker takes a rank on a node, and stays until it is told to go. */
static pid_t worker(const char *name, uint32_t rank, uint32_t node, int *end)
{
    int pipe_fds[2];
    int ready[2];
    char byte = 0;

    if (pipe(pipe_fds) < 0 || pipe(ready) < 0)
        exit(1);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct kvw_cache *cache = NULL;
        close(pipe_fds[1]);
        guest_run_on(node);
        struct kvw_client *client = guest_connect(SOCKET);
        if (kvw_attach(client, name, rank, NULL, &cache) < 0)
            claim(false, "attach: %s", kvw_last_error());
        (void)!write(ready[1], &byte, 1);
        (void)!read(pipe_fds[0], &byte, 1);
        kvw_detach(cache);
        kvw_disconnect(client);
        _exit((int)guest_failures);
    }
    close(pipe_fds[0]);
    (void)!read(ready[0], &byte, 1);
    close(ready[0]);
    close(ready[1]);
    *end = pipe_fds[1];
    return pid;
}

static void finish(pid_t pid, int end)
{
    int status = 0;

    close(end);
    (void)waitpid(pid, &status, 0);
    guest_failures += status != 0;
}

static void kill_daemon(void)
{
    pid_t pid = (pid_t)strtol(
        output_of("kvwheel status --json | sed -n 's/.*\"pid\": //p' | head -1"), NULL,
        10);

    if (!claim(pid > 0 && kill(pid, SIGKILL) == 0, "the daemon, pid %d, is killed",
               pid))
        return;
    for (int i = 0; i < 200; i++) {
        if (shell("kvwheel status > /tmp/status 2>&1; grep -q 'pid %d,' /tmp/status",
                  pid) != 0 &&
            shell("grep -q keeper /tmp/status") == 0)
            return;
        (void)poll(NULL, 0, 50);
    }
    claim(false, "another daemon serves");
}

/* ------------------------------------------------------------- scenarios --------- */

static void try_create_and_move(struct kvw_client *client, uint32_t n_nodes)
{
    uint32_t node[KVW_RANKS_MAX];
    int end;

    dealt(4, n_nodes, node);
    claim(shell("kvwheel create --name a " SPEC " --ranks 4 --placement follow") == 0,
          "a cache that follows is made");
    pages_are(client, "a", node, "created");
    node[0] = n_nodes - 1;
    pid_t pid = worker("a", 0, node[0], &end);
    pages_are(client, "a", node, "a rank's worker runs on another node");
    finish(pid, end);
    node[0] = 0;
    pid = worker("a", 0, node[0], &end);
    pages_are(client, "a", node, "its next worker runs on the first again");
    finish(pid, end);
    node[3] = 0;
    claim(shell("kvwheel move a --rank 3 --node 0") == 0, "a part is moved");
    pages_are(client, "a", node, "moved");
    kill_daemon();
    pages_are(client, "a", node, "adopted");
    node[3] = n_nodes - 1;
    claim(shell("kvwheel move a --rank 3 --node %u", node[3]) == 0,
          "a part is moved by the daemon that adopted it");
    pages_are(client, "a", node, "moved again");
    (void)shell("kvwheel topo; kvwheel show --numa a; kvwheel status");
    claim(shell("kvwheel move a --rank 1 --node 99 2> /tmp/error") == 4 &&
              shell("grep -q 'no NUMA node 99' /tmp/error") == 0,
          "a node that is not there is refused by name");
    (void)shell("kvwheel rm a > /dev/null");
}

static void try_policies(struct kvw_client *client, uint32_t n_nodes)
{
    uint64_t n_on[GUEST_NODES_MAX];
    uint32_t node[KVW_RANKS_MAX] = {1, 0};

    claim(shell("kvwheel create --name m " SPEC " --ranks 2 --placement map:1,0") == 0,
          "a cache with a map is made");
    pages_are(client, "m", node, "map");
    node[0] = node[1] = 1;
    claim(shell("kvwheel create --name n " SPEC " --ranks 2 --placement node:1") == 0,
          "a cache on one node is made");
    pages_are(client, "n", node, "node");
    claim(shell("kvwheel create --name s " SPEC " --placement spread") == 0 &&
              daemon_agrees("s"),
          "a spread cache is made");
    uint64_t n = pages_by_node(client, "s", n_on);
    bool is_even = n > 0;
    for (uint32_t i = 0; i < n_nodes; i++)
        is_even = is_even && n_on[i] == n / n_nodes;
    claim(is_even, "spread: %llu pages, as many on each node", (unsigned long long)n);
    claim(shell("kvwheel create --name i " SPEC " --placement interleave") == 0 &&
              daemon_agrees("i"),
          "an interleaved cache is made");
    n = pages_by_node(client, "i", n_on);
    is_even = n > 0;
    for (uint32_t i = 0; i < n_nodes; i++)
        is_even = is_even && n_on[i] + 32 > n / n_nodes && n_on[i] < n / n_nodes + 32;
    claim(is_even, "interleave: %llu pages, as many on each node, but for a block",
          (unsigned long long)n);
    kill_daemon();
    claim(daemon_agrees("m") && daemon_agrees("s") && daemon_agrees("i"),
          "adopted: map, spread and interleave lie as before");
    (void)shell("kvwheel rm m n s i > /dev/null");
}

/* The daemon dies while it moves: the next one ends it. */
static void try_death_while_moving(struct kvw_client *client)
{
    uint64_t n_on[GUEST_NODES_MAX] = {0};
    uint32_t node[KVW_RANKS_MAX] = {1};

    claim(shell("kvwheel create --name d --layers 4 --heads 4 --head-dim 256 --window "
                "4096 --placement node:0") == 0,
          "a larger cache is made");
    (void)shell("kvwheel move d --rank 0 --node 1 > /tmp/move 2>&1 &");
    for (int i = 0; i < 400 && n_on[1] == 0; i++)
        (void)pages_by_node(client, "d", n_on);
    const bool is_half = n_on[0] > 0 && n_on[1] > 0;
    printf("# %llu pages of %s were moved when the daemon died\n",
           (unsigned long long)n_on[1], is_half ? "some" : "all");
    kill_daemon();
    pages_are(client, "d", node, "the daemon died while it moved a part");
    (void)shell("kvwheel rm d > /dev/null");
}

/* Of 130 MiB a node has room for one, the machine for two. */
static void try_exhaustion(void)
{
    const char spec[] = "--layers 32 --heads 8 --head-dim 128 --window 1024";

    bool is_made = false;
    for (int i = 0; i < 100 && !is_made; i++) { /* what was removed leaves by and by */
        is_made = shell("kvwheel create --name x %s --placement node:1", spec) == 0;
        (void)poll(NULL, 0, is_made ? 0 : 100);
    }
    claim(is_made, "a cache of half a node is made on it");
    claim(shell("kvwheel create --name y %s --placement node:1 2> /tmp/error", spec) ==
                  4 &&
              shell("grep -q 'NUMA node 1: need [0-9]* bytes, have [0-9]*' "
                    "/tmp/error") == 0,
          "what the node cannot give any more is refused with need and have");
    (void)shell("cat /tmp/error");
    claim(shell("kvwheel create --name y %s", spec) == 0 && daemon_agrees("y"),
          "where it may lie elsewhere it is made, and lies where the plan says");
    (void)shell("kvwheel rm x y");
    claim(shell("dmesg | grep -qi 'out of memory\\|oom-kill'") != 0,
          "nobody was killed for want of memory");
}

static void try_huge(struct kvw_client *client, uint32_t n_nodes)
{
    uint32_t node[KVW_RANKS_MAX] = {1};

    claim(shell("kvwheel create --name t " SPEC " --pages thp --placement node:1") == 0,
          "a cache of transparent huge pages is made");
    pages_are(client, "t", node, "thp");
    claim(shell("kvwheel show t | grep -q 'MiB of them huge'") == 0,
          "some of them are huge");
    node[0] = 0;
    claim(shell("kvwheel move t --rank 0 --node 0") == 0, "it is moved");
    pages_are(client, "t", node, "thp moved");
    claim(shell("kvwheel create --name f " SPEC " --pages 2M > /tmp/out") == 0 &&
              shell("grep -q 'transparent huge pages instead' /tmp/out") == 0,
          "without a pool it says what it does instead");
    (void)shell("cat /tmp/out; kvwheel rm t f > /dev/null");
    for (uint32_t i = 0; i < n_nodes; i++)
        (void)shell("echo 16 > /sys/devices/system/node/node%u/hugepages/"
                    "hugepages-2048kB/nr_hugepages",
                    i);
    node[0] = 1;
    claim(shell("kvwheel create --name p " SPEC " --pages 2M --placement node:1 && "
                "kvwheel show p | grep 'pages *2M'") == 0,
          "a cache of pages of the pool is made");
    pages_are(client, "p", node, "2M");
    node[0] = 0;
    claim(shell("kvwheel move p --rank 0 --node 0") == 0, "it is moved");
    pages_are(client, "p", node, "2M moved");
    kill_daemon();
    pages_are(client, "p", node, "2M adopted");
    (void)shell("kvwheel rm p > /dev/null");
    for (uint32_t i = 0; i < n_nodes; i++)
        (void)shell("echo 0 > /sys/devices/system/node/node%u/hugepages/"
                    "hugepages-2048kB/nr_hugepages",
                    i);
}

static void try_binding(uint32_t n_nodes)
{
    struct kvw_cache *cache = NULL;
    cpu_set_t cpus;

    (void)shell("kvwheel create --name b " SPEC " --placement node:1 > /dev/null");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        guest_failures = 0;
        struct kvw_client *client = guest_connect(SOCKET);
        if (kvw_attach(client, "b", 0, NULL, &cache) < 0)
            claim(false, "attach: %s", kvw_last_error());
        int n = kvw_bind_self(cache);
        (void)sched_getaffinity(0, sizeof cpus, &cpus);
        claim(n == 1 && CPU_COUNT(&cpus) == 1 && CPU_ISSET(1, &cpus),
              "a thread binds itself to the CPUs of its part's node (%d)", n);
        n = kvw_bind_self(cache);
        claim(n == 1, "and once more, which changes nothing");
        kvw_detach(cache);
        _exit((int)guest_failures);
    }
    finish(pid, -1);
    pid = fork();
    if (pid == 0) {
        guest_failures = 0;
        guest_run_on(n_nodes > 2 ? 2 : 0);
        struct kvw_client *client = guest_connect(SOCKET);
        if (kvw_attach(client, "b", 0, NULL, &cache) < 0)
            claim(false, "attach: %s", kvw_last_error());
        claim(kvw_bind_self(cache) == -ERANGE &&
                  strstr(kvw_last_error(), "of NUMA node 1") != NULL,
              "a launcher that bound it elsewhere is not overruled: %s",
              kvw_last_error());
        kvw_detach(cache);
        _exit((int)guest_failures);
    }
    finish(pid, -1);
    (void)shell("kvwheel rm b > /dev/null");
}

/* A second daemon that may not do something. `before` runs in its place, then starts it. */
static void try_degraded(const char *what, const char *before, const char *words)
{
    (void)shell("%s kvwheel --socket /tmp/k2/k.sock start > /tmp/start 2>&1", before);
    claim(shell("kvwheel --socket /tmp/k2/k.sock create --name z " SPEC " --ranks 2 "
                "--placement follow > /tmp/out 2>&1") == 0,
          "%s: a cache is made", what);
    claim(shell("kvwheel --socket /tmp/k2/k.sock status > /tmp/out; grep -q '%s' "
                "/tmp/out",
                words) == 0,
          "%s: status says so", what);
    (void)shell("grep -E 'numa|degraded' /tmp/out");
    claim(
        shell("kvwheel --socket /tmp/k2/k.sock move z --rank 0 --node 1 2> /tmp/out") ==
            4,
        "%s: moving is refused", what);
    (void)shell("cat /tmp/out; kvwheel --socket /tmp/k2/k.sock show --numa z; kvwheel "
                "--socket /tmp/k2/k.sock stop -f > /dev/null");
}

static void try_all_degraded(void)
{
    try_degraded("without CAP_SYS_NICE", "numa_guest --drop-nice",
                 "needs CAP_SYS_NICE");
    try_degraded("mbind forbidden", "forbid mbind", "NUMA placement off");
    try_degraded("move_pages forbidden", "forbid move_pages", "cannot be verified");
    try_degraded("set_mempolicy forbidden, and moving not allowed",
                 "forbid set_mempolicy numa_guest --drop-nice", "needs CAP_SYS_NICE");
    if (shell(
            "mkdir -p /tmp/cg && mount -t cgroup2 none /tmp/cg && mkdir /tmp/cg/one && "
            "echo +cpuset > /tmp/cg/cgroup.subtree_control && echo 0 > "
            "/tmp/cg/one/cpuset.mems") != 0) {
        claim(false, "a cpuset of node 0 is made");
        return;
    }
    (void)shell("sh -c 'echo $$ > /tmp/cg/one/cgroup.procs; exec kvwheel --socket "
                "/tmp/k3/k.sock start' > /dev/null");
    claim(
        shell("kvwheel --socket /tmp/k3/k.sock create --name z " SPEC) == 0 &&
            shell(
                "kvwheel --socket /tmp/k3/k.sock status > /tmp/out; grep -q 'left out' "
                "/tmp/out") == 0,
        "a cpuset excludes nodes: a cache is made, and status says so");
    (void)shell("grep degraded /tmp/out; kvwheel --socket /tmp/k3/k.sock stop -f "
                "> /dev/null");
}

/* The last node has memory, but no CPUs. */
static void try_memory_only(struct kvw_client *client, uint32_t memory_only)
{
    uint64_t n_on[GUEST_NODES_MAX];
    uint32_t node[KVW_RANKS_MAX] = {memory_only};

    (void)shell("kvwheel create --name s " SPEC " > /dev/null");
    const uint64_t n = pages_by_node(client, "s", n_on);
    claim(n > 0 && n_on[memory_only] == 0, "nothing is spread to a memory-only node");
    claim(shell("kvwheel status | grep 'node %u has memory only'", memory_only) == 0,
          "status names it");
    claim(shell("kvwheel create --name o " SPEC " --placement node:%u", memory_only) ==
              0,
          "but it is used when it is asked for");
    pages_are(client, "o", node, "memory only");
    (void)shell("kvwheel rm s o > /dev/null");
}

/* ------------------------------------------------------------------ main --------- */

/* Run a command that cannot get CAP_SYS_NICE. */
static int drop_nice(char **command)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];

    if (prctl(PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0) < 0 ||
        syscall(SYS_capget, &head, data) < 0)
        return 1;
    data[0].effective &= ~(1u << CAP_SYS_NICE);
    data[0].permitted &= ~(1u << CAP_SYS_NICE);
    data[0].inheritable &= ~(1u << CAP_SYS_NICE);
    if (syscall(SYS_capset, &head, data) < 0)
        return 1;
    execvp(command[0], command);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--drop-nice") == 0)
        return drop_nice(argv + 2);
    const bool is_whole = argc > 1 && strcmp(argv[1], "whole") == 0;
    const uint32_t n_nodes =
        argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2; /* with CPUs */
    const bool has_more = argc > 3 && strcmp(argv[3], "memory-only") == 0;

    setenv("KVWHEEL_SOCKET", SOCKET, 1);
    claim(shell("kvwheel start") == 0, "a daemon starts");
    struct kvw_client *client = guest_connect(SOCKET);
    if (has_more) {
        try_memory_only(client, n_nodes);
    } else {
        try_create_and_move(client, n_nodes);
        guest_load(SOCKET, n_nodes, is_whole ? 10 : 2);
    }
    if (is_whole && !has_more) {
        try_policies(client, n_nodes);
        try_death_while_moving(client);
        try_exhaustion();
        try_huge(client, n_nodes);
        try_binding(n_nodes);
        try_all_degraded();
        (void)shell("kvwheel doctor | grep -E 'pages|numa'; kvwheel-bench "
                    "--rounds 5 numa");
    }
    kvw_disconnect(client);
    claim(shell("kvwheel stop -f") == 0, "it stops");
    printf("numa_guest: %u failed\n", guest_failures);
    return guest_failures != 0;
}
