/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that are installed, one over the other, in a folder of the test's own; the
 * command kvwheel; a worker that rolls without a pause and says how it went.
 */
#ifndef KVW_TESTS_RESTART_STAGE_H
#define KVW_TESTS_RESTART_STAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/integration/node.h"

struct stage {
    char folder[64];   /* with the installed kvwheeld */
    char program[128]; /* its path */
    char built[512];   /* the folder of the built programs */
    struct node node;
};

/** Install kvwheeld and start it; node.client is connected. */
void stage_start(struct stage *stage);

/** Stop it and remove the folder. */
void stage_stop(struct stage *stage);

/** Install another program, by rename: `kvwheeld`, another one of CMakeLists.txt, or
 * a file of these bytes. */
void stage_install(struct stage *stage, const char *name);
void stage_install_bytes(struct stage *stage, const char *bytes);

/** Run kvwheel with these words behind --socket. @return exit code; stdout and stderr. */
int stage_run(struct stage *stage, char *text, size_t text_bytes, const char *words);

/** True if a process runs the file that is installed now. */
bool stage_runs_installed(const struct stage *stage, pid_t pid);

/** The daemon's own words about itself. */
struct kvw_message_status_is stage_status(struct stage *stage);

/* A worker that rolls as fast as it can. */
struct roller {
    pid_t pid;
    struct roller_words *words;
};

/* Shared with it. */
struct roller_words {
    _Atomic uint64_t n_chunks;
    _Atomic uint64_t longest_ns; /* of a chunk, from begin to commit */
    _Atomic uint32_t is_ending;
    _Atomic uint32_t asks; /* control calls it shall make */
    _Atomic uint32_t answers;
    _Atomic int32_t error; /* of the last one, or of a chunk */
};

/** Fork one that attaches to `name` as `rank` of the daemon at `socket`; it rolls when
 * this returns. */
void roller_start(struct roller *roller, const char *socket, const char *name,
                  uint32_t rank);

/** Wait until it has rolled n chunks more. */
void roller_await(struct roller *roller, uint64_t n_chunks);

/** Let it make a control call. @return what that answered. */
int roller_ask(struct roller *roller);

/** Let it detach and end; checks that nothing failed. */
void roller_end(struct roller *roller);

/** SIGKILL and reap. */
void roller_kill(struct roller *roller);

uint64_t stage_now_ns(void);

#endif
