/* SPDX-License-Identifier: Apache-2.0 */
/* See stage.h. */
#include "tests/fuzz/stage.h"

#include <sys/mman.h>
#include <unistd.h>

#include "client/mirror.h"
#include "tests/fuzz/atomics.h"

/* A call looks at each pin some times, at each record some more, and retries. What
 * loads more than this does not end while somebody goes on writing. */
#define LOADS_MAX (4u << 20)

/* The storm that rages now; it is over when all its changes were made, unless it comes
 * again and again. */
static struct {
    struct change change[STAGE_CHANGES];
    uint32_t n_changes;
    uint32_t next;
    uint64_t wait; /* loads until then */
    bool is_endless;
    uint32_t n_loads; /* of the call */
} storm;

void stage_call_begins(void)
{
    storm.n_loads = 0;
}

void stage_loading(void)
{
    KVW_CHECK(++storm.n_loads < LOADS_MAX);
    if (storm.next == storm.n_changes)
        return;
    if (storm.wait > 0) {
        storm.wait--;
        return;
    }
    const struct change *change = &storm.change[storm.next++];
    *change->word = change->value;
    if (storm.is_endless)
        storm.next %= storm.n_changes;
    storm.wait = storm.next < storm.n_changes ? storm.change[storm.next].after : 0;
}

