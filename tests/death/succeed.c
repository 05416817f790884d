/* SPDX-License-Identifier: Apache-2.0 */
/* See succeed.h. */
#include "tests/death/succeed.h"

#include <errno.h>
#include <inttypes.h>

#include "client/board.h"
#include "client/client.h"

enum { GRAVES_MAX = 16, CHUNKS_OF_A_WINDOW = 4 };

/* The copy and those who live on it. */
struct after {
    struct scene *scene;
    struct m_lane lane;
    struct kvw_cache *look;
    struct kvw_cache *worker[RANKS_MAX];
    struct held held;
    struct held witness;
    struct onlooker onlooker[2]; /* from before the call, and from the death on */
    struct kvw_cache *grave[GRAVES_MAX]; /* died on the copy: freed at the end */
    uint32_t n_graves;
};

/* ------------------------------------------------------- readers ---------- */

static void look_at_layer(struct kvw_cache *reader, uint32_t layer, uint64_t ranks,
                          uint32_t flags, const struct m_record *record, uint64_t step)
{
    struct kvw_view view;

    int error = kvw_cut(reader, 0, (struct kvw_layer){layer}, ranks, flags, &view);
    EXPECT(error == 0, "cut of ranks %#" PRIx64 ": %d, %s", ranks, error,
           kvw_last_error());
    if (error != 0)
        return;
    const char *wrong = model_check_view(record, &view, step, 0, 0, 0);
    EXPECT(wrong == NULL, "ranks %#" PRIx64 ": %s", ranks, wrong);
    OK(kvw_release(reader, &view));
}

/* Nothing protects the rows of an unpinned view: but if its release says that they are
 * good, they are. It may be asked any number of times. */
static void ask_witness(const struct after *after)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct kvw_view view = after->witness.view[layer];
        const char *wrong = model_check_bytes(&after->witness.record, &view);
        int error = kvw_release(after->look, &view);
        EXPECT(error == -KVW_EOVERRUN || (error == 0 && wrong == NULL),
               "release of an unpinned view: %d; %s", error, wrong);
    }
    onlooker_ask(after->look, &after->onlooker[0]);
    onlooker_ask(after->look, &after->onlooker[1]);
}

static void say_damage(void *context, const struct kvw_damage *damage)
{
    (void)context;
    EXPECT(false, "verify: %s", damage->text);
}

/* All layers, groups and planes at one step (R1, R4, R5, R9). */
static void look(const struct after *after)
{
    const struct m_lane *lane = &after->lane;
    const uint64_t common = model_common(lane);
    struct kvw_lane_state state;

    ask_witness(after);
    OK(kvw_verify(after->look, say_damage, NULL, NULL));
    OK(kvw_state(after->look, 0, KVW_ALL_RANKS, &state));
    const char *wrong = model_check_state(&lane->record[common], &state);
    EXPECT(wrong == NULL, "state: %s", wrong);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        look_at_layer(after->look, layer, 0, KVW_COMMITTED, &lane->record[common],
                      common);
        for (uint32_t rank = 0; rank < lane->n_ranks; rank++)
            look_at_layer(after->look, layer, 1ull << rank, KVW_UNPINNED,
                          &lane->record[lane->at[rank]], lane->at[rank]);
    }
}

/* Which of the two states rank 0 is in; never back from the second to the first. */
static bool find_state(const struct after *after, struct outcome *outcome)
{
    struct kvw_lane_state state = {0};

    OK(kvw_state(after->look, 0, 0, &state));
    const bool is_before =
        state.step == outcome->step[0] && state.era == outcome->era[0];
    const bool is_after =
        state.step == outcome->step[1] && state.era == outcome->era[1];
    EXPECT(is_before || is_after, "rank 0 is at step %" PRIu64 ", era %" PRIu64,
           state.step, state.era);
    EXPECT(is_after || !outcome->is_after, "back at step %" PRIu64, state.step);
    outcome->is_after = outcome->is_after || (is_after && !is_before);
    return is_after;
}

/* Views of the live cache as views of the copy. */
static void move(const struct scene *scene, struct kvw_view views[LAYERS])
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t p = 0; p < PLANES && views[layer].plane[p].base != NULL; p++)
            views[layer].plane[p].base += scene->copy.data - scene->live.data;
}

