/* SPDX-License-Identifier: Apache-2.0 */
/* See share.h. Tables are small and searched from end to end. */
#include "daemon/share.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/client.h"
#include "daemon/host.h"

#define HELLO_NS (KVW_HELLO_MS * 1000000ull)

bool share_is_unlimited(uint32_t uid)
{
    return uid == 0 || uid == geteuid();
}

uint32_t share_of(const struct daemon *daemon, uint32_t n)
{
    const uint32_t n_descriptors = daemon->shares.descriptors_max;
    const uint32_t half = n / 2;

    if (n_descriptors == 0 || n_descriptors >= SHARE_DESCRIPTORS)
        return half;
    return (uint32_t)((uint64_t)half * n_descriptors / SHARE_DESCRIPTORS);
}

/* ------------------------------------------------------------- accounts ---------- */

static struct account *find(struct account *accounts, uint64_t key)
{
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        if (accounts[i].n_clients > 0 && accounts[i].key == key)
            return &accounts[i];
    }
    return NULL;
}

static uint32_t count(struct account *accounts, uint64_t key)
{
    const struct account *account = find(accounts, key);

    return account == NULL ? 0 : account->n_clients;
}

static uint32_t join(struct account *accounts, uint64_t key)
{
    struct account *account = find(accounts, key);

    /* As many accounts as clients: one is free. */
    for (uint32_t i = 0; account == NULL; i++) {
        KVW_CHECK(i < KVW_CLIENTS_MAX);
        if (accounts[i].n_clients == 0) {
            account = &accounts[i];
            *account = (struct account){.key = key};
        }
    }
    account->n_clients++;
    return (uint32_t)(account - accounts);
}

/* ------------------------------------------------------------ strangers ---------- */

static void forget_stranger(struct shares *shares, struct client *client)
{
    if (!client->is_stranger)
        return;
    client->is_stranger = false;
    if (client->stranger_before != NULL)
        client->stranger_before->stranger_after = client->stranger_after;
    else
        shares->stranger_first = client->stranger_after;
    if (client->stranger_after != NULL)
        client->stranger_after->stranger_before = client->stranger_before;
    else
        shares->stranger_last = client->stranger_before;
}

static void drop(struct daemon *daemon, struct client *client, int error,
                 const char *text)
{
    struct kvw_refusal refusal;

    (void)refuse(&refusal, error, 0, 0, "%s", text);
    client_refuse_socket(client->socket, error, &refusal);
    client_close(daemon, client);
}

/* The oldest stranger of a process or of a user makes room. */
static bool make_room(struct daemon *daemon, const uint64_t *process,
                      const uint32_t *uid)
{
    struct client *client = daemon->shares.stranger_first;

    while (client != NULL && ((process != NULL && client->peer.key != *process) ||
                              (uid != NULL && client->peer.uid != *uid)))
        client = client->stranger_after;
    if (client == NULL)
        return false;
    drop(daemon, client, -EMFILE,
         "a connection that has not said hello made room for another one");
    return true;
}

bool share_drop_stranger(struct daemon *daemon)
{
    return make_room(daemon, NULL, NULL);
}

uint64_t share_expire(struct daemon *daemon, uint64_t now_ns)
{
    struct client *client = daemon->shares.stranger_first;

    while (client != NULL && client->came_ns + HELLO_NS <= now_ns) {
        drop(daemon, client, -ETIMEDOUT, "no hello came");
        client = daemon->shares.stranger_first;
    }
    return client == NULL ? NEVER_NS : client->came_ns + HELLO_NS;
}

/* --------------------------------------------------------------- places ---------- */

int share_admit(struct daemon *daemon, const struct peer *peer,
                struct kvw_refusal *refusal)
{
    struct shares *shares = &daemon->shares;
    const uint32_t n_process = count(shares->process, peer->key);
    const uint32_t process_max = share_of(daemon, KVW_CLIENTS_PROCESS_MAX * 2);
    const uint32_t n_user = count(shares->user, peer->uid);
    const uint32_t user_max = share_of(daemon, KVW_CLIENTS_MAX);
    const uint32_t n_open = KVW_CLIENTS_MAX - KVW_CLIENTS_RESERVED;

