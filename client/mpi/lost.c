/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of boxes that are being filled. See inside.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/mpi/inside.h"

#define MARK "-new" /* behind the name of the box */

static void mark_spec(const char *name, struct kvw_spec *spec)
{
    char of_mark[sizeof spec->name + sizeof MARK];

    snprintf(of_mark, sizeof of_mark, "%s" MARK, name);
    kvw_spec_init(spec, of_mark);
    spec->lifetime = KVW_LIFETIME_KEEP;
    struct kvw_spec_group *group = kvw_spec_add_group(spec, "mark", 1, NULL);
    KVW_CHECK(group != NULL);
    group->window_rows = 1;
    group->chunk_rows_max = 1;
    KVW_CHECK(kvw_spec_add_plane(group, "mark", KVW_U8, 1) != NULL);
}

int lost_begin(struct kvw_mpi *mpi, const struct kvw_spec *spec)
{
    struct kvw_spec mark;
    uint32_t n_new = 0;

    for (uint32_t box = 0; box < mpi->n_boxes; box++)
        n_new += mpi->is_new[box];
    if (!mpi->is_new[mpi->box] || mpi->box_rank != 0)
        return 0;
    int error = mpi->is_left ? kvw_remove(mpi->client, spec->name, 0) : 0;
    if (error != 0 && error != -ENOENT)
        return told_by_kvw(error, "init: remove what is left of a lost box");
    if (n_new == mpi->n_boxes)
        return 0;
    mark_spec(spec->name, &mark);
    error = kvw_create(mpi->client, &mark, NULL, NULL);
    return error >= 0 ? 0 : told_by_kvw(error, "init: mark a box that is new");
}

/* What cannot be looked at is not marked: looking at the box itself will say why. */
bool lost_is_marked(const struct kvw_mpi *mpi, const char *name)
{
    struct kvw_cache *reader = NULL;
    struct kvw_spec mark;

    mark_spec(name, &mark);
    const int error = kvw_attach(mpi->client, mark.name, KVW_READER, NULL, &reader);
    if (error == 0)
        kvw_detach(reader);
    return error == 0;
}

int lost_end(struct kvw_mpi *mpi, struct mpi_lane *lane)
{
    struct kvw_spec mark;

    lane->is_empty = false;
    for (uint32_t i = 0; i < mpi->n_lanes; i++) {
        if (mpi->lane[i].is_empty)
            return 0;
    }
    if (mpi->box_rank != 0)
        return 0;
    mark_spec(kvw_cache_spec(mpi->cache)->name, &mark);
    int error = kvw_remove(mpi->client, mark.name, 0);
    return error == 0 || error == -ENOENT ? 0 : told_by_kvw(error, "unmark a box");
}
