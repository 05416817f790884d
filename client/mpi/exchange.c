/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages with a deadline. Collectives of MPI cannot be left once they wait for a rank that
 * is gone, and do not say for whom they wait; sends and receives to each peer can and do.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "client/mpi/inside.h"

#define POLLS_PER_LOOK 64u /* at the clock */

static int told_by_mpi(struct kvw_mpi *mpi, const char *what, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    (void)MPI_Error_string(error, text, &length);
    mpi->is_broken = true;
    return told(-EIO, "%s: MPI: %.400s", what, text);
}

int check_whole(const struct kvw_mpi *mpi, const char *what)
{
    if (!mpi->is_broken)
        return 0;
    return told(-EPIPE,
                "%s: a rank did not answer before: end the job and start it again",
                what);
}

static int post(struct kvw_mpi *mpi, struct exchange *exchange, uint32_t place,
                bool is_send, size_t n_bytes, const char *what)
{
    if (n_bytes > INT_MAX)
        return told(-E2BIG, "%s: a message has at most %d bytes, have %zu", what,
                    INT_MAX, n_bytes);
    if (exchange->n >= EXCHANGE_MAX)
        return told(-E2BIG, "%s: at most %u messages at once", what, EXCHANGE_MAX);
    exchange->place[exchange->n] = (uint8_t)place;
    exchange->is_send[exchange->n] = is_send;
    exchange->request[exchange->n] = MPI_REQUEST_NULL;
    (void)mpi;
    return 0;
}

int exchange_send(struct kvw_mpi *mpi, struct exchange *exchange, uint32_t place,
                  int tag, const void *data, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    int error = post(mpi, exchange, place, true, n_bytes, "send");
    if (error != 0)
        return error;
    error = MPI_Isend(data, (int)n_bytes, MPI_BYTE, mpi->rank_of[place], tag, mpi->comm,
                      &exchange->request[exchange->n]);
    if (error != MPI_SUCCESS)
        return told_by_mpi(mpi, "send", error);
    exchange->n++;
    mpi->counters.n_messages++;
    return 0;
}

int exchange_receive(struct kvw_mpi *mpi, struct exchange *exchange, uint32_t place,
                     int tag, void *data, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    int error = post(mpi, exchange, place, false, n_bytes, "receive");
    if (error != 0)
        return error;
    error = MPI_Irecv(data, (int)n_bytes, MPI_BYTE, mpi->rank_of[place], tag, mpi->comm,
                      &exchange->request[exchange->n]);
    if (error != MPI_SUCCESS)
        return told_by_mpi(mpi, "receive", error);
    exchange->n++;
    return 0;
}

/* Is all of it done? Requests that are done become MPI_REQUEST_NULL. */
static int test(struct kvw_mpi *mpi, struct exchange *exchange, bool *is_done)
{
    int index[EXCHANGE_MAX];
    int n_done = 0;

    int error = MPI_Testsome((int)exchange->n, exchange->request, &n_done, index,
                             MPI_STATUSES_IGNORE);
    if (error != MPI_SUCCESS)
        return told_by_mpi(mpi, "exchange", error);
    *is_done = n_done == MPI_UNDEFINED;
    return 0;
}

int exchange_poke(struct kvw_mpi *mpi, struct exchange *exchange)
{
    bool is_done;

    return exchange->n == 0 ? 0 : test(mpi, exchange, &is_done);
}

/* Whom the requests that are not done are with. */
static int told_late(struct kvw_mpi *mpi, const struct exchange *exchange,
                     const char *what)
{
    char names[TEXT_BYTES] = "";
    size_t at = 0;
    uint64_t named = 0;

    for (uint32_t i = 0; i < exchange->n; i++) {
        const uint32_t place = exchange->place[i];
        if (exchange->request[i] == MPI_REQUEST_NULL || (named >> place & 1) != 0)
            continue;
        named |= 1ull << place;
        const struct who who = who_is(mpi, place);
        int n = snprintf(names + at, sizeof names - at, "%s%s", at > 0 ? ", " : "",
                         who.text);
        at += n > 0 && (size_t)n < sizeof names - at ? (size_t)n : 0;
    }
    mpi->is_broken = true;
    return told(-ETIMEDOUT, "%s: no answer for %.1f s from %.300s", what,
                (double)mpi->timeout_ns / 1e9, names);
}

void exchange_drop(struct exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->n; i++) {
        if (exchange->request[i] == MPI_REQUEST_NULL)
            continue;
        if (!exchange->is_send[i])
            (void)MPI_Cancel(&exchange->request[i]);
        (void)MPI_Request_free(&exchange->request[i]);
    }
    exchange->n = 0;
}

int exchange_wait(struct kvw_mpi *mpi, struct exchange *exchange, const char *what)
{
    const double deadline = MPI_Wtime() + (double)mpi->timeout_ns / 1e9;
    bool is_done = exchange->n == 0;
    int error = 0;

    for (uint64_t polls = 1; !is_done && error == 0; polls++) {
        error = test(mpi, exchange, &is_done);
        if (error != 0 || is_done)
            break;
        (void)sched_yield();
        if (polls % POLLS_PER_LOOK == 0 && MPI_Wtime() > deadline)
            error = told_late(mpi, exchange, what);
    }
    if (error != 0)
        exchange_drop(exchange);
    exchange->n = 0;
    return error;
}

int exchange_all(struct kvw_mpi *mpi, uint64_t places, int tag, const void *mine,
                 void *theirs, size_t n_bytes, const char *what)
{
    struct exchange exchange = {.n = 0};
    char *to = theirs;
    int error = 0;

    memcpy(to + mpi->place * n_bytes, mine, n_bytes);
    for (uint32_t place = 0; place < mpi->n_places && error == 0; place++) {
        if (place == mpi->place || (places >> place & 1) == 0)
            continue;
        error =
            exchange_receive(mpi, &exchange, place, tag, to + place * n_bytes, n_bytes);
        if (error == 0)
            error = exchange_send(mpi, &exchange, place, tag, mine, n_bytes);
        mpi->counters.step_bytes += n_bytes;
    }
    if (error != 0) {
        exchange_drop(&exchange);
        return error;
    }
    return exchange_wait(mpi, &exchange, what);
}

/* ------------------------------------------------------------- agreement ---------- */

struct trouble {
    int32_t error;
    char text[TEXT_BYTES - 64];
};

int kvw_mpi_agree(struct kvw_mpi *mpi, int error, const char *text)
{
    struct trouble all[KVW_RANKS_MAX];
    struct trouble mine = {.error = error};

    if (error != 0 && text != NULL)
        snprintf(mine.text, sizeof mine.text, "%s", text);
    int result = check_whole(mpi, "agree");
    if (result == 0)
        result =
            exchange_all(mpi, UINT64_MAX, TAG_AGREE, &mine, all, sizeof mine, "agree");
    if (result != 0)
        return result;
    for (uint32_t place = 0; place < mpi->n_places; place++) {
        if (all[place].error == 0)
            continue;
        all[place].text[sizeof all[place].text - 1] = 0;
        return told(all[place].error, "%s: %s", who_is(mpi, place).text,
                    all[place].text);
    }
    return 0;
}
