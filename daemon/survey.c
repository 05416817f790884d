/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing is concluded from a version or a setting that can be tried instead: a ring is
 * set up, a memfd is sealed, memory is bound. Settings are read for the words.
 */
#include "daemon/survey.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/host.h"
#include "daemon/options.h"
#include "daemon/peer.h"
#include "daemon/placement.h"
#include "daemon/ring.h"
#include "daemon/segment.h"
#include "daemon/topology.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define DESCRIPTORS_MIN 256u
#define MEMORY_MIN (UINT64_C(128) << 20)
#define MAPPINGS_USUAL 65530u
#define FILE_BYTES 8192

enum level { LEVEL_OK = 0, LEVEL_NOTE = 1, LEVEL_WRONG = 2 };

struct finding {
    enum level level;
    bool has_numbers;
    uint64_t need;
    uint64_t have;
    char text[320];
    char mend[320];
};

static __attribute__((format(printf, 3, 4))) void
find(struct finding *finding, enum level level, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    finding->level = level;
    (void)vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
}

static __attribute__((format(printf, 2, 3))) void mend(struct finding *finding,
                                                       const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(finding->mend, sizeof finding->mend, format, arguments);
    va_end(arguments);
}

static void count(struct finding *finding, uint64_t need, uint64_t have)
{
    finding->has_numbers = true;
    finding->need = need;
    finding->have = have;
}

/* -------------------------------------------------------------- kernel ---------- */

static void check_program(struct finding *finding)
{
    struct utsname name;

    (void)uname(&name);
    find(finding, LEVEL_OK, "kvwheeld %s on Linux %.64s", DAEMON_VERSION, name.release);
}

static void mend_io_uring(int error, struct finding *finding)
{
    uint64_t disabled = 0;

    (void)host_number("/proc/sys/kernel/io_uring_disabled", &disabled);
    if (error == -ENOSYS)
        mend(finding, "boot Linux 5.11 or later, with CONFIG_IO_URING");
    else if (error == -ENOMEM)
        mend(finding, "ulimit -l unlimited");
    else if (error == -EMFILE || error == -ENFILE)
        mend(finding, "ulimit -n %u", HOST_DESCRIPTORS_ALL);
    else if (disabled != 0)
        mend(finding, "sysctl -w kernel.io_uring_disabled=0");
    else
        mend(finding,
             "docker run --security-opt seccomp=unconfined ... (or a profile that "
             "allows io_uring_setup, io_uring_enter, io_uring_register)");
}

static void check_io_uring(struct finding *finding)
{
    struct kvw_refusal refusal;
    struct ring *ring = NULL;

    int error = ring_open(&ring, &refusal);
    if (error == 0) {
        find(finding, LEVEL_OK, "a ring can be set up and has every operation needed");
        (void)ring_close(ring);
        return;
    }
    find(finding, LEVEL_WRONG, "%s", refusal.text);
    mend_io_uring(error, finding);
}

static int try_memfd(void)
{
    struct segment segment = SEGMENT_NONE;
    KVW_CLEANUP(kvw_fd_cleanup)
    int frozen = -1;

    int error = segment_create(&segment, "kvwheel:check", KVW_PAGE, 0400, false);
    if (error == 0)
        error = segment_seal(&segment);
    if (error == 0)
        error = segment_map(&segment);
    if (segment.base != NULL)
        (void)munmap(segment.base, segment.bytes);
    kvw_fd_cleanup(&segment.fd);
    if (error != 0)
        return error;
    frozen = segment_freeze("kvwheel:check", "x", 1);
    return frozen < 0 ? frozen : 0;
}

static void check_memfd(struct finding *finding)
{
    int error = try_memfd();

    if (error == 0) {
        find(finding, LEVEL_OK,
             "sealed shared memory; the size of /dev/shm is no limit");
        return;
    }
    find(finding, LEVEL_WRONG, "shared memory cannot be made and sealed: %s",
         strerrordesc_np(-error));
    if (error == -EMFILE || error == -ENFILE)
        mend(finding, "ulimit -n %u", HOST_DESCRIPTORS_ALL);
    else
        mend(finding,
             "docker run --security-opt seccomp=unconfined ... (or a profile that "
             "allows memfd_create)");
}

