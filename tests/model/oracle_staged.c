/* SPDX-License-Identifier: Apache-2.0 */
/* Open chunks as other ranks and readers see them: what all of a set have written. */
#include "proto/base/align.h"
#include "tests/model/oracle.h"

/* Rows of the chunk after `step` that a rank which is ahead published, and still has. */
static uint64_t published(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                          uint32_t group, uint64_t step)
{
    const struct m_lane *of = &oracle->lane[lane];
    const struct m_group *before = &of->step[step].record.group[group];
    const struct m_group *after = &of->step[step + 1].record.group[group];

    for (uint64_t at = step + 2; at <= of->board[rank].step; at++) {
        if (of->step[at].call.kind == M_TRUNCATE || of->step[at].call.kind == M_RESET)
            return 0;
    }
    if (after->generation != before->generation || after->rows < before->rows)
        return 0;
    return after->rows - before->rows;
}

void oracle_chunk(const struct oracle *oracle, uint32_t lane, uint32_t layer,
                  uint64_t step, uint64_t ranks, struct m_chunk *chunk)
{
    const uint32_t group = geometry_group_of(oracle->geometry, layer);
    bool is_open = true;

    *chunk = (struct m_chunk){.written = UINT64_MAX};
    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        const struct m_board *board = &oracle->lane[lane].board[rank];
        if ((ranks >> rank & 1) == 0 || !oracle_holds(oracle, layer, rank))
            continue;
        if (board->step > step) {
            chunk->written =
                min_u64(chunk->written, published(oracle, lane, rank, group, step));
            continue;
        }
        const uint64_t n = board->group[group].n;
        is_open = is_open && n > 0 && (chunk->ranks == 0 || n == chunk->open);
        chunk->open = n;
        chunk->ranks |= 1ull << rank;
        if (n == 0)
            continue;
        chunk->written =
            min_u64(chunk->written, oracle_prefix(oracle, lane, rank, layer));
        chunk->is_writing |= board->layer[layer].is_writing;
        chunk->is_writer_dead |=
            board->layer[layer].is_writing && oracle->seat[rank] == KVW_SEAT_DEAD;
    }
    if (!is_open || chunk->ranks == 0)
        chunk->open = 0;
    chunk->written = min_u64(chunk->written, chunk->open);
    if (chunk->written == 0)
        chunk->ranks = 0;
    chunk->writes = oracle_writes(oracle, lane, layer, chunk->ranks);
}

uint64_t oracle_writes(const struct oracle *oracle, uint32_t lane, uint32_t layer,
                       uint64_t ranks)
{
    uint64_t writes = 0;

    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        if ((ranks >> rank & 1) != 0)
            writes += oracle->lane[lane].board[rank].layer[layer].writes;
    }
    return writes;
}

bool oracle_has_pass(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                     uint32_t layer, uint64_t step, uint32_t pass, bool is_read)
{
    const uint32_t group = geometry_group_of(oracle->geometry, layer);
    const struct m_board *board = &oracle->lane[lane].board[rank];
    const struct m_layer *of = &board->layer[layer];

    if (board->step != step)
        return board->step > step;
    const uint32_t passes = is_read ? of->read : of->passes;
    return pass == 0 || (board->group[group].n > 0 && passes >= pass);
}