/* Map a segment between two pages that are not there. */
static char *map_between(int fd, uint64_t n_bytes, int protection)
{
    char *base = mmap(NULL, n_bytes + 2 * KVW_PAGE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    KVW_CHECK(base != MAP_FAILED);
    KVW_CHECK(mmap(base + KVW_PAGE, n_bytes, protection, MAP_SHARED | MAP_FIXED, fd,
                   0) != MAP_FAILED);
    return base + KVW_PAGE;
}

void stage_init(struct stage *stage, const uint64_t n_bytes[STAGE_SEGMENTS])
{
    for (int s = 0; s < STAGE_SEGMENTS; s++) {
        KVW_CHECK(n_bytes[s] % KVW_PAGE == 0 && n_bytes[s] <= STAGE_BYTES_MAX);
        stage->n_bytes[s] = n_bytes[s];
        stage->fd[s] = memfd_create("stage", MFD_CLOEXEC);
        KVW_CHECK(stage->fd[s] >= 0);
        KVW_CHECK(ftruncate(stage->fd[s], (off_t)n_bytes[s]) == 0);
        stage->base[s] = map_between(stage->fd[s], n_bytes[s], PROT_READ | PROT_WRITE);
        stage->readable[s] = map_between(stage->fd[s], n_bytes[s], PROT_READ);
    }
    storm.n_changes = 0;
    storm.next = 0;
}

void stage_fini(struct stage *stage)
{
    stage_call_begins();
    for (uint32_t place = 0; place < STAGE_CACHES; place++)
        stage_detach(stage, place);
    for (int s = 0; s < STAGE_SEGMENTS; s++) {
        const uint64_t mapped_bytes = stage->n_bytes[s] + 2 * KVW_PAGE;
        (void)munmap(stage->base[s] - KVW_PAGE, mapped_bytes);
        (void)munmap(stage->readable[s] - KVW_PAGE, mapped_bytes);
        close(stage->fd[s]);
    }
}

int stage_attach(struct stage *stage, uint32_t place, uint32_t rank)
{
    char **const from = rank == KVW_READER ? stage->readable : stage->base;
    struct kvw_cache *cache;

    stage_call_begins();
    const struct cache_segments segments = {
        {from[STAGE_CONTROL], stage->base[STAGE_PINS], from[STAGE_DATA]},
        {stage->n_bytes[STAGE_CONTROL], stage->n_bytes[STAGE_PINS],
         stage->n_bytes[STAGE_DATA]}};
    int error = cache_new(&segments, rank, place, &cache);
    if (error != 0)
        return error;
    cache->options.timeout_ns = 1;
    cache->options.spin_us = 0;
    stage->cache[place] = cache;
    error = mirror_map(cache, stage->fd[STAGE_DATA]);
    if (error != 0)
        stage_detach(stage, place);
    return error;
}

void stage_detach(struct stage *stage, uint32_t place)
{
    struct kvw_cache *cache = stage->cache[place];

    if (cache == NULL)
        return;
    mirror_unmap(cache);
    cache_free(cache);
    stage->cache[place] = NULL;
}

static uint64_t *word_at(struct stage *stage, int segment, uint64_t offset)
{
    KVW_CHECK(offset <= stage->n_bytes[segment] - 8);
    return (uint64_t *)(void *)(stage->base[segment] + offset / 8 * 8);
}

static uint64_t *board_word(struct stage *stage, struct input *input)
{
    const struct kvw_layout *layout = &stage->layout;
    const uint64_t n_boards =
        (uint64_t)stage->geometry.n_ranks * stage->geometry.n_lanes;
    const uint64_t board =
        layout->boards_offset + input_below(input, n_boards) * layout->board_bytes;
    uint64_t first = 0;
    uint64_t n_words = 6; /* the last ones are reserved */
    uint64_t version;
    uint8_t back;

    switch (input_below(input, 4)) {
    case 0:
        break;
    case 1:
        first = layout->claims_offset;
        n_words = stage->geometry.n_groups * sizeof(struct kvw_board_claim) / 8;
        break;
    case 2:
        /* Mostly the newest, which is what everybody looks at. */
        back = input_u8(input);
        version = *word_at(stage, STAGE_CONTROL, board) - (back < 128 ? 0 : back & 7);
        first = layout->records_offset + version % KVW_RECORDS * layout->record_bytes;
        n_words = layout->record_words;
        break;
    default:
        first = layout->staged_offset;
        n_words = (uint64_t)KVW_LAYER_WORDS * stage->geometry.n_layers;
        break;
    }
    return word_at(stage, STAGE_CONTROL,
                   board + first + 8 * input_below(input, n_words));
}

static uint64_t *pin_word(struct stage *stage, struct input *input)
{
    const uint64_t slot = input_below(input, STAGE_CACHES);
    const uint64_t index = input_below(input, 4);

    return word_at(stage, STAGE_PINS,
                   stage->layout.pins_offset +
                       (slot * KVW_PINS_PER_ATTACHMENT + index) *
                           sizeof(struct kvw_pin) +
                       8 * input_below(input, 8));
}

uint64_t *stage_word(struct stage *stage, struct input *input)
{
    const struct kvw_layout *layout = &stage->layout;

    switch (input_below(input, 12)) {
    case 0:
        return word_at(stage, STAGE_CONTROL,
                       offsetof(struct kvw_control_header, state));
    case 1:
        return word_at(stage, STAGE_CONTROL,
                       layout->seats_offset +
                           input_below(input, stage->geometry.n_ranks) *
                               sizeof(struct kvw_seat) +
                           8 * input_below(input, 4));
    case 2:
        return word_at(stage, STAGE_CONTROL,
                       input_below(input, stage->n_bytes[STAGE_CONTROL] - 7));
    case 3:
        return word_at(stage, STAGE_PINS,
                       layout->high_offset + 8 * input_below(input, 4));
    case 4:
        return word_at(stage, STAGE_PINS,
                       input_below(input, stage->n_bytes[STAGE_PINS] - 7));
    case 5:
    case 6:
        return pin_word(stage, input);
    default:
        return board_word(stage, input);
    }
}

void stage_poke(struct stage *stage, struct input *input)
{
    uint64_t *word = stage_word(stage, input);

    *word = input_number(input, *word);
}

void stage_storm(struct stage *stage, struct input *input)
{
    const uint8_t kind = input_u8(input);

    storm.next = 0;
    storm.n_changes = kind % STAGE_CHANGES;
    storm.is_endless = kind >= 128 && storm.n_changes > 0;
    for (uint32_t i = 0; i < storm.n_changes; i++) {
        struct change *change = &storm.change[i];
        change->word = stage_word(stage, input);
        change->value = input_number(input, *change->word);
        change->after = input_u8(input);
    }
    storm.wait = storm.n_changes > 0 ? storm.change[0].after : 0;
}