static void check_pidfd(struct finding *finding)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int own = peer_pidfd_open((uint32_t)getpid());
    int pair[2];

    if (own < 0) {
        find(finding, LEVEL_WRONG, "the end of a process cannot be watched: %s",
             strerrordesc_np(-own));
        mend(finding, own == -EMFILE ? "ulimit -n %u" : "allow pidfd_open (seccomp)",
             HOST_DESCRIPTORS_ALL);
        return;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        find(finding, LEVEL_WRONG, "no socket can be made: %s", strerrordesc_np(errno));
        return;
    }
    bool has_option = peer_has_pidfd_option(pair[0]);
    close(pair[0]);
    close(pair[1]);
    if (has_option) {
        find(finding, LEVEL_OK, "processes are known by pidfds of their sockets");
        return;
    }
    find(finding, LEVEL_NOTE,
         "no SO_PEERPIDFD before Linux 6.5: peers are known by pid and start time");
    mend(finding, "boot Linux 6.5 or later");
}

static void check_proc(struct finding *finding)
{
    if (access("/proc/self/exe", R_OK) == 0 && access("/proc/self/fd", X_OK) == 0) {
        find(finding, LEVEL_OK, "/proc is there");
        return;
    }
    find(finding, LEVEL_WRONG,
         "/proc is not there: daemon and keeper start each other from it");
    mend(finding, "mount -t proc proc /proc");
}

/* -------------------------------------------------------------- limits ---------- */

static void check_descriptors(struct finding *finding)
{
    uint64_t have = host_descriptor_limit();

    count(finding, HOST_DESCRIPTORS_ALL, have);
    find(finding,
         have >= HOST_DESCRIPTORS_ALL ? LEVEL_OK
         : have >= DESCRIPTORS_MIN    ? LEVEL_NOTE
                                      : LEVEL_WRONG,
         "RLIMIT_NOFILE allows %" PRIu64
         " descriptors: two for each client, four for each cache, one for each process "
         "attached, %u at the most",
         have, HOST_DESCRIPTORS_ALL);
    if (finding->level != LEVEL_OK)
        mend(finding, "prlimit --pid $$ --nofile=%u:%u (systemd: LimitNOFILE=%u)",
             HOST_DESCRIPTORS_ALL, HOST_DESCRIPTORS_ALL, HOST_DESCRIPTORS_ALL);
}

static void check_limit(struct finding *finding, __rlimit_resource_t resource,
                        const char *what, const char *option)
{
    struct rlimit limit = {0};

    (void)getrlimit(resource, &limit);
    if (limit.rlim_cur == RLIM_INFINITY) {
        find(finding, LEVEL_OK, "%s is unlimited", what);
        return;
    }
    find(finding, LEVEL_NOTE, "%s is %" PRIu64 " bytes: larger caches are refused",
         what, (uint64_t)limit.rlim_cur);
    mend(finding, "ulimit %s unlimited", option);
}

static void check_file_size(struct finding *finding)
{
    check_limit(finding, RLIMIT_FSIZE, "RLIMIT_FSIZE", "-f");
}

static void check_address_space(struct finding *finding)
{
    check_limit(finding, RLIMIT_AS, "RLIMIT_AS", "-v");
}

static void check_locked(struct finding *finding)
{
    struct rlimit limit = {0};

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        find(finding, LEVEL_OK, "RLIMIT_MEMLOCK is unlimited");
    else
        find(finding, LEVEL_OK,
             "RLIMIT_MEMLOCK is %" PRIu64 " KiB: enough, for nothing is locked",
             (uint64_t)limit.rlim_cur / 1024);
}

static void check_mappings(struct finding *finding)
{
    uint64_t have = host_mappings_max();

    count(finding, MAPPINGS_USUAL, have);
    find(finding, have < MAPPINGS_USUAL ? LEVEL_NOTE : LEVEL_OK,
         "vm.max_map_count is %" PRIu64
         ": contiguous groups need 3 for each layer, plane, lane and head of a rank",
         have);
    if (finding->level != LEVEL_OK)
        mend(finding, "sysctl -w vm.max_map_count=%u", MAPPINGS_USUAL);
}