/* The readers that have views all the while, on the copy. */
static void move_readers(struct after *after)
{
    const struct scene *scene = after->scene;

    after->witness = scene->witness;
    move(scene, after->witness.view);
    after->onlooker[0] = scene->onlooker;
    move(scene, after->onlooker[0].view);
    onlooker_look(after->look, &after->onlooker[1]);
    after->held.reader = NULL;
    if (scene->held.reader == NULL)
        return;
    after->held = scene->held;
    move(scene, after->held.view);
    after->held.reader = stage_attach(&scene->copy, KVW_READER, SLOT_HELD);
    after->held.reader->pins_used = scene->held.reader->pins_used;
}

/* R11: what is pinned stays, unless its release says otherwise. */
static bool held_is_intact(const struct held *held, const char **wrong)
{
    *wrong = NULL;
    for (uint32_t layer = 0; layer < LAYERS && *wrong == NULL; layer++)
        *wrong = model_check_bytes(&held->record, &held->view[layer]);
    return *wrong == NULL;
}

static void check_held(const struct after *after)
{
    const char *wrong;

    if (after->held.reader != NULL &&
        after->scene->worker[0]->options.pin_policy != KVW_PIN_REVOKE)
        EXPECT(held_is_intact(&after->held, &wrong), "pinned: %s", wrong);
}

static void release_held(struct after *after)
{
    struct held *held = &after->held;

    if (held->reader == NULL)
        return;
    check_held(after);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const char *wrong = model_check_bytes(&held->record, &held->view[layer]);
        int error = kvw_release(held->reader, &held->view[layer]);
        EXPECT(error == -KVW_EOVERRUN || (error == 0 && wrong == NULL),
               "release of layer %u: %d; %s", layer, error, wrong);
    }
    after->grave[after->n_graves++] = held->reader;
    held->reader = NULL;
}

/* -------------------------------------------------------- owners ---------- */

/* A dead owner's step is there at once, and nobody waits for its next one. */
static void wait_for_the_dead(const struct after *after, uint32_t rank)
{
    const uint64_t at = after->lane.at[rank];

    OK(kvw_wait_step(after->look, 0, rank, at, 0));
    int error = kvw_wait_step(after->look, 0, rank, at + 1, KVW_NO_TIMEOUT);
    EXPECT(error == -EOWNERDEAD, "wait for a dead rank: %d", error);
}

static void die(struct after *after, uint32_t rank)
{
    if (after->worker[rank] != NULL)
        after->grave[after->n_graves++] = after->worker[rank];
    after->worker[rank] = NULL;
    stage_bury(&after->scene->copy, rank);
}

static void take_over(struct after *after, struct outcome *outcome, uint32_t rank)
{
    const struct stage *copy = &after->scene->copy;

    struct kvw_board *board = layout_board(copy->control, &copy->layout, 1, rank, 0);
    const uint64_t claims = load_relaxed(&board->claim);

    stage_admit(copy, rank);
    after->worker[rank] = stage_attach(copy, rank, rank);
    outcome->n_takeovers++;
    EXPECT(load_relaxed(&board->claim) == claims + 1,
           "claims: %" PRIu64 ", not %" PRIu64, load_relaxed(&board->claim),
           claims + 1);
    for (uint32_t g = 0; g < GROUPS; g++) {
        const struct kvw_board_claim *claim =
            board_claim(after->worker[rank], board, g);
        EXPECT(load_relaxed(&claim->open) == 0, "group %u: a chunk is open", g);
        EXPECT(load_relaxed(&claim->want) == load_relaxed(&claim->hi),
               "group %u: a claim that led to nothing is still there", g);
    }
}

/* An act by one rank. A live reader's pin is respected until it lets go. */
static void run(struct after *after, uint32_t rank, const struct act *act)
{
    struct m_lane *lane = &after->lane;
    const struct m_record *from = &lane->record[lane->at[rank]];

    int error = act_run(after->scene, after->worker[rank], from, act, true);
    if (error == -EBUSY && after->held.reader != NULL) {
        release_held(after);
        error = act_run(after->scene, after->worker[rank], from, act, true);
    }
    check_held(after);
    EXPECT(error == 0, "rank %u, act %d: %d, %s", rank, act->kind, error,
           kvw_last_error());
    lane->at[rank]++;
}

static void run_all(struct after *after, const struct act *act)
{
    struct m_lane *lane = &after->lane;
    const uint64_t at = lane->at[0];

    model_apply(&lane->record[at], act, &lane->record[at + 1]);
    for (uint32_t rank = 0; rank < lane->n_ranks; rank++)
        run(after, rank, act);
}

/* A rank that is behind takes the step that the other one has taken. */
static void level(struct after *after)
{
    struct m_lane *lane = &after->lane;

    for (uint32_t rank = 0; rank < lane->n_ranks && lane->n_ranks == 2; rank++) {
        while (lane->at[rank] < lane->at[1 - rank])
            run(after, rank, &lane->record[lane->at[rank] + 1].act);
    }
}