    if (peer->key != 0 && n_process >= process_max &&
        !make_room(daemon, &peer->key, NULL))
        return refuse(refusal, -EMFILE, n_process + 1, process_max,
                      "pid %u has %u connections, at most %u for one process",
                      peer->pid, n_process, process_max);
    if (!share_is_unlimited(peer->uid) && n_user >= user_max &&
        !make_room(daemon, NULL, &peer->uid))
        return refuse(refusal, -EMFILE, n_user + 1, user_max,
                      "user %u has %u connections, at most %u for one user", peer->uid,
                      n_user, user_max);
    if (daemon->n_clients >= n_open && n_user >= KVW_CLIENTS_FEW &&
        !make_room(daemon, NULL, &peer->uid))
        return refuse(refusal, -EMFILE, daemon->n_clients + 1, n_open,
                      "the daemon has %u connections: the rest is for users who have "
                      "less than %u, and user %u has %u",
                      daemon->n_clients, KVW_CLIENTS_FEW, peer->uid, n_user);
    if (daemon->n_clients >= KVW_CLIENTS_MAX)
        return refuse(refusal, -EMFILE, KVW_CLIENTS_MAX + 1, KVW_CLIENTS_MAX,
                      "the daemon serves %u clients, as many as it can",
                      daemon->n_clients);
    return 0;
}

void share_enter(struct daemon *daemon, struct client *client)
{
    struct shares *shares = &daemon->shares;

    client->user = join(shares->user, client->peer.uid);
    client->process = join(shares->process, client->peer.key);
    client->is_counted = true;
    client->came_ns = host_now_ns();
    client->is_stranger = true;
    client->stranger_before = shares->stranger_last;
    client->stranger_after = NULL;
    if (shares->stranger_last != NULL)
        shares->stranger_last->stranger_after = client;
    else
        shares->stranger_first = client;
    shares->stranger_last = client;
}

void share_greeted(struct daemon *daemon, struct client *client)
{
    forget_stranger(&daemon->shares, client);
}

static void forget_turn(struct shares *shares, uint32_t i)
{
    shares->n_waiting--;
    memmove(&shares->waiting[i], &shares->waiting[i + 1],
            (shares->n_waiting - i) * sizeof shares->waiting[0]);
}

void share_leave(struct daemon *daemon, struct client *client)
{
    struct shares *shares = &daemon->shares;

    if (!client->is_counted)
        return;
    client->is_counted = false;
    forget_stranger(shares, client);
    shares->user[client->user].n_clients--;
    shares->process[client->process].n_clients--;
    for (uint32_t i = 0; i < shares->n_waiting; i++) {
        if (shares->waiting[i].slot == client->slot) {
            forget_turn(shares, i);
            return;
        }
    }
}

/* ---------------------------------------------------------------- turns ---------- */

void share_wait_turn(struct daemon *daemon, const struct client *client)
{
    struct shares *shares = &daemon->shares;

    KVW_CHECK(shares->n_waiting < KVW_CLIENTS_MAX);
    shares->waiting[shares->n_waiting++] =
        (struct waiting){client->slot, client->user, client->process};
}

static bool is_before(const struct shares *shares, const struct waiting *a,
                      const struct waiting *b)
{
    const uint64_t user_a = shares->user[a->user].turn;
    const uint64_t user_b = shares->user[b->user].turn;

    if (user_a != user_b)
        return user_a < user_b;
    return shares->process[a->process].turn < shares->process[b->process].turn;
}

struct client *share_next(struct daemon *daemon)
{
    struct shares *shares = &daemon->shares;
    uint32_t next = 0;

    if (shares->n_waiting == 0)
        return NULL;
    for (uint32_t i = 1; i < shares->n_waiting; i++) {
        if (is_before(shares, &shares->waiting[i], &shares->waiting[next]))
            next = i;
    }
    struct client *client = daemon->clients[shares->waiting[next].slot];
    shares->turn++;
    shares->user[client->user].turn = shares->turn;
    shares->process[client->process].turn = shares->turn;
    forget_turn(shares, next);
    return client;
}