/* -------------------------------------------------------------- memory ---------- */

static void check_memory(struct finding *finding)
{
    struct host_memory memory;

    int error = host_memory(&memory);
    if (error != 0) {
        find(finding, LEVEL_WRONG, "memory cannot be looked at: %s",
             strerrordesc_np(-error));
        return;
    }
    count(finding, MEMORY_MIN, memory.available);
    find(finding, memory.available < MEMORY_MIN ? LEVEL_WRONG : LEVEL_OK,
         "%" PRIu64 " MiB can be had, of %" PRIu64 " MiB%s%.200s%s",
         memory.available >> 20, memory.total >> 20,
         memory.limit[0] != 0 ? "; the limit is " : "", memory.limit,
         host_memory_warning());
    if (finding->level == LEVEL_OK)
        return;
    if (strncmp(memory.limit, "/sys/fs/cgroup", 14) == 0)
        mend(finding, "echo %" PRIu64 " > %s", memory.total + MEMORY_MIN, memory.limit);
    else
        mend(finding,
             "end something that uses memory (ps -eo rss,pid,cmd --sort -rss)");
}

static void check_overcommit(struct finding *finding)
{
    uint64_t mode = 0;

    (void)host_number("/proc/sys/vm/overcommit_memory", &mode);
    find(finding, mode == 2 ? LEVEL_NOTE : LEVEL_OK,
         "vm.overcommit_memory is %" PRIu64 "%s", mode,
         mode == 2 ? ": caches count against CommitLimit" : "");
    if (mode == 2)
        mend(finding, "sysctl -w vm.overcommit_memory=0");
}

/* The word in brackets of "always [never] deny". */
static void chosen_of(const char *path, char word[32])
{
    char text[256];

    (void)snprintf(word, 32, "unknown");
    if (host_read_file(path, text, sizeof text) <= 0)
        return;
    const char *bracket = strchr(text, '[');
    if (bracket != NULL)
        (void)sscanf(bracket, "[%31[^]]", word);
}

