/* SPDX-License-Identifier: Apache-2.0 */
/* What byte tokens spell, as text that any reader of UTF-8 takes. */
#ifndef GENERATE_TEXT_H
#define GENERATE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/**
 * UTF-8 of bytes that may be anything: each ill-formed run becomes U+FFFD, by "maximal
 * subparts" (The Unicode Standard 15, section 3.9, table 3-7 and the practice after
 * it), which is what Python's bytes.decode("utf-8", "replace") gives.
 *
 * @param id       n token ids; those above 255 are ill-formed.
 * @param n_bytes  [out] of the result, which has no zero behind it.
 * @return the text on the heap, or NULL when memory ran out.
 */
char *text_from_bytes(const uint32_t *id, uint64_t n, size_t *n_bytes);

#endif
