/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel doctor: the host, the socket, the daemon; what is wrong and what mends it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/doctor.h"
#include "client/cli/output.h"
#include "proto/base/cleanup.h"

static const char *const level_names[] = {"ok", "note", "wrong"};

struct finding *finding_add(struct findings *findings, enum finding_level level,
                            const char *what, const char *format, ...)
{
    struct finding *finding = &findings->all[findings->n];
    va_list arguments;

    if (findings->n < FINDINGS_MAX - 1)
        findings->n++;
    memset(finding, 0, sizeof *finding);
    finding->level = level;
    snprintf(finding->what, sizeof finding->what, "%s", what);
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
    return finding;
}

static __attribute__((format(printf, 2, 3))) void mend(struct finding *finding,
                                                       const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(finding->mend, sizeof finding->mend, format, arguments);
    va_end(arguments);
}

/* -------------------------------------------------------------- socket ---------- */

static void check_folder(const char *path, struct findings *findings)
{
    char folder[KVW_SOCKET_PATH_MAX + 1];
    struct stat status;

    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return;
    slash[slash == folder] = 0;
    if (stat(folder, &status) < 0 && errno == ENOENT) {
        (void)finding_add(findings, FOUND_OK, "folder", "%s is made at the start",
                          folder);
    } else if (access(folder, W_OK | X_OK) < 0) {
        mend(finding_add(findings, FOUND_WRONG, "folder",
                         "%s: this user cannot use it: %s", folder,
                         kvw_strerror(-errno)),
             "kvwheel --socket /tmp/kvwheel-%u/kvwheeld.sock start", geteuid());
    } else if ((status.st_mode & 022) != 0 && (status.st_mode & S_ISVTX) == 0) {
        mend(finding_add(findings, FOUND_WRONG, "folder",
                         "%s has mode %04o: others can put a daemon of theirs there",
                         folder, status.st_mode & 07777),
             "chmod go-w %s", folder);
    } else {
        (void)finding_add(findings, FOUND_OK, "folder", "%s, mode %04o", folder,
                          status.st_mode & 07777);
    }
}

static void check_socket(const char *path, struct findings *findings)
{
    struct stat status;

    if (lstat(path, &status) < 0)
        (void)finding_add(findings, FOUND_OK, "socket", "%s is not there yet", path);
    else if (S_ISSOCK(status.st_mode))
        (void)finding_add(findings, FOUND_OK, "socket", "%s", path);
    else
        mend(finding_add(findings, FOUND_WRONG, "socket",
                         "%s is not a socket: a daemon leaves it alone, and ends",
                         path),
             "mv %s %s.old", path, path);
}

/* -------------------------------------------------------------- daemon ---------- */

long doctor_oom_score(uint32_t pid)
{
    char path[64];
    char text[32] = "";

    snprintf(path, sizeof path, "/proc/%u/oom_score_adj", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return DOCTOR_OOM_UNKNOWN;
    if (fgets(text, sizeof text, file) == NULL)
        (void)snprintf(text, sizeof text, "%d", DOCTOR_OOM_UNKNOWN);
    fclose(file);
    return strtol(text, NULL, 10);
}

bool doctor_is_unprotected(uint32_t pid)
{
    long score = doctor_oom_score(pid);

    return score >= 0 && score != DOCTOR_OOM_UNKNOWN;
}

static void check_protection(uint32_t pid, const char *name, struct findings *findings)
{
    if (pid != 0 && doctor_is_unprotected(pid))
        mend(finding_add(findings, FOUND_NOTE, name,
                         "pid %u is not protected from the OOM killer", pid),
             "choom -n -900 -p %u", pid);
}

/* One note for each part of the daemon's own words. */
static void add_degraded(const char *degraded, struct findings *findings)
{
    const char *end;

    for (; degraded[0] != 0; degraded = end[0] == 0 ? end : end + 2) {
        end = strstr(degraded, "; ");
        if (end == NULL)
            end = degraded + strlen(degraded);
        (void)finding_add(findings, FOUND_NOTE, "degraded", "%.*s",
                          (int)(end - degraded), degraded);
    }
}

static void check_running(const struct cli *cli, struct findings *findings)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message answer;

    if (cli_ask(cli, &request, &answer) < 0) {
        (void)finding_add(findings, FOUND_WRONG, "daemon", "%s", kvw_last_error());
        return;
    }
    const struct kvw_message_status_is *status = &answer.status_is;
    bool is_same = strcmp(status->version, KVW_PROJECT_VERSION) == 0;
    struct finding *finding = finding_add(
        findings, is_same ? FOUND_OK : FOUND_NOTE, "daemon",
        "pid %u, version %s%s%s, %u restarts, %u caches", status->pid, status->version,
        is_same ? "" : ", this program is ", is_same ? "" : KVW_PROJECT_VERSION,
        status->n_restarts, status->n_caches);
    if (!is_same)
        mend(finding, "kvwheel restart");
    if (status->keeper_pid != 0)
        (void)finding_add(findings, FOUND_OK, "keeper",
                          "pid %u holds the caches while the daemon is replaced",
                          status->keeper_pid);
    else
        (void)finding_add(findings, FOUND_OK, "keeper", "systemd's descriptor store");
    check_protection(status->pid, "daemon", findings);
    check_protection(status->keeper_pid, "keeper", findings);
    add_degraded(status->degraded, findings);
}

