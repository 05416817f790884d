/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hostile/siege.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/proc.h"

#define IDLE_MS 200
#define IDLE_CPU_NS \
    20000000ull /* of a daemon that nobody asks anything, in that time */

static int at_work[2];

uint64_t siege_cpu_ns(pid_t pid)
{
    return proc_schedule_of(pid).on_cpu_ns;
}

void siege_begin(struct siege *siege, const char *const *options)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct rlimit limit;
    struct kvw_message answer;

    *siege = (struct siege){0};
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    rig_start(&siege->rig, options);
    cr_assert_eq(chmod(siege->rig.directory, 0755), 0);
    siege->control = raw_open(&siege->rig);
    cr_assert_eq(ask_create(siege->control, "honest", &geometry, 2, 0, &answer), 0);
    cr_assert_eq(ask_status(siege->control, &answer), 0);
    siege->daemon = (pid_t)answer.status_is.pid;
    siege->keeper = (pid_t)answer.status_is.keeper_pid;
}

void siege_at_work(void)
{
    if (write(at_work[1], "w", 1) != 1)
        _exit(3);
}

void siege_attacker(struct siege *siege, siege_attack *attack, uint32_t uid)
{
    struct pollfd ready;
    char byte;

    cr_assert_lt(siege->n_attackers, SIEGE_ATTACKERS_MAX);
    cr_assert_eq(pipe(at_work), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(siege->control);
        if (uid != 0 && (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0))
            _exit(2);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGPIPE, SIG_IGN);
        attack(siege);
        for (;;)
            pause();
    }
    cr_assert_gt(pid, 0);
    siege->attacker[siege->n_attackers++] = pid;
    close(at_work[1]);
    ready = (struct pollfd){.fd = at_work[0], .events = POLLIN};
    cr_assert_eq(poll(&ready, 1, 20000), 1, "the attacker does not get to work");
    cr_assert_eq(read(at_work[0], &byte, 1), 1, "the attacker ended");
    close(at_work[0]);
}

int siege_connect_as(const struct siege *siege, uint32_t uid)
{
    /* The kernel notes the effective user at connect(). */
    if (uid != 0)
        cr_assert_eq(seteuid(uid), 0);
    int fd = raw_connect(siege->rig.socket);
    if (uid != 0)
        cr_assert_eq(seteuid(0), 0);
    return fd;
}

int siege_hello(int fd, struct kvw_message *answer)
{
    struct kvw_message hello = {.type = KVW_MESSAGE_HELLO,
                                .hello = {.protocol = KVW_PROTOCOL_VERSION,
                                          .layout_hash = layout_hash(),
                                          .program = "test"}};

    uint8_t packet[KVW_MESSAGE_MAX];
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;

    /* Whoever is refused may be so before a word was said. */
    (void)raw_send(fd, &hello);
    int error = raw_receive(fd, answer, packet, fds, &n_fds);
    if (error != 0)
        return error;
    return answer->type == KVW_MESSAGE_REFUSED ? -(int)answer->refused.error : 0;
}

/* ---- watching ---- */

struct stopwatch {
    uint64_t begun_ns;
    uint64_t waited_ns;
};

/* What all who take part have waited for a CPU. */
static uint64_t all_waited_ns(const struct siege *siege)
{
    return proc_schedule_of(siege->daemon).waited_ns +
           proc_schedule_of(siege->keeper).waited_ns +
           proc_schedule_of(getpid()).waited_ns;
}

static struct stopwatch start_watch(const struct siege *siege)
{
    return (struct stopwatch){.waited_ns = all_waited_ns(siege), .begun_ns = now_ns()};
}

/* @return the reaction. */
static uint64_t stop_watch(const struct siege *siege, const struct stopwatch *watch,
                           uint64_t *spent_ns)
{
    *spent_ns = now_ns() - watch->begun_ns;
    const uint64_t waited_ns = all_waited_ns(siege) - watch->waited_ns;
    return *spent_ns > waited_ns ? *spent_ns - waited_ns : 0;
}

static void note(uint64_t *longest, uint64_t ns)
{
    if (ns > *longest)
        *longest = ns;
}

static void ask(struct siege *siege, uint32_t i, struct siege_report *report)
{
    struct kvw_message answer;
    uint64_t spent_ns;

    const struct stopwatch watch = start_watch(siege);
    int error = i % 3 == 0   ? ask_status(siege->control, &answer)
                : i % 3 == 1 ? ask_stat(siege->control, "honest", &answer)
                             : ask_who(siege->control, 0, 0, &answer);
    const uint64_t reaction_ns = stop_watch(siege, &watch, &spent_ns);
    report->n_late += reaction_ns >= SIEGE_BOUND_NS;
    note(&report->reaction_ns, reaction_ns);
    note(&report->longest_ns, spent_ns);
    cr_assert(error == 0 || (i % 3 == 2 && error == -ENOENT), "request: %s",
              strerror(-error));
    report->n_requests++;
}

