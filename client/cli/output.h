/* SPDX-License-Identifier: Apache-2.0 */
/* What commands print: aligned tables for people, JSON for programs. */
#ifndef KVW_CLIENT_CLI_OUTPUT_H
#define KVW_CLIENT_CLI_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define TABLE_COLUMNS_MAX 16u
#define TEXT_BYTES 64u /* of the short texts below */

/* Rows of cells; every row has as many as the titles. */
struct table {
    uint32_t n_columns;
    uint32_t n_cells;
    uint32_t n_cells_max;
    char **cells; /* the titles first */
};

/** A table with these titles (a string of words with '|' between them); a title that
 *  starts with '>' is of a column that is aligned to the right. */
void table_init(struct table *table, const char *titles);

/** Add the next cell. */
void table_add(struct table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Print all rows. */
void table_print(const struct table *table);

void table_fini(struct table *table);

/** This thread's last failure, whose number is `error`; see main.c. */
json_t *output_error(int error);

/** Print a value and drop it. */
void output_json(json_t *value);

/* Short texts. Each returns `text`. */
const char *text_bytes(char text[TEXT_BYTES], uint64_t n_bytes); /* 9.6 GiB */
const char *text_span(char text[TEXT_BYTES], uint64_t ns);       /* 3 h 20 m */
const char *text_age(char text[TEXT_BYTES], uint64_t then_ns);   /* of a wall time */
const char *text_user(char text[TEXT_BYTES], uint32_t uid);      /* its name */
const char *text_lifetime(char text[TEXT_BYTES], uint32_t lifetime,
                          uint64_t ttl_seconds);
const char *text_rank(char text[TEXT_BYTES], uint32_t rank); /* or "reader" */

#endif
