/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command on several hosts at once, by a launch agent that takes a host and the words of a
 * shell command as ssh does. One thread; the processes are ours, and gone when a call
 * returns.
 */
#ifndef KVW_CLIENT_CLI_HOSTS_H
#define KVW_CLIENT_CLI_HOSTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/cli/cli.h"

#define HOSTS_MAX 64u
#define HOST_NAME_BYTES 128u
#define HOST_SAID_BYTES 512u
#define HOSTS_WORDS_BYTES 4096u

struct host {
    char name[HOST_NAME_BYTES];
    uint32_t slots;             /* ranks for it */
    int exit_code;              /* of the last command; -1: it did not end in time */
    bool is_down;               /* the agent could not reach it, or it did not answer */
    char said[HOST_SAID_BYTES]; /* the last line that the command printed */
    pid_t pid;
    int output; /* pipe; -1 = closed */
};

struct hosts {
    uint32_t n;
    const char *agent; /* a program and its options, separated by spaces */
    struct host host[HOSTS_MAX];
};

/** Parse "h0,h1:4,h2" (slots after a colon, 1 if not said) and choose the agent: `agent`, else
 *  $KVWHEEL_AGENT, else ssh. @return false: told already. */
bool hosts_parse(const struct cli *cli, const char *list, const char *agent,
                 struct hosts *hosts);

/** Add a word to a shell command, quoted. @return false if it does not fit. */
bool hosts_quote(char words[HOSTS_WORDS_BYTES], const char *word);

/**
 * Run this program, with these words behind its name, on every host that is not down, and
 * wait for all of them, at most wait_ms. What is not done by then is killed.
 *
 * @return 0, or a negative errno with words when the agent cannot be started at all.
 */
int hosts_run(struct hosts *hosts, const char *words, uint32_t wait_ms);

#endif
