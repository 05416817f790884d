/* SPDX-License-Identifier: Apache-2.0 */
/* A packet from anybody: what decodes is encoded to the same bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/messages.h"
#include "tests/fuzz/input.h"

static uint32_t word_at(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static void check_encoded(const struct kvw_message *message, const uint8_t *data,
                          size_t size)
{
    uint8_t *bytes = malloc(size);

    KVW_CHECK(size <= KVW_MESSAGE_MAX);
    KVW_CHECK(message_encode(message, bytes, size) == (int)size);
    KVW_CHECK(memcmp(bytes, data, size) == 0);
    KVW_CHECK(message_encode(message, bytes, size - 1) == -EMSGSIZE);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvw_message message;

    int error = message_decode(data, size, &message);
    KVW_CHECK(error == 0 || error == -EPROTO);
    if (size >= KVW_MESSAGE_HEAD_BYTES) {
        KVW_CHECK(message.type == word_at(data + 4));
        KVW_CHECK(message.request == word_at(data + 8));
    }
    KVW_CHECK(message_name(message.type)[0] != 0);
    if (error == 0)
        check_encoded(&message, data, size);
    return 0;
}
