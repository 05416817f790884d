/* SPDX-License-Identifier: Apache-2.0 */
/* What kvwheel doctor has found; and what kvwheeld says of the host. */
#ifndef KVW_CLIENT_CLI_DOCTOR_H
#define KVW_CLIENT_CLI_DOCTOR_H

#include "client/cli/cli.h"

#define FINDINGS_MAX 64u

enum finding_level { FOUND_OK = 0, FOUND_NOTE = 1, FOUND_WRONG = 2 };

struct finding {
    enum finding_level level;
    bool has_numbers;
    uint64_t need;
    uint64_t have;
    char what[24];
    char text[512];
    char mend[384]; /* a command, or "" */
};

/* A place for each; what is beyond FINDINGS_MAX is not noted. */
struct findings {
    uint32_t n;
    struct finding all[FINDINGS_MAX];
};

/** Note a finding. @return it: its mend and numbers are the caller's. */
struct finding *finding_add(struct findings *findings, enum finding_level level,
                            const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define DOCTOR_OOM_UNKNOWN 9999

/** oom_score_adj of a process; DOCTOR_OOM_UNKNOWN if it cannot be read. */
long doctor_oom_score(uint32_t pid);

/** True if the OOM killer does not spare a process. */
bool doctor_is_unprotected(uint32_t pid);

/** Note what `kvwheeld --check-host` finds, or why it does not. */
void doctor_host(struct findings *findings);

#endif
