/* SPDX-License-Identifier: Apache-2.0 */
/* See kernels.h. */
#include "examples/generate/kernels.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Types of keys and values; the one with the most variants first. */
static const uint32_t types[] = {KVW_NUM_BF16, KVW_NUM_F32, KVW_NUM_F16};

#define N_TYPES (sizeof types / sizeof types[0])

static bool can_run(const struct kvw_attn_variant *variant)
{
    return (variant->cpu_need & ~kvw_cpu_flags()) == 0;
}

/* The first variant of a name that this CPU can run, of any type, or NULL. */
static const struct kvw_attn_variant *find(const char *name)
{
    for (size_t t = 0; t < N_TYPES; t++) {
        uint32_t n;
        const struct kvw_attn_variant *rows = kvw_attn_variants(types[t], &n);
        for (uint32_t i = 0; i < n; i++) {
            if (strcmp(rows[i].name, name) == 0 && can_run(&rows[i]))
                return &rows[i];
        }
    }
    return NULL;
}

/* The names, best first, each once: what a row finds by its own name is itself. */
static void list_names(char *list, size_t n_room)
{
    size_t n_bytes = 0;

    list[0] = 0;
    for (size_t t = 0; t < N_TYPES; t++) {
        uint32_t n;
        const struct kvw_attn_variant *rows = kvw_attn_variants(types[t], &n);
        for (uint32_t i = 0; i < n && n_bytes < n_room; i++) {
            if (find(rows[i].name) == &rows[i])
                n_bytes += (size_t)snprintf(list + n_bytes, n_room - n_bytes, "%s%s",
                                            n_bytes == 0 ? "" : ", ", rows[i].name);
        }
    }
}

int kernels_check(const char *name, struct fail *fail)
{
    char list[200];

    if (find(name) != NULL)
        return 0;
    list_names(list, sizeof list);
    return fail_set(fail, FAIL_USAGE, "--kernels: this CPU has %s; have %.40s", list,
                    name);
}

struct kernels kernels_choose(const char *name, uint32_t type)
{
    const struct kvw_attn_variant *named = name == NULL ? NULL : find(name);
    struct kernels kernels = {0};

    if (named == NULL) {
        kernels.name = kvw_attn_select(type, kvw_cpu_flags())->name;
        return kernels;
    }
    const struct kvw_attn_variant *attn = kvw_attn_select(type, named->cpu_need);
    kernels.name = attn->name;
    kernels.attn = attn->fn;
    kernels.rope = kvw_rope_select(named->cpu_need)->fn;
    kernels.convert = kvw_convert_select(KVW_NUM_F32, type, named->cpu_need)->fn;
    return kernels;
}

int kernels_attend(const struct kernels *kernels, const struct kvw_attn_args *args)
{
    if (kernels->attn == NULL)
        return kvw_attn_run(args);
    kernels->attn(args);
    return 0;
}

int kernels_rotate(const struct kernels *kernels, const struct kvw_rope_args *args)
{
    if (kernels->rope == NULL)
        return kvw_rope_apply(args);
    kernels->rope(args);
    return 0;
}

int kernels_convert(const struct kernels *kernels, const struct kvw_convert_args *args)
{
    if (kernels->convert == NULL)
        return kvw_rows_convert(args);
    kernels->convert(args);
    return 0;
}
