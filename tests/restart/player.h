/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays systemd: listens for the service, starts it with LISTEN_FDS, holds what it
 * sends with FDSTORE=1, and starts it again when it was killed or ends with code 7. As
 * systemd does, it takes a descriptor once (by kcmp), keeps no order, and checks names.
 */
#ifndef KVW_TESTS_RESTART_PLAYER_H
#define KVW_TESTS_RESTART_PLAYER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PLAYER_FDS_MAX 256

struct player {
    char folder[64];
    char socket[96];     /* where the service listens */
    char program[640];   /* what is started next */
    char notify[96];     /* NOTIFY_SOCKET */
    const char *fdstore; /* $FDSTORE, or NULL */
    int listener;
    int notify_fd;
    pthread_t thread;
    pthread_mutex_t mutex;
    /* Under the mutex. */
    struct {
        char name[256];
        int fd;
    } stored[PLAYER_FDS_MAX];
    uint32_t n_stored;
    uint32_t n_ready; /* READY=1 so far */
    uint32_t n_started;
    uint32_t n_wrong; /* messages that systemd would not take */
    char status[512];
    pid_t pid;        /* 0 = not running */
    int exit_status;  /* of the last one */
    bool is_holding;  /* do not start it again by itself */
    bool is_stopping; /* the thread ends */
};

/** Listen, and start `program`. */
void player_start(struct player *player, const char *program, const char *fdstore);

/** Kill the service if it runs, close everything, remove the folder. */
void player_stop(struct player *player);

/** Start the service again, after is_holding. */
void player_resume(struct player *player);

/** Wait until READY=1 came n times in all. */
void player_await_ready(struct player *player, uint32_t n);

/** Wait until the service has ended. @return its status, as of waitpid(). */
int player_await_end(struct player *player);

/** Descriptors in the store. */
uint32_t player_count(struct player *player);

pid_t player_pid(struct player *player);

#endif