static void check_pages(struct finding *finding)
{
    char shmem[32];
    uint64_t n_huge = 0;

    chosen_of("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shmem);
    (void)host_number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                      &n_huge);
    const bool can_collapse = pages_can_collapse();
    find(finding, can_collapse ? LEVEL_OK : LEVEL_NOTE,
         "--pages thp: %s (shmem_enabled is %s); --pages 2M: %" PRIu64
         " pages of 2 MiB are free of %" PRIu64
         " in the pool; for more, as root: sysctl -w vm.nr_hugepages=N",
         can_collapse ? "works" : "this kernel makes no huge page of shared memory",
         shmem, topology_huge_free(UINT32_MAX), n_huge);
    if (!can_collapse)
        mend(finding,
             "boot Linux 6.1 or later with CONFIG_TRANSPARENT_HUGEPAGE; or echo advise "
             "> /sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

/* The value of a line of /proc/self/status. */
static void status_of(const char *key, char value[64])
{
    char text[FILE_BYTES];

    (void)snprintf(value, 64, "unknown");
    if (host_read_file("/proc/self/status", text, sizeof text) <= 0)
        return;
    const char *line = strstr(text, key);
    if (line != NULL)
        (void)sscanf(line + strlen(key), " %63s", value);
}

static void check_numa(struct finding *finding)
{
    struct placement *placement = placement_open();
    char nodes[64];
    char cpus[64];

    status_of("Mems_allowed_list:", nodes);
    status_of("Cpus_allowed_list:", cpus);
    if (placement == NULL) {
        find(finding, LEVEL_NOTE, "NUMA nodes unknown: no memory to look at them");
        return;
    }
    uint32_t n_nodes = placement->topology.nodes.n_nodes;
    if (placement_degraded(placement)[0] != 0) {
        find(finding, LEVEL_NOTE, "%s", placement_degraded(placement));
        mend(finding, "docker run --cap-add SYS_NICE ...");
    } else {
        find(finding, placement->can_move || n_nodes < 2 ? LEVEL_OK : LEVEL_NOTE,
             "%u with memory%s; allowed: nodes %s, CPUs %s", n_nodes,
             n_nodes < 2 ? ""
             : !placement->can_move
                 ? ", and memory can be bound to each, but not moved "
                   "later: that needs CAP_SYS_NICE"
                 : ", and memory can be bound to each, and moved",
             nodes, cpus);
        if (finding->level == LEVEL_NOTE)
            mend(finding, "setcap cap_sys_nice+ep $(command -v kvwheeld)");
    }
    (void)placement_close(placement);
}

static void check_oom(struct finding *finding)
{
    if (host_protect_from_oom() == 0) {
        find(finding, LEVEL_OK,
             "the OOM killer can be asked to spare daemon and keeper");
        return;
    }
    find(finding, LEVEL_NOTE,
         "daemon and keeper cannot be protected from the OOM killer: that needs "
         "CAP_SYS_RESOURCE");
    mend(finding,
         "systemctl enable --now kvwheeld (its unit has OOMScoreAdjust), or as "
         "root, of each: choom -n -900 -p PID");
}

/* ---------------------------------------------------------------- all ---------- */

typedef void check_fn(struct finding *finding);

static const struct {
    const char *what;
    check_fn *check;
} checks[] = {
    {"program", check_program},
    {"io_uring", check_io_uring},
    {"memfd", check_memfd},
    {"pidfd", check_pidfd},
    {"proc", check_proc},
    {"descriptors", check_descriptors},
    {"locked", check_locked},
    {"file-size", check_file_size},
    {"address-space", check_address_space},
    {"mappings", check_mappings},
    {"memory", check_memory},
    {"overcommit", check_overcommit},
    {"pages", check_pages},
    {"numa", check_numa},
    {"oom", check_oom},
};

static void print(const char *what, const struct finding *finding)
{
    static const char *const levels[] = {"ok", "note", "wrong"};
    char numbers[64] = "\t";

    if (finding->has_numbers)
        (void)snprintf(numbers, sizeof numbers, "%" PRIu64 "\t%" PRIu64, finding->need,
                       finding->have);
    fprintf(stdout, "%s\t%s\t%s\t%s\t%s\n", levels[finding->level], what, numbers,
            finding->text, finding->mend);
}

int survey_run(void)
{
    int exit_code = EXIT_CODE_OK;

    (void)signal(SIGXFSZ, SIG_IGN); /* RLIMIT_FSIZE is an error code, not a death */
    host_raise_descriptor_limit();
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        struct finding finding = {0};
        checks[i].check(&finding);
        print(checks[i].what, &finding);
        if (finding.level == LEVEL_WRONG && exit_code == EXIT_CODE_OK)
            exit_code = checks[i].check == check_io_uring ? EXIT_CODE_IO_URING
                                                          : EXIT_CODE_FAILED;
    }
    return exit_code;
}

int survey_topology(void)
{
    KVW_CLEANUP(kvw_free_cleanup)
    struct topology *topology = malloc(sizeof *topology);

    int error = topology == NULL ? -ENOMEM : topology_load(topology);
    if (error != 0) {
        fprintf(stderr, "kvwheeld: NUMA nodes unknown: %s\n", strerrordesc_np(-error));
        return EXIT_CODE_FAILED;
    }
    fprintf(stdout, "machine\t%d\t%s\t%s\n", topology->is_this_system, topology->words,
            topology->left_out);
    for (uint32_t i = 0; i < topology->nodes.n_nodes; i++) {
        const struct kvw_topology_node *node = &topology->nodes.node[i];
        fprintf(stdout, "node\t%u\t%u\t%u\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\t",
                node->number, node->package, node->n_cpus, node->total_bytes,
                node->give_bytes,
                topology->is_this_system ? topology_huge_free(node->number) : 0,
                node->cpus);
        for (uint32_t j = 0; j < topology->nodes.n_nodes; j++)
            fprintf(stdout, "%s%u", j > 0 ? " " : "", node->distance[j]);
        fputs("\n", stdout);
    }
    return EXIT_CODE_OK;
}
