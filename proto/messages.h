/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire messages between kvwheeld and its clients: one SEQPACKET packet each, a 16-byte
 * head and the fields in the order of messages.def, little-endian and unpadded. Strings
 * and bytes carry a 32-bit length first. A message decodes only if every field fits and
 * nothing is left over. PROTOCOL.md is the manual.
 */
#ifndef KVW_PROTO_MESSAGES_H
#define KVW_PROTO_MESSAGES_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/check.h"
#include "proto/limits.h"

#define KVW_PROTOCOL_VERSION 1u
#define KVW_MESSAGE_HEAD_BYTES 16u
#define KVW_RANK_READER UINT32_MAX /* attach.rank: no rank, read only */

enum kvw_message_type {
#define KVW_MESSAGE(NAME, name, number, fields) KVW_MESSAGE_##NAME = number,
#include "proto/messages.def"
#undef KVW_MESSAGE
};

/* Each field of a message; `bytes` fields point into the packet that was decoded. */
#define U32(field) uint32_t field;
#define U64(field) uint64_t field;
#define STR(field, max) char field[(max) + 1];
#define BYTES(field, max) \
    const uint8_t *field; \
    uint32_t field##_bytes;
#define KVW_MESSAGE(NAME, name, number, fields) \
    struct kvw_message_##name {                 \
        fields                                  \
    };
#include "proto/messages.def"
#undef KVW_MESSAGE
#undef U32
#undef U64
#undef STR
#undef BYTES

/* A message of any type. */
struct kvw_message {
    uint32_t type;    /* enum kvw_message_type */
    uint32_t request; /* chosen by the client, repeated in the answer */
    union {
#define KVW_MESSAGE(NAME, name, number, fields) struct kvw_message_##name name;
#include "proto/messages.def"
#undef KVW_MESSAGE
    };
};

/**
 * Encode a message.
 *
 * @param bytes_max  Room in `bytes`; KVW_MESSAGE_MAX is always enough.
 * @return bytes of the packet, or -EINVAL (no such type), -EMSGSIZE (no room, or a
 * field longer than its bound).
 */
KVW_NODISCARD int message_encode(const struct kvw_message *message, uint8_t *bytes,
                                 size_t bytes_max);

/**
 * Decode a packet from anybody.
 *
 * @return 0; -EPROTO (short, long, unknown type, a field over its bound, a string with
 * a zero byte). `message` is undefined then, except type and request when a whole head
 * was there.
 */
KVW_NODISCARD int message_decode(const uint8_t *bytes, size_t n_bytes,
                                 struct kvw_message *message);

/** Lower-case name of a type, for logs; "unknown" if there is none. */
const char *message_name(uint32_t type);

#endif
