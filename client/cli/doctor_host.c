/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheeld itself tries the host, for only it knows what it needs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/doctor.h"
#include "client/cli/program.h"
#include "client/start.h"
#include "proto/base/cleanup.h"

static bool parse_level(const char *word, enum finding_level *level)
{
    static const char *const words[] = {"ok", "note", "wrong"};

    for (int i = 0; i < 3; i++) {
        if (strcmp(word, words[i]) == 0) {
            *level = (enum finding_level)i;
            return true;
        }
    }
    return false;
}

/* LEVEL WHAT NEED HAVE TEXT COMMAND, with tabs between. */
static bool parse_line(char *line, struct findings *findings)
{
    char *field[6];
    enum finding_level level;

    for (int i = 0; i < 6; i++) {
        field[i] = strsep(&line, "\t");
        if (field[i] == NULL)
            return false;
    }
    if (!parse_level(field[0], &level))
        return false;
    struct finding *finding = finding_add(findings, level, field[1], "%s", field[4]);
    finding->has_numbers = cli_number(field[2], UINT64_MAX, &finding->need) &&
                           cli_number(field[3], UINT64_MAX, &finding->have);
    snprintf(finding->mend, sizeof finding->mend, "%s", field[5]);
    return true;
}

/* Of each line that is none of those, its words. */
static void parse(char *text, struct findings *findings)
{
    for (char *line = strsep(&text, "\n"); line != NULL; line = strsep(&text, "\n")) {
        char words[256];
        snprintf(words, sizeof words, "%s", line);
        if (line[0] != 0 && !parse_line(line, findings))
            (void)finding_add(findings, FOUND_WRONG, "program", "kvwheeld says: %s",
                              words);
    }
}

void doctor_host(struct findings *findings)
{
    KVW_CLEANUP(kvw_free_cleanup)
    char *text = malloc(PROGRAM_OUTPUT_BYTES);
    char program[PATH_MAX];

    if (text == NULL || start_find(program) < 0) {
        struct finding *finding =
            finding_add(findings, FOUND_WRONG, "program", "%s",
                        text == NULL ? "no memory" : kvw_last_error());
        snprintf(finding->mend, sizeof finding->mend,
                 "export KVWHEELD=/path/to/kvwheeld");
        return;
    }
    text[0] = 0;
    int error = program_ask(program, "--check-host", text);
    parse(text, findings);
    if (error != 0)
        (void)finding_add(findings, FOUND_WRONG, "program", "%s --check-host: %s",
                          program,
                          error == -ECHILD ? "it has crashed" : kvw_strerror(error));
}
