/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon of one's own in a temporary directory, and a client that speaks bare
 * messages. Every call has a deadline; nothing here needs the client library.
 */
#ifndef KVW_TESTS_DAEMON_RAW_H
#define KVW_TESTS_DAEMON_RAW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/layout.h"
#include "proto/messages.h"

struct rig {
    char directory[64];
    char socket[96];
    pid_t started; /* the process that was started: the first keeper */
};

/** Start kvwheeld with more options (NULL-terminated list, may be NULL). */
void rig_start(struct rig *rig, const char *const *options);

/** Start another one in the same directory. */
void rig_start_again(struct rig *rig, const char *const *options);

/** Stop it by force, reap everything and remove the directory. */
void rig_stop(struct rig *rig);

/** Run kvwheeld on a path to its end. @return exit code; stderr in `text`. */
int rig_run(const char *socket, char *text, size_t text_bytes);

/** Run kvwheeld with these options alone to its end. @return exit code. */
int rig_run_options(const char *const *options);

/** Set a process's limit of descriptors. */
void limit_descriptors(pid_t pid, uint64_t limit);

/** CPU time that a process has used, in milliseconds. */
uint64_t cpu_ms(pid_t pid);

/** Wait for the started process. @return its exit code, -1 after the deadline. */
int rig_wait_end(struct rig *rig);

/** True once `condition(context)` holds; false after five seconds. */
bool soon(bool (*condition)(void *context), void *context);

/** Nanoseconds of CLOCK_MONOTONIC. */
uint64_t now_ns(void);

/** A connection, without a word said, or -errno. */
int raw_connect(const char *socket);

/** A connection that has said hello; tries again while a daemon is starting. */
int raw_open(const struct rig *rig);

/** Send a message. @return 0 or -errno. */
int raw_send(int fd, const struct kvw_message *message);

/**
 * Receive a message. @return 0; -EPIPE (end of file); -ETIMEDOUT; -errno. Its bytes
 * fields point into `packet`, KVW_MESSAGE_MAX bytes.
 */
int raw_receive(int fd, struct kvw_message *message, uint8_t *packet, int *fds,
                uint32_t *n_fds);

/**
 * Ask, and skip progress. @return 0, or the refusal's error, negative (text in answer).
 */
int raw_call(int fd, struct kvw_message *request, struct kvw_message *answer);

/** A geometry with two ranks, two lanes and `window_rows` rows. */
struct kvw_geometry small_geometry(uint64_t window_rows);

/* Requests. Each returns 0 or the negative error of the refusal. */
int ask_create(int fd, const char *name, const struct kvw_geometry *geometry,
               uint32_t lifetime, uint64_t ttl_seconds, struct kvw_message *answer);
int ask_remove(int fd, const char *name, bool is_forced, struct kvw_message *answer);
int ask_detach(int fd, uint64_t attachment, struct kvw_message *answer);
int ask_resume(int fd, uint64_t attachment, struct kvw_message *answer);
int ask_stat(int fd, const char *name, struct kvw_message *answer);
int ask_who(int fd, uint64_t cache, uint64_t after, struct kvw_message *answer);
int ask_status(int fd, struct kvw_message *answer);

/* What an attach gives. */
struct place {
    uint64_t attachment;
    uint64_t incarnation;
    uint32_t slot;
    uint32_t was_dead;
    int fds[3]; /* control, pins, data */
    struct kvw_layout layout;
    void *control; /* mapped as the descriptor permits */
    void *pins;
};

/** Attach and map. @return 0 or the negative error; `answer` has the text. */
int ask_attach(int fd, const char *name, uint32_t rank, struct place *place,
               struct kvw_message *answer);

/** Unmap and close. */
void place_close(struct place *place);

/**
 * A child process that attaches and then does nothing until it is killed.
 *
 * @param hangs_up  It closes its connection, and lives on.
 * @return its pid once it is attached.
 */
pid_t worker_start(const struct rig *rig, const char *name, uint32_t rank,
                   bool hangs_up);

/** Kill and reap. */
void worker_kill(pid_t pid);

/** Seat of a rank in a mapped control segment. */
struct kvw_seat *seat_of(const struct place *place, uint32_t rank);

#endif
