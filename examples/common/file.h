/* SPDX-License-Identifier: Apache-2.0 */
/* Small files read whole, and JSON in them. Everything read is hostile input. */
#ifndef COMMON_FILE_H
#define COMMON_FILE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "examples/common/fail.h"

/* A file in memory, with a zero behind its last byte. */
struct file_text {
    char *bytes; /* heap; freed by file_free() */
    size_t n_bytes;
};

/**
 * Read a regular file whole.
 *
 * @param bytes_max  A larger file is refused.
 * @param code       Exit code of a refusal.
 * @return 0 or -EINVAL.
 */
int file_read(const char *path, size_t bytes_max, int code, struct file_text *text,
              struct fail *fail);

void file_free(struct file_text *text);

/** "FOLDER/NAME" on the heap, or NULL when memory ran out. */
char *file_join(const char *folder, const char *name);

/** Parse one JSON object; a key that stands twice is refused. `name` is for the
 * refusal.
 *  @return the object (json_decref() it), or NULL. */
json_t *file_parse_object(const char *text, size_t n_bytes, const char *name,
                          struct fail *fail);

#endif
