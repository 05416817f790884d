/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheel run: what mpirun does not do for a job whose caches outlive it. Every host's daemon
 * is asked before; what Open MPI needs to notice a lost host is set; the end has a reason of
 * our own; and the job is started again, with as many ranks, on the hosts that are left.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "client/cli/hosts.h"
#include "client/outside.h"

#define NS_PER_S 1000000000ull
#define ASK_MS 8000u  /* for a host's daemon to answer, by the agent */
#define END_MS 5000u  /* for mpirun to end when told */
#define POLL_MS 20000 /* longest uninterrupted wait for it */

/* As enum kvw_mpi_exit of the MPI library's header, which this program does not need. */
enum run_exit {
    RUN_LOST_HOST = 101,
    RUN_KILLED = 102,
    RUN_NOT_STARTED = 103,
    RUN_TIMEOUT = 104,
};

#define MPIRUN_LOST 205        /* it lost one of its daemons */
#define MPIRUN_NOT_STARTED 255 /* it could not start one */
#define MPIRUN_NO_PROGRAM 132  /* ... or a rank */

struct job {
    const struct cli *cli;
    struct hosts hosts;
    uint64_t timeout_s; /* 0: none */
    uint64_t n_relaunches;
    uint32_t n_slots; /* of all hosts together, as given */
    char **argv;      /* of mpirun */
    char hostfile[64];
};

/* --------------------------------------------------------------- preflight -------- */

/* Ask every host's daemon. Hosts that do not answer become `is_down`.
 * @return how many do not, or a negative errno. */
static int ask_all(struct job *job)
{
    char words[HOSTS_WORDS_BYTES] = "";
    int n_down = 0;

    if (job->cli->socket_path != NULL &&
        (!hosts_quote(words, "--socket") || !hosts_quote(words, job->cli->socket_path)))
        return fail(-E2BIG, "the socket's path is too long");
    if (!hosts_quote(words, "status"))
        return fail(-E2BIG, "the socket's path is too long");
    int result = hosts_run(&job->hosts, words, ASK_MS);
    if (result < 0)
        return result;
    for (uint32_t i = 0; i < job->hosts.n; i++) {
        struct host *host = &job->hosts.host[i];
        const bool has_answered = !host->is_down && (host->exit_code == CLI_OK ||
                                                     host->exit_code == CLI_DEGRADED);
        if (!has_answered)
            fprintf(stderr, "kvwheel: run: %s: %s\n", host->name,
                    host->said[0] != 0 ? host->said : "no answer");
        host->is_down = !has_answered;
        n_down += !has_answered;
    }
    return n_down;
}

static uint32_t n_up(const struct job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->hosts.n; i++)
        n += !job->hosts.host[i].is_down;
    return n;
}

/* The hosts that are left share all slots, the first ones one more. */
static int write_hostfile(struct job *job)
{
    const uint32_t n = n_up(job);
    uint32_t nth = 0;
    const bool are_all = n == job->hosts.n;
    FILE *file = fopen(job->hostfile, "we");

    if (file == NULL)
        return fail(-errno, "%s: %s", job->hostfile, kvw_strerror(-errno));
    for (uint32_t i = 0; i < job->hosts.n; i++) {
        const struct host *host = &job->hosts.host[i];
        if (host->is_down)
            continue;
        const uint32_t even = job->n_slots / n + (nth < job->n_slots % n);
        fprintf(file, "%s slots=%u\n", host->name, are_all ? host->slots : even);
        nth++;
    }
    if (fclose(file) != 0)
        return fail(-errno, "%s: %s", job->hostfile, kvw_strerror(-errno));
    return 0;
}

/* ------------------------------------------------------------------ launch -------- */

/* What makes Open MPI notice within seconds, and say so, that a host is gone. Values that the
 * caller has set stay. */
static void set_environment(const struct job *job)
{
    static const char *const setting[][2] = {
        {"OMPI_MCA_oob_tcp_keepalive_time", "2"},
        {"OMPI_MCA_oob_tcp_keepalive_intvl", "1"},
        {"OMPI_MCA_oob_tcp_keepalive_probes", "3"},
        {"OMPI_MCA_routed", "direct"},
    };

    for (size_t i = 0; i < sizeof setting / sizeof setting[0]; i++)
        setenv(setting[i][0], setting[i][1], 0);
    setenv("OMPI_MCA_orte_default_hostfile", job->hostfile, 1);
    if (job->cli->socket_path != NULL)
        setenv("KVWHEEL_SOCKET", job->cli->socket_path, 1);
    if (outside_variable("KVWHEEL_SOCKET") != NULL) /* for ranks that ssh starts */
        setenv("OMPI_MCA_mca_base_env_list", "KVWHEEL_SOCKET", 0);
}

