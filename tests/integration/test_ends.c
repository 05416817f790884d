/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of workers that are not plain: a child that lives on, another program in the same
 * process, exit() beside a thread that writes, a PID namespace from which nobody's number
 * can be seen.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/node.h"

static struct node node;

static void start(void)
{
    struct kvw_spec spec;

    node_start(&node, NULL);
    node_spec(&spec, "c", 1);
    cr_assert_eq(kvw_create(node.client, &spec, NULL, NULL), 0);
}

static void stop(void)
{
    node_stop(&node);
}

TestSuite(ends, .init = start, .fini = stop, .timeout = 60);

/* Wait, at most 10 s, until the daemon gives rank 0 away. @return the last answer. */
static int attach_when_free(struct kvw_cache **cache)
{
    int error = -EBUSY;

    for (int tries = 0; tries < 10000 && error == -EBUSY; tries++) {
        error = kvw_attach(node.client, "c", 0, NULL, cache);
        if (error == -EBUSY)
            poll(NULL, 0, 1);
    }
    return error;
}

static void check_successor(void)
{
    struct kvw_cache *cache;

    cr_assert_eq(attach_when_free(&cache), 0, "%s", kvw_last_error());
    (void)check_rows(cache);
    cr_assert_eq(roll_chunk(cache, 4, 1), 0, "%s", kvw_last_error());
    kvw_detach(cache);
}

static struct kvw_cache *attach_as_worker(const char *socket)
{
    struct kvw_client *client;
    struct kvw_cache *cache;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (kvw_connect(socket, &client) != 0 ||
        kvw_attach(client, "c", 0, NULL, &cache) != 0 || roll_chunk(cache, 4, 1) != 0)
        _exit(2);
    return cache;
}

/* Forks (f), the child has the socket and all else but the mappings; becomes another
 * program (x). */
static void run_and_leave(const struct node *of, int commands, int answers)
{
    char command;

    (void)attach_as_worker(of->socket);
    while (read(commands, &command, 1) == 1) {
        pid_t child = command == 'f' ? fork() : 0;
        if (child == 0 && command == 'f')
            for (;;)
                pause();
        if (write(answers, "", 1) != 1)
            _exit(3);
        if (command == 'x')
            execl("/bin/sh", "sh", "-c", "while read -r line; do :; done", NULL);
    }
}

static pid_t child_of_worker(void)
{
    char path[64];
    pid_t child = -1;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    FILE *children = fopen(path, "re");
    cr_assert(children != NULL && fscanf(children, "%d", &child) == 1);
    fclose(children);
    return child;
}

Test(ends, death_of_a_parent_is_seen_though_its_child_has_the_socket)
{
    struct worker worker;
    worker_start(&node, run_and_leave, &worker);
    cr_assert_eq(worker_ask(&worker, 'f'), 0);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* the grandchild is ours in the end */

    worker_kill(&worker);

    check_successor();
    cr_assert_eq(kill(child_of_worker(), SIGKILL), 0, "the child has ended as well");
    cr_assert_gt(waitpid(-1, NULL, 0), 0);
}

static uint32_t count_segments(pid_t pid)
{
    char path[300];
    char target[64];
    uint32_t n_segments = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    cr_assert_not_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL;
         entry = readdir(folder)) {
        snprintf(path, sizeof path, "/proc/%d/fd/%.255s", pid, entry->d_name);
        ssize_t n_bytes = readlink(path, target, sizeof target);
        n_segments += n_bytes > 15 && memcmp(target, "/memfd:kvwheel:", 15) == 0;
    }
    closedir(folder);
    return n_segments;
}

static bool is_shell(pid_t pid)
{
    char path[64];
    char name[16] = "";

    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        (void)!fgets(name, sizeof name, file);
        fclose(file);
    }
    return strcmp(name, "sh\n") == 0;
}

/* It is the same process, and only death frees a rank. */
Test(ends, program_that_takes_a_workers_place_has_its_rank_and_nothing_of_it)
{
    struct worker worker;
    struct kvw_cache *cache;
    worker_start(&node, run_and_leave, &worker);
    cr_assert_eq(worker_ask(&worker, 'x'), 0);
    for (int tries = 0; tries < 5000 && !is_shell(worker.pid); tries++)
        poll(NULL, 0, 1);
    cr_assert(is_shell(worker.pid));

    cr_assert_eq(kvw_attach(node.client, "c", 0, NULL, &cache), -EBUSY);
    cr_assert_eq(count_segments(worker.pid), 0);

    worker_kill(&worker);
    check_successor();
}

static void *roll_on(void *context)
{
    for (;;)
        if (roll_chunk(context, 4, 1) != 0)
            _exit(4);
    return NULL;
}

Test(ends, exit_beside_a_thread_that_writes_leaves_whole_steps)
{
    for (int round = 0; round < 20; round++) {
        int status;
        pid_t worker = fork();
        if (worker == 0) {
            pthread_t thread;
            struct kvw_cache *cache = attach_as_worker(node.socket);
            if (pthread_create(&thread, NULL, roll_on, cache) != 0)
                _exit(5);
            poll(NULL, 0, round % 5);
            _exit(0); /* exit_group(), as exit() in the end */
        }
        cr_assert_eq(waitpid(worker, &status, 0), worker);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%#x", status);

        check_successor();
    }
}

/* ------------------------------------------------------ namespaces ---------- */

/* Attaches once it is told where, and waits to be killed. */
static void wait_for_path(int paths, int answers)
{
    char socket[96] = "";

    if (read(paths, socket, sizeof socket) != (ssize_t)sizeof socket)
        _exit(6);
    (void)attach_as_worker(socket);
    if (write(answers, "", 1) != 1)
        _exit(7);
    for (;;)
        pause();
}

/* The worker lives outside the daemon's namespace: its pid is 0 there. */
Test(strangers, owner_whose_pid_cannot_be_seen_is_known_by_its_pidfd, .timeout = 60)
{
    int paths[2];
    int answers[2];
    char byte;
    struct kvw_cache *cache;
    cr_assert(pipe(paths) == 0 && pipe(answers) == 0);
    pid_t worker = fork();
    if (worker == 0)
        wait_for_path(paths[0], answers[1]);
    const int home = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    if (unshare(CLONE_NEWPID) != 0) {
        kill(worker, SIGKILL);
        cr_skip_test("another PID namespace needs CAP_SYS_ADMIN");
    }
    pid_t init = fork();
    if (init == 0)
        for (;;)
            pause();
    start();

    cr_assert_eq(write(paths[1], node.socket, sizeof node.socket),
                 (ssize_t)sizeof node.socket);
    cr_assert_eq(read(answers[0], &byte, 1), 1);
    cr_assert_eq(kvw_attach(node.client, "c", 0, NULL, &cache), -EBUSY);
    cr_assert_not_null(strstr(kvw_last_error(), "pid 0"), "%s", kvw_last_error());
    kill(worker, SIGKILL);

    check_successor();
    kill(init, SIGKILL); /* and with it all of the namespace */
    cr_assert_eq(waitpid(init, NULL, 0), init);
    cr_assert_eq(waitpid(worker, NULL, 0), worker);
    /* A leak checker starts a process, too. */
    cr_assert_eq(setns(home, CLONE_NEWPID), 0);
    close(home);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", node.folder);
    cr_assert_neq(system(command), -1);
}
