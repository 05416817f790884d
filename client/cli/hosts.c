/* SPDX-License-Identifier: Apache-2.0 */
/* Launch agents: one child for each host, its output by a pipe, its end by the pipe's. */
#include "client/cli/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/outside.h"

#define AGENT_DEFAULT "ssh -o BatchMode=yes -o ConnectTimeout=5"
#define AGENT_WORDS_MAX 32u
#define EXIT_UNREACHED 255 /* what ssh and its like answer for themselves */
#define EXIT_NO_AGENT 127
#define NS_PER_MS 1000000ull

static bool name_ok(const char *name, size_t length)
{
    if (length == 0 || length >= HOST_NAME_BYTES || name[0] == '-')
        return false;
    for (size_t i = 0; i < length; i++) {
        if (strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._@",
                   name[i]) == NULL)
            return false;
    }
    return true;
}

/* One entry: "name" or "name:slots". */
static bool add_host(struct hosts *hosts, const char *entry, size_t length)
{
    const char *colon = memchr(entry, ':', length);
    const size_t name_length = colon != NULL ? (size_t)(colon - entry) : length;
    char number[16] = "1";
    uint64_t slots;

    if (!name_ok(entry, name_length) || hosts->n >= HOSTS_MAX)
        return false;
    if (colon != NULL) {
        const size_t n = length - name_length - 1;
        if (n >= sizeof number)
            return false;
        memcpy(number, colon + 1, n);
        number[n] = 0;
    }
    if (!cli_number(number, 1024, &slots) || slots == 0)
        return false;
    struct host *host = &hosts->host[hosts->n++];
    *host = (struct host){.slots = (uint32_t)slots, .output = -1};
    memcpy(host->name, entry, name_length);
    return true;
}

bool hosts_parse(const struct cli *cli, const char *list, const char *agent,
                 struct hosts *hosts)
{
    const char *own = outside_variable("KVWHEEL_AGENT");

    hosts->n = 0;
    hosts->agent = agent != NULL ? agent : own != NULL ? own : AGENT_DEFAULT;
    for (const char *at = list;; at++) {
        const size_t length = strcspn(at, ",");
        if (!add_host(hosts, at, length)) {
            (void)cli_usage(
                cli,
                "--hosts: need up to %u of NAME or NAME:SLOTS, separated by "
                "commas; have '%.60s'",
                HOSTS_MAX, list);
            return false;
        }
        at += length;
        if (*at == 0)
            return true;
    }
}

bool hosts_quote(char words[HOSTS_WORDS_BYTES], const char *word)
{
    size_t at = strlen(words);

    if (at + 2 * strlen(word) * 2 + 4 >= HOSTS_WORDS_BYTES)
        return false;
    if (at > 0)
        words[at++] = ' ';
    words[at++] = '\'';
    for (; *word != 0; word++) {
        if (*word != '\'') {
            words[at++] = *word;
            continue;
        }
        memcpy(words + at, "'\\''", 4);
        at += 4;
    }
    words[at++] = '\'';
    words[at] = 0;
    return true;
}

/* ---------------------------------------------------------------- children -------- */

/* In the child: become the agent. Its words are the program's and ours alone. */
static void become_agent(const struct hosts *hosts, const struct host *host,
                         char *command, int output)
{
    char agent[HOSTS_WORDS_BYTES];
    char name[HOST_NAME_BYTES];
    char *argv[AGENT_WORDS_MAX + 3];
    char *rest = NULL;
    uint32_t n = 0;

    snprintf(agent, sizeof agent, "%s", hosts->agent);
    memcpy(name, host->name, sizeof name);
    for (char *word = strtok_r(agent, " ", &rest); word != NULL && n < AGENT_WORDS_MAX;
         word = strtok_r(NULL, " ", &rest))
        argv[n++] = word;
    argv[n++] = name;
    argv[n++] = command;
    argv[n] = NULL;
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    (void)setpgid(0, 0); /* so that all of it can be ended */
    execvp(argv[0], argv);
    _exit(EXIT_NO_AGENT);
}

