/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coder and decoder, both unrolled from messages.def by the preprocessor: a field
 * cannot be written in one order and read in another.
 */
#include "proto/messages.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define MESSAGE_MAGIC 0x3177766bu /* "kvw1" */

/* A bounded cursor. Once something did not fit, everything after it does nothing. */
struct coder {
    uint8_t *to;         /* encoding */
    const uint8_t *from; /* decoding */
    size_t left_bytes;
    bool is_failed;
};

static void put_bytes(struct coder *coder, const void *bytes, size_t n_bytes)
{
    if (coder->is_failed || n_bytes > coder->left_bytes) {
        coder->is_failed = true;
        return;
    }
    if (n_bytes > 0)
        memcpy(coder->to, bytes, n_bytes);
    coder->to += n_bytes;
    coder->left_bytes -= n_bytes;
}

static void put_u32(struct coder *coder, uint32_t value)
{
    uint8_t bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    put_bytes(coder, bytes, sizeof bytes);
}

static void put_u64(struct coder *coder, uint64_t value)
{
    put_u32(coder, (uint32_t)value);
    put_u32(coder, (uint32_t)(value >> 32));
}

static void put_block(struct coder *coder, const void *bytes, size_t n_bytes,
                      size_t bytes_max)
{
    if (n_bytes > bytes_max) {
        coder->is_failed = true;
        return;
    }
    put_u32(coder, (uint32_t)n_bytes);
    put_bytes(coder, bytes, n_bytes);
}

static const uint8_t *get_bytes(struct coder *coder, size_t n_bytes)
{
    if (coder->is_failed || n_bytes > coder->left_bytes) {
        coder->is_failed = true;
        return NULL;
    }
    const uint8_t *bytes = coder->from;
    coder->from += n_bytes;
    coder->left_bytes -= n_bytes;
    return bytes;
}

static uint32_t get_u32(struct coder *coder)
{
    const uint8_t *bytes = get_bytes(coder, 4);
    if (bytes == NULL)
        return 0;
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static uint64_t get_u64(struct coder *coder)
{
    uint64_t low = get_u32(coder);
    return low | (uint64_t)get_u32(coder) << 32;
}

static const uint8_t *get_block(struct coder *coder, uint32_t *n_bytes,
                                size_t bytes_max)
{
    *n_bytes = get_u32(coder);
    if (*n_bytes > bytes_max)
        coder->is_failed = true;
    const uint8_t *bytes = get_bytes(coder, *n_bytes);
    if (bytes == NULL)
        *n_bytes = 0;
    return bytes;
}

static void get_string(struct coder *coder, char *string, size_t length_max)
{
    uint32_t length;
    const uint8_t *bytes = get_block(coder, &length, length_max);

    if (bytes != NULL && memchr(bytes, 0, length) != NULL)
        coder->is_failed = true;
    if (bytes != NULL && length > 0)
        memcpy(string, bytes, length);
    string[length] = 0;
}

#define U32(field) put_u32(coder, m->field);
#define U64(field) put_u64(coder, m->field);
#define STR(field, max) put_block(coder, m->field, strnlen(m->field, (max) + 1), max);
#define BYTES(field, max) put_block(coder, m->field, m->field##_bytes, max);
#define KVW_MESSAGE(NAME, name, number, fields)                                     \
    static void put_##name(struct coder *coder, const struct kvw_message_##name *m) \
    {                                                                               \
        fields                                                                      \
    }
#include "proto/messages.def"
#undef KVW_MESSAGE
#undef U32
#undef U64
#undef STR
#undef BYTES

#define U32(field) m->field = get_u32(coder);
#define U64(field) m->field = get_u64(coder);
#define STR(field, max) get_string(coder, m->field, max);
#define BYTES(field, max) m->field = get_block(coder, &m->field##_bytes, max);
#define KVW_MESSAGE(NAME, name, number, fields)                               \
    static void get_##name(struct coder *coder, struct kvw_message_##name *m) \
    {                                                                         \
        fields                                                                \
    }
#include "proto/messages.def"
#undef KVW_MESSAGE
#undef U32
#undef U64
#undef STR
#undef BYTES

int message_encode(const struct kvw_message *message, uint8_t *bytes, size_t bytes_max)
{
    struct coder body = {.to = bytes + KVW_MESSAGE_HEAD_BYTES};
    struct coder head = {.to = bytes, .left_bytes = KVW_MESSAGE_HEAD_BYTES};

    if (bytes_max < KVW_MESSAGE_HEAD_BYTES)
        return -EMSGSIZE;
    body.left_bytes = bytes_max - KVW_MESSAGE_HEAD_BYTES;
    switch (message->type) {
#define KVW_MESSAGE(NAME, name, number, fields) \
    case number:                                \
        put_##name(&body, &message->name);      \
        break;
#include "proto/messages.def"
#undef KVW_MESSAGE
    default:
        return -EINVAL;
    }
    if (body.is_failed)
        return -EMSGSIZE;
    size_t body_bytes = (size_t)(body.to - bytes) - KVW_MESSAGE_HEAD_BYTES;
    put_u32(&head, MESSAGE_MAGIC);
    put_u32(&head, message->type);
    put_u32(&head, message->request);
    put_u32(&head, (uint32_t)body_bytes);
    return (int)(body_bytes + KVW_MESSAGE_HEAD_BYTES);
}

int message_decode(const uint8_t *bytes, size_t n_bytes, struct kvw_message *message)
{
    struct coder body = {.from = bytes, .left_bytes = n_bytes};

    *message = (struct kvw_message){0};
    uint32_t magic = get_u32(&body);
    message->type = get_u32(&body);
    message->request = get_u32(&body);
    uint32_t body_bytes = get_u32(&body);
    if (body.is_failed || magic != MESSAGE_MAGIC || body_bytes != body.left_bytes)
        return -EPROTO;
    switch (message->type) {
#define KVW_MESSAGE(NAME, name, number, fields) \
    case number:                                \
        get_##name(&body, &message->name);      \
        break;
#include "proto/messages.def"
#undef KVW_MESSAGE
    default:
        return -EPROTO;
    }
    return body.is_failed || body.left_bytes != 0 ? -EPROTO : 0;
}

const char *message_name(uint32_t type)
{
    switch (type) {
#define KVW_MESSAGE(NAME, name, number, fields) \
    case number:                                \
        return #name;
#include "proto/messages.def"
#undef KVW_MESSAGE
    default:
        return "unknown";
    }
}