/* Start mpirun; it ends if we do. @return its pid or a negative errno. */
static pid_t launch(const struct job *job, const sigset_t *blocked)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();

    if (pid < 0)
        return fail(-errno, "a process for %s: %s", job->argv[0], kvw_strerror(-errno));
    if (pid > 0)
        return pid;
    sigprocmask(SIG_UNBLOCK, blocked, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(RUN_NOT_STARTED);
    set_environment(job);
    execvp(job->argv[0], job->argv);
    fprintf(stderr, "kvwheel: run: %s: %s\n", job->argv[0], kvw_strerror(-errno));
    _exit(RUN_NOT_STARTED);
}

/* Wait for a signal of our child's end or for us, at most until the deadline.
 * @return the signal, 0 at the deadline. */
static int wait_signal(const sigset_t *signals, uint64_t deadline_ns)
{
    for (;;) {
        const uint64_t now_ns = outside_now_ns(CLOCK_MONOTONIC);
        uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        const uint64_t most_ns = POLL_MS * 1000000ull;
        if (left_ns == 0)
            return 0;
        left_ns = left_ns < most_ns ? left_ns : most_ns;
        const struct timespec left = {(time_t)(left_ns / NS_PER_S),
                                      (long)(left_ns % NS_PER_S)};
        const int taken = sigtimedwait(signals, NULL, &left);
        if (taken > 0)
            return taken;
    }
}

struct ended {
    int status;    /* as of waitpid() */
    bool is_late;  /* it was ended by us */
    int by_signal; /* that we were sent; 0 = none */
};

/* Wait for mpirun; at the deadline or when we are to end, end it. */
static struct ended await_end(const struct job *job, pid_t pid, const sigset_t *signals)
{
    uint64_t deadline_ns = job->timeout_s == 0 ? UINT64_MAX
                                               : outside_now_ns(CLOCK_MONOTONIC) +
                                                     job->timeout_s * NS_PER_S;
    struct ended ended = {0};
    int n_told = 0;

    for (;;) {
        const pid_t got = waitpid(pid, &ended.status, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR))
            return ended;
        const int taken = wait_signal(signals, deadline_ns);
        if (taken == SIGCHLD)
            continue;
        ended.is_late = ended.is_late || taken == 0;
        ended.by_signal = taken > 0 ? taken : ended.by_signal;
        (void)kill(pid, n_told++ == 0 ? SIGTERM : SIGKILL);
        deadline_ns = outside_now_ns(CLOCK_MONOTONIC) + END_MS * 1000000ull;
    }
}

/* ------------------------------------------------------------------ reason -------- */

/* The reason of an end; who is lost is asked now. */
static int reason_of(struct job *job, const struct ended *ended)
{
    const int code = WIFEXITED(ended->status) ? WEXITSTATUS(ended->status)
                                              : 128 + WTERMSIG(ended->status);

    if (ended->by_signal != 0)
        return 128 + ended->by_signal;
    if (!ended->is_late && code == 0)
        return 0;
    fprintf(stderr, "kvwheel: run: %s ended with %d; asking the hosts\n", job->argv[0],
            code);
    const int n_lost = ask_all(job);
    if (n_lost < 0) {
        (void)cli_fail(job->cli, n_lost);
        return RUN_LOST_HOST;
    }
    if (n_lost > 0 || code == MPIRUN_LOST)
        return RUN_LOST_HOST;
    if (ended->is_late || code == RUN_TIMEOUT)
        return RUN_TIMEOUT;
    if (code == MPIRUN_NOT_STARTED || code == MPIRUN_NO_PROGRAM ||
        code == RUN_NOT_STARTED)
        return RUN_NOT_STARTED;
    return code > 128 ? RUN_KILLED : code;
}