static int start(struct hosts *hosts, struct host *host, char *command)
{
    int ends[2];

    host->exit_code = -1;
    host->said[0] = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return fail(-errno, "a pipe to the agent: %s", kvw_strerror(-errno));
    host->pid = fork();
    if (host->pid < 0) {
        int error = -errno;
        close(ends[0]);
        close(ends[1]);
        return fail(error, "a process for the agent: %s", kvw_strerror(error));
    }
    if (host->pid == 0)
        become_agent(hosts, host, command, ends[1]);
    close(ends[1]);
    host->output = ends[0];
    return 0;
}

/* Keep the last line that is not empty. */
static void take_output(struct host *host, const char *data, size_t n_bytes)
{
    size_t at = strlen(host->said);

    for (size_t i = 0; i < n_bytes; i++) {
        if (data[i] != '\n' && at > 0 && host->said[at - 1] == '\n')
            at = 0; /* the line before was not the last one */
        if (at < HOST_SAID_BYTES - 1)
            host->said[at++] = data[i];
    }
    host->said[at] = 0;
}

static void end(struct host *host, bool is_late)
{
    int status = 0;

    if (host->output >= 0)
        close(host->output);
    host->output = -1;
    if (is_late)
        (void)kill(-host->pid, SIGKILL);
    while (waitpid(host->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    host->pid = 0;
    host->exit_code = is_late ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    host->is_down = is_late || host->exit_code == EXIT_UNREACHED;
    host->said[strcspn(host->said, "\n")] = 0;
    if (is_late)
        snprintf(host->said, sizeof host->said, "no answer in time");
}

/* Read what they say until all have ended. */
static void collect(struct hosts *hosts, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd polled[HOSTS_MAX];
        uint32_t of[HOSTS_MAX];
        nfds_t n = 0;

        for (uint32_t i = 0; i < hosts->n; i++) {
            if (hosts->host[i].output < 0)
                continue;
            polled[n] = (struct pollfd){.fd = hosts->host[i].output, .events = POLLIN};
            of[n++] = i;
        }
        const uint64_t now_ns = outside_now_ns(CLOCK_MONOTONIC);
        if (n == 0 || now_ns >= deadline_ns)
            return;
        if (poll(polled, n, (int)((deadline_ns - now_ns) / NS_PER_MS) + 1) <= 0)
            continue;
        for (nfds_t i = 0; i < n; i++) {
            struct host *host = &hosts->host[of[i]];
            char data[512];
            if (polled[i].revents == 0)
                continue;
            ssize_t got = read(host->output, data, sizeof data);
            if (got > 0)
                take_output(host, data, (size_t)got);
            else if (got == 0 || errno != EINTR)
                end(host, false);
        }
    }
}

int hosts_run(struct hosts *hosts, const char *words, uint32_t wait_ms)
{
    const uint64_t deadline_ns = outside_now_ns(CLOCK_MONOTONIC) + wait_ms * NS_PER_MS;
    char quoted[HOSTS_WORDS_BYTES] = "", command[2 * HOSTS_WORDS_BYTES];
    char program[PATH_MAX] = "";
    int error = 0;

    /* The same program: hosts of a cluster have it at the same place. */
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return fail(-errno, "/proc/self/exe: %s", kvw_strerror(-errno));
    if (!hosts_quote(quoted, program))
        return fail(-E2BIG, "the command for a host is too long");
    snprintf(command, sizeof command, "%s %s", quoted, words);
    for (uint32_t i = 0; i < hosts->n && error == 0; i++) {
        if (!hosts->host[i].is_down)
            error = start(hosts, &hosts->host[i], command);
    }
    if (error == 0)
        collect(hosts, deadline_ns);
    for (uint32_t i = 0; i < hosts->n; i++) {
        if (hosts->host[i].pid > 0)
            end(&hosts->host[i], true);
        if (error == 0 && hosts->host[i].exit_code == EXIT_NO_AGENT &&
            hosts->host[i].said[0] == 0)
            error =
                fail(-ENOEXEC, "the launch agent cannot be started: %s", hosts->agent);
    }
    return error;
}
