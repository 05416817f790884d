/* SPDX-License-Identifier: Apache-2.0 */
/* See actor.h. */
#include "tests/death/actor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MS 20000

static _Noreturn void act(actor_fn *obey, void *context, int orders, int answers)
{
    char order;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_IGN);
    while (read(orders, &order, 1) == 1) {
        const char answer = obey(context, order);
        if (write(answers, &answer, 1) != 1)
            _exit(2);
    }
    (void)obey(context, 0);
    _exit(0);
}

bool actor_start(struct actor *actor, actor_fn *obey, void *context)
{
    int orders[2];
    int answers[2];

    *actor = (struct actor){.pid = -1, .orders = -1, .answers = -1};
    if (pipe2(orders, O_CLOEXEC) != 0)
        return false;
    if (pipe2(answers, O_CLOEXEC) != 0) {
        close(orders[0]);
        close(orders[1]);
        return false;
    }
    actor->pid = fork();
    if (actor->pid == 0) {
        close(orders[1]);
        close(answers[0]);
        act(obey, context, orders[0], answers[1]);
    }
    close(orders[0]);
    close(answers[1]);
    actor->orders = orders[1];
    actor->answers = answers[0];
    return actor->pid > 0;
}

bool actor_order(struct actor *actor, char order)
{
    return write(actor->orders, &order, 1) == 1;
}

int actor_answer(struct actor *actor)
{
    struct pollfd answer = {.fd = actor->answers, .events = POLLIN};
    char byte;

    while (poll(&answer, 1, ANSWER_MS) < 0 && errno == EINTR)
        continue;
    if (answer.revents == 0 || read(actor->answers, &byte, 1) != 1)
        return -1;
    return byte;
}

int actor_ask(struct actor *actor, char order)
{
    return actor_order(actor, order) ? actor_answer(actor) : -1;
}

static int reap(struct actor *actor)
{
    int status = -1;

    close(actor->orders);
    close(actor->answers);
    while (waitpid(actor->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    actor->pid = -1;
    return status;
}

bool actor_end(struct actor *actor)
{
    int status = reap(actor);

    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void actor_kill(struct actor *actor)
{
    (void)kill(actor->pid, SIGKILL);
    (void)reap(actor);
}
