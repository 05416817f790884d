/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheeld. One program, two processes: the one that is started becomes the keeper,
 * which starts the daemon; each starts the other again when it dies.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/host.h"
#include "daemon/keeper.h"
#include "daemon/kept.h"
#include "daemon/options.h"
#include "daemon/start.h"
#include "daemon/survey.h"

/* The two other roles are not for users: they inherit the other process's socket. */
static bool is_inherited(const struct options *options)
{
    struct stat status;

    return options->role == ROLE_START ||
           (fstat(KEPT_SOCKET_FD, &status) == 0 && S_ISSOCK(status.st_mode));
}

static int start(const struct options *options)
{
    const struct log log = {.level = options->log_level,
                            .role = "keeper",
                            .path = options_log_path(options)};
    struct kvw_refusal refusal;
    int listen_fd;
    int lock_fd;

    /* What the starter left open (pipes, sockets, locks) would live as long as we do.
     */
    (void)close_range(STDERR_FILENO + 1, UINT_MAX, 0);
    int code = start_up(options, &listen_fd, &lock_fd, &refusal);
    if (code != 0) {
        fprintf(stderr, "kvwheeld: %s\n", refusal.text);
        return code;
    }
    /* Nobody's Ctrl-C is meant for a daemon that a library started. */
    if (options->is_embedded)
        (void)setsid();
    /* What the keeper and the daemon inherit. Not to have it degrades nothing: it is
     * the lot of every program of an ordinary user. */
    if (host_protect_from_oom() != 0)
        log_line(&log, LOG_INFO,
                 "not protected from the OOM killer: needs CAP_SYS_RESOURCE");
    return keeper_run(options, listen_fd, lock_fd);
}

int main(int argc, char **argv)
{
    struct options options;
    struct kvw_refusal refusal;

    int error = options_parse(&options, argc, argv, &refusal);
    if (error != 0) {
        fprintf(stderr, "kvwheeld: %s\n", refusal.text);
        return error == -EINVAL ? EXIT_CODE_USAGE : EXIT_CODE_FAILED;
    }
    if (options.wants_help) {
        fputs(options_help(), stdout);
        return EXIT_CODE_OK;
    }
    if (options.wants_version) {
        fputs("kvwheeld " DAEMON_VERSION "\n", stdout);
        return EXIT_CODE_OK;
    }
    if (options.wants_survey)
        return survey_run();
    if (options.wants_topology)
        return survey_topology();
    if (!is_inherited(&options)) {
        fputs("kvwheeld: --serve and --keep are for the program's own use\n", stderr);
        return EXIT_CODE_USAGE;
    }
    /* Started as /proc/self/exe, both would be called "exe" in ps and top. */
    (void)prctl(PR_SET_NAME,
                options.role == ROLE_SERVE ? "kvwheeld" : "kvwheeld-keeper");
    (void)umask(077);
    switch (options.role) {
    case ROLE_SERVE:
        return daemon_run(&options);
    case ROLE_KEEP:
        return keeper_run(&options, -1, -1);
    case ROLE_START:
        break;
    }
    return start(&options);
}