static void say_reason(const struct job *job, int reason)
{
    char lost[1024] = "";
    size_t at = 0;

    for (uint32_t i = 0; i < job->hosts.n; i++) {
        if (!job->hosts.host[i].is_down)
            continue;
        int n = snprintf(lost + at, sizeof lost - at, "%s%s", at > 0 ? ", " : "",
                         job->hosts.host[i].name);
        at += n > 0 && (size_t)n < sizeof lost - at ? (size_t)n : 0;
    }
    const char *const text = reason == RUN_LOST_HOST     ? "lost host"
                             : reason == RUN_KILLED      ? "a rank was killed"
                             : reason == RUN_NOT_STARTED ? "the job could not start"
                             : reason == RUN_TIMEOUT     ? "timed out"
                                                         : "the program failed";
    fprintf(stderr, "kvwheel: run: %s%s%s (exit %d)\n", text, at > 0 ? ": " : "", lost,
            reason);
}

/* ----------------------------------------------------------------- command -------- */

static bool is_again(int reason)
{
    return reason == RUN_LOST_HOST || reason == RUN_KILLED || reason == RUN_TIMEOUT;
}

/* The job, and again while it is allowed and useful. */
static int run_job(struct job *job)
{
    sigset_t signals;
    int reason;

    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    for (uint64_t i = 0;; i++) {
        int result = write_hostfile(job);
        if (result < 0)
            return cli_fail(job->cli, result);
        const pid_t pid = launch(job, &signals);
        if (pid < 0)
            return cli_fail(job->cli, pid);
        const struct ended ended = await_end(job, pid, &signals);
        reason = reason_of(job, &ended);
        if (reason == 0)
            return 0;
        say_reason(job, reason);
        if (!is_again(reason) || i >= job->n_relaunches || n_up(job) == 0)
            return reason;
        fprintf(stderr, "kvwheel: run: starting again on %u of %u hosts\n", n_up(job),
                job->hosts.n);
    }
}

static int parse(struct cli *cli, int argc, char **argv, struct job *job)
{
    static const struct option options[] = {{"hosts", required_argument, NULL, 'H'},
                                            {"agent", required_argument, NULL, 'a'},
                                            {"timeout", required_argument, NULL, 't'},
                                            {"relaunch", required_argument, NULL, 'r'},
                                            CLI_OPTIONS};
    const char *list = NULL, *agent = NULL;
    int option;

    while ((option = cli_option(cli, argc, argv, "+:h", options)) > 0) {
        if (option == 'H')
            list = optarg;
        else if (option == 'a')
            agent = optarg;
        else if (!cli_number(optarg, UINT32_MAX,
                             option == 't' ? &job->timeout_s : &job->n_relaunches))
            return cli_usage(cli, "run: --timeout and --relaunch take whole numbers");
    }
    if (option != CLI_END)
        return cli_option_exit(option);
    if (list == NULL || optind >= argc)
        return cli_usage(cli, "run: need --hosts LIST -- mpirun ...");
    if (!hosts_parse(cli, list, agent, &job->hosts))
        return CLI_USAGE;
    for (uint32_t i = 0; i < job->hosts.n; i++)
        job->n_slots += job->hosts.host[i].slots;
    job->argv = argv + optind;
    return CLI_END;
}

int command_run(struct cli *cli, int argc, char **argv)
{
    struct job job = {.cli = cli, .hostfile = "/tmp/kvwheel-run.XXXXXX"};

    int exit_code = parse(cli, argc, argv, &job);
    if (exit_code != CLI_END)
        return exit_code;
    int n_down = ask_all(&job);
    if (n_down < 0)
        return cli_fail_as(cli, n_down, RUN_NOT_STARTED);
    if (n_down > 0 && (job.n_relaunches == 0 || n_up(&job) == 0)) {
        fprintf(stderr,
                "kvwheel: run: %d of %u hosts have no daemon: kvwheel start "
                "--hosts ...\n",
                n_down, job.hosts.n);
        return RUN_NOT_STARTED;
    }
    const int fd = mkostemp(job.hostfile, O_CLOEXEC);
    if (fd < 0)
        return cli_fail(cli,
                        fail(-errno, "%s: %s", job.hostfile, kvw_strerror(-errno)));
    close(fd);
    exit_code = run_job(&job);
    unlink(job.hostfile);
    return exit_code;
}