/* A new client, from nothing to a place in the cache and away again; or one of another
 * user, from nothing to an answer. */
static void come_and_go(struct siege *siege, struct siege_report *report)
{
    const uint32_t uid = report->n_connections % 2 == 0 ? 0 : SIEGE_USER;
    struct kvw_message answer;
    struct place place;
    uint64_t spent_ns;

    const struct stopwatch watch = start_watch(siege);
    int fd = siege_connect_as(siege, uid);
    cr_assert_geq(fd, 0, "connect: %s", strerror(-fd));
    int error = siege_hello(fd, &answer);
    cr_assert_eq(error, 0, "hello: %s: %s", strerror(-error),
                 error == 0 ? "" : answer.refused.text);
    report->n_connections++;
    if (uid != 0) {
        cr_assert_eq(ask_status(fd, &answer), 0);
        note(&report->connect_ns, stop_watch(siege, &watch, &spent_ns));
        close(fd);
        return;
    }
    error = ask_attach(fd, "honest", 0, &place, &answer);
    cr_assert_eq(error, 0, "attach: %s: %s", strerror(-error), answer.refused.text);
    note(&report->connect_ns, stop_watch(siege, &watch, &spent_ns));
    cr_assert_eq(ask_detach(fd, place.attachment, &answer), 0);
    place_close(&place);
    close(fd);
}

struct siege_report siege_watch(struct siege *siege, const char *what, uint32_t ms)
{
    struct siege_report report = {0};
    const uint64_t begun_ns = now_ns();
    const uint64_t cpu_ns = siege_cpu_ns(siege->daemon);

    while (now_ns() - begun_ns < ms * 1000000ull) {
        ask(siege, report.n_requests, &report);
        if (report.n_requests % 4 == 0)
            come_and_go(siege, &report);
        (void)poll(NULL, 0, 1); /* an honest client does not flood */
    }
    report.watched_ns = now_ns() - begun_ns;
    report.daemon_cpu_ns = siege_cpu_ns(siege->daemon) - cpu_ns;
    fprintf(stderr,
            "%s: %u requests, longest %.2f ms, reaction %.2f ms; %u new clients, "
            "attached after %.2f ms; daemon's CPU %.1f of %.0f ms\n",
            what, report.n_requests, (double)report.longest_ns / 1e6,
            (double)report.reaction_ns / 1e6, report.n_connections,
            (double)report.connect_ns / 1e6, (double)report.daemon_cpu_ns / 1e6,
            (double)report.watched_ns / 1e6);
    /* One may be the machine's: a host that takes the CPU away is in no account. */
    cr_assert_leq(report.n_late, 1, "%s: %u of %u requests took more than 20 ms", what,
                  report.n_late, report.n_requests);
    /* Those who knocked before it are let in, or turned away, first. */
    cr_assert_lt(report.connect_ns, SIEGE_NEW_BOUND_NS, "%s", what);
    return report;
}

/* ---- afterwards ---- */

static void end_attackers(struct siege *siege)
{
    while (siege->n_attackers > 0) {
        pid_t pid = siege->attacker[--siege->n_attackers];
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
}

static bool is_alone(void *context)
{
    struct siege *siege = context;
    struct kvw_message answer;

    return ask_status(siege->control, &answer) == 0 &&
           answer.status_is.n_clients == 1 && answer.status_is.n_attachments == 0 &&
           (pid_t)answer.status_is.pid == siege->daemon;
}

void siege_relieve(struct siege *siege)
{
    end_attackers(siege);
    cr_assert(soon(is_alone, siege), "something is left of the attackers");
    uint64_t cpu_ns = siege_cpu_ns(siege->daemon);
    (void)poll(NULL, 0, IDLE_MS); /* the claim is about this time, not about an event */
    cpu_ns = siege_cpu_ns(siege->daemon) - cpu_ns;
    cr_assert_lt(cpu_ns, IDLE_CPU_NS, "idle, and used %.1f of %d ms",
                 (double)cpu_ns / 1e6, IDLE_MS);
}

void siege_end(struct siege *siege)
{
    end_attackers(siege);
    close(siege->control);
    rig_stop(&siege->rig);
}