static void check_daemon(struct cli *cli, struct findings *findings)
{
    int result = client_open(cli->socket_path, false, &cli->client);

    if (result == 0)
        check_running(cli, findings);
    else if (result == -ENOENT || result == -ECONNREFUSED)
        (void)finding_add(findings, FOUND_OK, "daemon", "%s", kvw_last_error());
    else if (result == -KVW_ELAYOUT)
        mend(finding_add(findings, FOUND_WRONG, "daemon", "%s", kvw_last_error()),
             "kvwheel restart, by the kvwheel of the daemon's version");
    else
        (void)finding_add(findings, FOUND_WRONG, "daemon", "%s", kvw_last_error());
}

/* -------------------------------------------------------------- output ---------- */

static enum finding_level worst(const struct findings *findings)
{
    enum finding_level level = FOUND_OK;

    for (uint32_t i = 0; i < findings->n; i++) {
        if (findings->all[i].level > level)
            level = findings->all[i].level;
    }
    return level;
}

static void print(const struct findings *findings)
{
    for (uint32_t i = 0; i < findings->n; i++) {
        const struct finding *finding = &findings->all[i];
        printf("%-5s  %-13s  %s", level_names[finding->level], finding->what,
               finding->text);
        if (finding->has_numbers && finding->have < finding->need)
            printf("; need %llu, have %llu", (unsigned long long)finding->need,
                   (unsigned long long)finding->have);
        printf("\n");
        if (finding->mend[0] != 0)
            printf("       %-13s  $ %s\n", "", finding->mend);
    }
}

static json_t *number(const struct finding *finding, uint64_t value)
{
    return finding->has_numbers ? json_integer((json_int_t)value) : json_null();
}

static json_t *findings_json(const struct findings *findings)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < findings->n; i++) {
        const struct finding *finding = &findings->all[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o, s:o, s:s}", "level",
                                              level_names[finding->level], "what",
                                              finding->what, "text", finding->text,
                                              "need", number(finding, finding->need),
                                              "have", number(finding, finding->have),
                                              "mend", finding->mend));
    }
    return json_pack("{s:s, s:o}", "worst", level_names[worst(findings)], "findings",
                     list);
}

int command_doctor(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_OPTIONS};
    static const int exit_codes[] = {CLI_OK, CLI_DEGRADED, CLI_FAILED};
    char path[KVW_SOCKET_PATH_MAX + 1];

    int option = cli_option(cli, argc, argv, ":h", options);
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "doctor takes no arguments; have '%s'", argv[optind]);
    KVW_CLEANUP(kvw_free_cleanup)
    struct findings *findings = calloc(1, sizeof *findings);
    if (findings == NULL)
        return cli_fail(cli, fail(-ENOMEM, "doctor: no memory"));
    doctor_host(findings);
    if (cli->socket_path == NULL && client_default_path(path) < 0) {
        (void)finding_add(findings, FOUND_WRONG, "socket", "%s", kvw_last_error());
    } else {
        const char *used = cli->socket_path != NULL ? cli->socket_path : path;
        check_folder(used, findings);
        check_socket(used, findings);
        check_daemon(cli, findings);
    }
    if (cli->is_json)
        output_json(findings_json(findings));
    else
        print(findings);
    return exit_codes[worst(findings)];
}
