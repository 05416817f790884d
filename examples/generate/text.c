/* SPDX-License-Identifier: Apache-2.0 */
/* Well-formed sequences pass, the rest is replaced. No state. */
#include "examples/generate/text.h"

#include <stdbool.h>
#include <stdlib.h>

#define REPLACEMENT_BYTES 3u

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* How many bytes follow a lead byte, and what the first of them may be. 0xff as *low:
 * no lead byte. */
static uint32_t followers(uint32_t lead, uint32_t *low, uint32_t *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (lead < 0x80)
        return 0;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 1;
    if (lead >= 0xe0 && lead <= 0xef) {
        if (lead == 0xe0)
            *low = 0xa0; /* else overlong */
        if (lead == 0xed)
            *high = 0x9f; /* else a surrogate */
        return 2;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        if (lead == 0xf0)
            *low = 0x90; /* else overlong */
        if (lead == 0xf4)
            *high = 0x8f; /* else above U+10FFFF */
        return 3;
    }
    *low = 0xff;
    return 0;
}

/* Bytes of the sequence at id[0], and whether it is well-formed. */
static uint64_t sequence(const uint32_t *id, uint64_t n, bool *is_well_formed)
{
    uint32_t low, high;
    uint64_t need = followers(id[0], &low, &high);

    *is_well_formed = low != 0xff;
    for (uint64_t i = 1; i <= need; i++) {
        if (i >= n || id[i] < low || id[i] > high) {
            *is_well_formed = false;
            return i;
        }
        low = 0x80;
        high = 0xbf;
    }
    return 1 + need;
}

char *text_from_bytes(const uint32_t *id, uint64_t n, size_t *n_bytes)
{
    /* The worst byte becomes a replacement character. */
    char *text = malloc(n * REPLACEMENT_BYTES + 1);
    size_t used = 0;
    uint64_t length;

    if (text == NULL)
        return NULL;
    for (uint64_t i = 0; i < n; i += length) {
        bool is_well_formed;
        length = sequence(id + i, n - i, &is_well_formed);
        if (is_well_formed) {
            for (uint64_t j = 0; j < length; j++)
                text[used++] = (char)id[i + j];
        } else {
            for (uint32_t j = 0; j < REPLACEMENT_BYTES; j++)
                text[used++] = replacement[j];
        }
    }
    *n_bytes = used;
    return text;
}
