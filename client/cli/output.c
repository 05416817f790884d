/* SPDX-License-Identifier: Apache-2.0 */
/* Tables are collected whole, for the widths of columns come from all of their cells.
 */
#include "client/cli/output.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/include/kvwheel/kvwheel.h"
#include "client/outside.h"
#include "proto/base/check.h"

#define CELLS_FIRST 64u
#define NS_PER_S 1000000000ull

/* ---------------------------------------------------------------- tables ---------- */

static void add_cell(struct table *table, const char *text, size_t n_bytes)
{
    if (table->n_cells == table->n_cells_max) {
        table->n_cells_max =
            table->n_cells_max == 0 ? CELLS_FIRST : 2 * table->n_cells_max;
        table->cells =
            realloc(table->cells, table->n_cells_max * sizeof table->cells[0]);
        KVW_CHECK(table->cells != NULL);
    }
    char *cell = strndup(text, n_bytes);
    KVW_CHECK(cell != NULL);
    table->cells[table->n_cells++] = cell;
}

void table_init(struct table *table, const char *titles)
{
    *table = (struct table){0};
    for (;;) {
        const char *end = strchrnul(titles, '|');
        add_cell(table, titles, (size_t)(end - titles));
        table->n_columns++;
        KVW_CHECK(table->n_columns <= TABLE_COLUMNS_MAX);
        if (*end == 0)
            break;
        titles = end + 1;
    }
}

void table_add(struct table *table, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    add_cell(table, text, strlen(text));
}

static void print_row(const struct table *table, uint32_t first, const size_t *widths)
{
    for (uint32_t c = 0; c < table->n_columns; c++) {
        const char *cell = table->cells[first + c];
        bool is_right = table->cells[c][0] == '>';
        bool is_last = c + 1 == table->n_columns;
        if (first == 0 && is_right)
            cell++;
        int width = is_last && !is_right ? 0 : (int)widths[c];
        printf(is_right ? "%*s" : "%-*s", width, cell);
        fputs(is_last ? "\n" : "  ", stdout);
    }
}

void table_print(const struct table *table)
{
    size_t widths[TABLE_COLUMNS_MAX] = {0};

    for (uint32_t i = 0; i < table->n_cells; i++) {
        size_t width = strlen(table->cells[i]);
        if (i < table->n_columns && table->cells[i][0] == '>')
            width--;
        if (width > widths[i % table->n_columns])
            widths[i % table->n_columns] = width;
    }
    for (uint32_t i = 0; i + table->n_columns <= table->n_cells; i += table->n_columns)
        print_row(table, i, widths);
}

void table_fini(struct table *table)
{
    for (uint32_t i = 0; i < table->n_cells; i++)
        free(table->cells[i]);
    free(table->cells);
    *table = (struct table){0};
}

void output_json(json_t *value)
{
    KVW_CHECK(value != NULL);
    json_dumpf(value, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    fputs("\n", stdout);
    json_decref(value);
}

/* ----------------------------------------------------------------- texts ---------- */

const char *text_bytes(char text[TEXT_BYTES], uint64_t n_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    uint32_t unit = 0;
    double value = (double)n_bytes;

    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(text, TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

const char *text_span(char text[TEXT_BYTES], uint64_t ns)
{
    uint64_t s = ns / NS_PER_S;

    if (s < 60)
        snprintf(text, TEXT_BYTES, "%" PRIu64 " s", s);
    else if (s < 3600)
        snprintf(text, TEXT_BYTES, "%" PRIu64 " m %" PRIu64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(text, TEXT_BYTES, "%" PRIu64 " h %" PRIu64 " m", s / 3600,
                 s / 60 % 60);
    else
        snprintf(text, TEXT_BYTES, "%" PRIu64 " d %" PRIu64 " h", s / 86400,
                 s / 3600 % 24);
    return text;
}

const char *text_age(char text[TEXT_BYTES], uint64_t then_ns)
{
    uint64_t now_ns = outside_now_ns(CLOCK_REALTIME);

    if (then_ns == 0) {
        snprintf(text, TEXT_BYTES, "never");
        return text;
    }
    return text_span(text, now_ns > then_ns ? now_ns - then_ns : 0);
}

const char *text_user(char text[TEXT_BYTES], uint32_t uid)
{
    const struct passwd *user = getpwuid(uid);

    if (user != NULL)
        snprintf(text, TEXT_BYTES, "%.*s", (int)TEXT_BYTES - 1, user->pw_name);
    else
        snprintf(text, TEXT_BYTES, "%" PRIu32, uid);
    return text;
}

const char *text_lifetime(char text[TEXT_BYTES], uint32_t lifetime,
                          uint64_t ttl_seconds)
{
    if (lifetime == KVW_LIFETIME_TTL)
        snprintf(text, TEXT_BYTES, "ttl:%" PRIu64, ttl_seconds);
    else
        snprintf(text, TEXT_BYTES, "%s", lifetime == KVW_LIFETIME_JOB ? "job" : "keep");
    return text;
}

const char *text_rank(char text[TEXT_BYTES], uint32_t rank)
{
    if (rank == KVW_READER)
        snprintf(text, TEXT_BYTES, "reader");
    else
        snprintf(text, TEXT_BYTES, "%" PRIu32, rank);
    return text;
}