static void recover(struct after *after)
{
    struct m_lane *lane = &after->lane;
    const uint64_t common = model_common(lane);
    bool is_done[RANKS_MAX] = {false};

    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t rank = 0; rank < lane->n_ranks; rank++) {
            uint64_t step = UINT64_MAX;
            if (is_done[rank])
                continue;
            int error = kvw_recover(after->worker[rank], 0, 0, &step);
            is_done[rank] = error == 0;
            EXPECT(error == 0 ? step == common : error == -ETIMEDOUT && round == 0,
                   "rank %u recovers to step %" PRIu64 ", not %" PRIu64 ": %d, %s",
                   rank, step, common, error, kvw_last_error());
        }
    }
    for (uint32_t rank = 0; rank < lane->n_ranks; rank++)
        lane->at[rank] = common;
}

/* New owners write some of the chunk, other bytes than the dead one, and die as well.
 */
static void die_again(struct after *after, struct outcome *outcome)
{
    const struct m_lane *lane = &after->lane;
    struct act act = after->scene->act;

    act.stamp = model_stamp();
    if (act.kind == ACT_CHUNK &&
        act.item[0].row == lane->record[lane->at[0]].group[act.item[0].group].rows &&
        act_begin(after->worker[0], &act) == 0)
        act_write(after->scene, after->worker[0], &lane->record[lane->at[0]], &act, 1);
    check_held(after);
    die(after, 0);
    take_over(after, outcome, 0);
    look(after);
}

/* The same step anew: other bytes than the dead one, so that none of those is taken for
 * written. */
static struct act again(const struct scene *scene)
{
    struct act act = scene->act;

    if (act.kind == ACT_CHUNK) {
        act.stamp = model_stamp();
        for (uint32_t i = 0; i < act.n_items; i++)
            act.item[i].epoch = act.stamp;
    }
    return act;
}

/* Once around. */
static void go_on(struct after *after)
{
    const struct m_lane *lane = &after->lane;

    for (uint32_t i = 0; i < CHUNKS_OF_A_WINDOW; i++) {
        struct act act =
            model_chunk_act(&lane->record[lane->at[0]], model_chunk(0), model_chunk(1));
        run_all(after, &act);
        look(after);
    }
}

/* `deaths`: of the new owners of rank 0, before one lives. */
static void succeed(struct after *after, struct outcome *outcome, uint32_t deaths)
{
    struct m_lane *lane = &after->lane;
    const struct scene *scene = after->scene;

    stage_clear_pins(&scene->copy, SLOT_READER);
    for (uint32_t rank = 0; rank < lane->n_ranks; rank++) {
        die(after, rank);
        wait_for_the_dead(after, rank);
        take_over(after, outcome, rank);
    }
    for (uint32_t i = 0; i < deaths; i++) {
        die(after, 0);
        take_over(after, outcome, 0);
    }
    look(after);
    if (deaths > 0 && !outcome->is_recovery && lane->n_ranks == 1)
        die_again(after, outcome);
    if (outcome->is_recovery || (deaths > 0 && lane->n_ranks > 1))
        recover(after);
    else
        level(after);
    look(after);
    if (!outcome->is_recovery && lane->at[0] == outcome->step[0]) {
        struct act act = again(scene);
        run_all(after, &act);
        look(after);
    }
    go_on(after);
    release_held(after);
}

void succeed_check(struct scene *scene, struct outcome *outcome)
{
    static struct after after;

    for (uint32_t deaths = 0; deaths < 2; deaths++) {
        scene_copy(scene);
        after.scene = scene;
        after.lane = scene->lane;
        after.n_graves = 0;
        after.worker[0] = after.worker[1] = NULL;
        after.look = stage_attach(&scene->copy, KVW_READER, SLOT_LOOK);
        move_readers(&after);
        const bool is_after = find_state(&after, outcome);
        after.lane.at[0] = outcome->step[is_after];
        if (is_after && outcome->step[0] < outcome->step[1])
            onlooker_expect(after.look, &after.onlooker[1],
                            &after.lane.record[after.lane.at[0]]);
        look(&after);
        check_held(&after);
        succeed(&after, outcome, deaths);

        cache_free(after.look);
        for (uint32_t rank = 0; rank < RANKS_MAX; rank++)
            cache_free(after.worker[rank]);
        for (uint32_t i = 0; i < after.n_graves; i++)
            cache_free(after.grave[i]);
    }
    outcome->n_states++;
}
