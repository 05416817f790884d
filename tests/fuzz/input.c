/* SPDX-License-Identifier: Apache-2.0 */
/* See input.h. */
#include "tests/fuzz/input.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint8_t input_u8(struct input *input)
{
    if (input->left_bytes == 0)
        return 0;
    input->left_bytes--;
    return *input->at++;
}

uint16_t input_u16(struct input *input)
{
    const uint16_t low = input_u8(input);

    return (uint16_t)(low | input_u8(input) << 8);
}

uint64_t input_u64(struct input *input)
{
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        value |= (uint64_t)input_u8(input) << (8 * i);
    return value;
}

uint64_t input_below(struct input *input, uint64_t end)
{
    if (end <= 1u << 8)
        return input_u8(input) % end;
    if (end <= 1u << 16)
        return input_u16(input) % end;
    return input_u64(input) % end;
}

void input_bytes(struct input *input, void *to, size_t n_bytes)
{
    if (n_bytes > input->left_bytes)
        n_bytes = input->left_bytes;
    if (n_bytes == 0)
        return;
    memcpy(to, input->at, n_bytes);
    input->at += n_bytes;
    input->left_bytes -= n_bytes;
}

uint64_t input_number(struct input *input, uint64_t base)
{
    const uint8_t kind = input_u8(input);

    switch (kind >> 5) {
    case 0:
        return base + (kind & 31);
    case 1:
        return base - (kind & 31);
    case 2:
        return kind & 31;
    case 3:
        return UINT64_MAX - (kind & 31);
    case 4: /* around the limits that hold for words of 32, 62 and 63 bits */
        return ((uint64_t)1 << (31 + (kind & 31))) - 1 + (input_u8(input) & 1);
    case 5:
        return base ^ (uint64_t)1 << (input_u8(input) & 63);
    case 6:
        return input_u16(input);
    default:
        return input_u64(input);
    }
}

static void take_planes(struct input *input, struct kvw_geometry_group *group)
{
    group->n_planes = (uint32_t)input_below(input, 2) + 1;
    for (uint32_t p = 0; p < group->n_planes; p++) {
        struct kvw_geometry_plane *plane = &group->plane[p];
        (void)snprintf(plane->name, sizeof plane->name, "p%u", p);
        plane->type = (uint8_t)(input_below(input, 6) + 1);
        plane->elems = (uint32_t)input_below(input, 16) + 1;
        if (group->is_contiguous)
            plane->elems *= 128; /* else thousands of rows make whole pages */
    }
}

static void take_group(struct input *input, struct kvw_geometry *geometry, uint32_t g)
{
    struct kvw_geometry_group *group = &geometry->group[g];
    const uint8_t kinds = input_u8(input);
    uint16_t number = kinds >> 4 & 1;

    (void)snprintf(group->name, sizeof group->name, "g%u", g);
    group->policy = kinds & 1 ? KVW_GEOMETRY_REFUSE : KVW_GEOMETRY_ROLL;
    group->kind = kinds & 2 ? KVW_GEOMETRY_ROW : KVW_GEOMETRY_CHUNK;
    group->positions = kinds & 4 ? KVW_GEOMETRY_WINDOW : KVW_GEOMETRY_ABSOLUTE;
    group->is_contiguous = kinds >> 3 & 1;
    group->sink_rows = input_below(input, 5);
    group->chunk_rows_max = input_below(input, 8) + 1;
    group->window_rows =
        group->sink_rows + group->chunk_rows_max + input_below(input, 24);
    group->keep_rows = input_below(input, 8);
    if (group->policy == KVW_GEOMETRY_ROLL)
        group->slack_chunks = (uint32_t)input_below(input, 3) + 1;
    group->n_heads = (uint32_t)input_below(input, 4) + 1;
    group->n_layers = (uint32_t)input_below(input, 3) + 1;
    group->layer_first = geometry->n_layers;
    for (uint32_t i = 0; i < group->n_layers; i++)
        geometry->model_layer[geometry->n_layers++] = number++;
    take_planes(input, group);
}

void input_geometry(struct input *input, struct kvw_geometry *geometry)
{
    struct kvw_geometry_partition *parts = &geometry->partition;
    const uint8_t shape = input_u8(input);
    const uint8_t split = input_u8(input);

    memset(geometry, 0, sizeof *geometry);
    geometry->n_groups = (shape & 3u) % 3 + 1;
    geometry->n_lanes = (shape >> 2 & 3u) + 1;
    parts->head_parts = (split & 3u) + 1;
    parts->layer_parts = (split >> 2 & 1u) + 1;
    parts->lane_parts = (split >> 3 & 1u) + 1;
    parts->row_parts = (split >> 4 & 3u) + 1;
    parts->row_block = parts->row_parts == 1 ? 0 : (shape >> 4) + 1u;
    geometry->n_ranks =
        parts->head_parts * parts->layer_parts * parts->lane_parts * parts->row_parts;
    for (uint32_t g = 0; g < geometry->n_groups; g++)
        take_group(input, geometry, g);
}

void input_any_geometry(struct input *input, struct kvw_geometry *geometry)
{
    memset(geometry, 0, sizeof *geometry);
    input_bytes(input, geometry, offsetof(struct kvw_geometry, group));
    for (uint32_t g = 0; g < geometry->n_groups && g < KVW_GROUPS_MAX; g++)
        input_bytes(input, &geometry->group[g], sizeof geometry->group[g]);
    for (uint32_t i = 0; i < geometry->n_layers && i < KVW_LAYERS_MAX; i++)
        geometry->model_layer[i] = input_u16(input);
}

const char *input_file(const void *bytes, size_t n_bytes)
{
    static int fd = -1;
    static char path[64];

    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    KVW_CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
    KVW_CHECK(pwrite(fd, bytes, n_bytes, 0) == (ssize_t)n_bytes);
    return path;
}
