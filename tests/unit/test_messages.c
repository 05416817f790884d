/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire messages: their bytes are fixed, what is sent is what arrives, and no packet
 * from anybody crashes the decoder. Packets lie on the heap in their exact size, so
 * that AddressSanitizer sees a read past the end.
 */
#include <criterion/criterion.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/messages.h"
#include "tests/unit/random.h"

static const struct golden {
    const char *name;
    const char *hex;
} goldens[] = {
#define GOLDEN(name, hex) {#name, hex},
#include "tests/unit/messages_golden.def"
#undef GOLDEN
};
#define N_GOLDENS (sizeof goldens / sizeof goldens[0])

static const uint32_t types[] = {
#define KVW_MESSAGE(NAME, name, number, fields) number,
#include "proto/messages.def"
#undef KVW_MESSAGE
};
#define N_TYPES (sizeof types / sizeof types[0])

/* How the fields of a message are filled. */
enum filling { FIXED, RANDOM, LONGEST };

struct filler {
    enum filling filling;
    struct random *random;
    uint32_t field; /* of the message, from 0 */
    uint8_t *bytes; /* for bytes fields: 2 x 8192 */
};

static uint64_t fill_number(struct filler *filler, uint64_t fixed)
{
    uint64_t number = fixed + filler->field++;
    if (filler->filling == RANDOM)
        number = random_u64(filler->random);
    return filler->filling == LONGEST ? UINT64_MAX : number;
}

static void fill_string(struct filler *filler, char *string, size_t length_max,
                        const char *fixed)
{
    size_t length = strlen(fixed);

    filler->field++;
    if (filler->filling == FIXED) {
        memcpy(string, fixed, length + 1);
        return;
    }
    length = filler->filling == LONGEST ? length_max
                                        : random_below(filler->random, length_max + 1);
    for (size_t i = 0; i < length; i++)
        string[i] = filler->filling == LONGEST
                        ? 'x'
                        : (char)random_range(filler->random, 1, 255);
    string[length] = 0;
}

static const uint8_t *fill_bytes(struct filler *filler, uint32_t *n_bytes,
                                 size_t bytes_max)
{
    uint8_t *bytes = filler->bytes;

    *n_bytes = filler->filling == FIXED ? 5
               : filler->filling == LONGEST
                   ? (uint32_t)bytes_max
                   : (uint32_t)random_below(filler->random, bytes_max + 1);
    for (uint32_t i = 0; i < *n_bytes; i++)
        bytes[i] = filler->filling == RANDOM ? (uint8_t)random_u64(filler->random)
                                             : (uint8_t)(filler->field + i);
    filler->bytes += *n_bytes;
    filler->field++;
    return bytes;
}

/* One function of each kind for each message, by the list. */
#define U32(f) m->f = (uint32_t)fill_number(filler, 0xa1b2c300);
#define U64(f) m->f = fill_number(filler, 0x1122334455667700);
#define STR(f, max) fill_string(filler, m->f, max, #f);
#define BYTES(f, max) m->f = fill_bytes(filler, &m->f##_bytes, max);
#define KVW_MESSAGE(NAME, name, number, fields)                                  \
    static void fill_##name(struct filler *filler, struct kvw_message_##name *m) \
    {                                                                            \
        fields                                                                   \
    }
#include "proto/messages.def"
#undef KVW_MESSAGE
#undef U32
#undef U64
#undef STR
#undef BYTES

#define U32(f) is_same = is_same && a->f == b->f;
#define U64(f) is_same = is_same && a->f == b->f;
#define STR(f, max) is_same = is_same && strcmp(a->f, b->f) == 0;
#define BYTES(f, max)                                    \
    is_same = is_same && a->f##_bytes == b->f##_bytes && \
              (a->f##_bytes == 0 || memcmp(a->f, b->f, a->f##_bytes) == 0);
#define KVW_MESSAGE(NAME, name, number, fields)                 \
    static bool same_##name(const struct kvw_message_##name *a, \
                            const struct kvw_message_##name *b) \
    {                                                           \
        bool is_same = true;                                    \
        fields return is_same;                                  \
    }
#include "proto/messages.def"
#undef KVW_MESSAGE
#undef U32
#undef U64
#undef STR
#undef BYTES

/* Each string of a message made one byte too long, in turn; n = how many there are. */
#define U32(f)
#define U64(f)
#define STR(f, max)   \
    if (n++ == which) \
        memset(m->f, 'y', (max) + 1);
#define BYTES(f, max) \
    if (n++ == which) \
        m->f##_bytes = (max) + 1;
#define KVW_MESSAGE(NAME, name, number, fields)                                   \
    static uint32_t overfill_##name(struct kvw_message_##name *m, uint32_t which) \
    {                                                                             \
        uint32_t n = 0;                                                           \
        (void)m;                                                                  \
        (void)which;                                                              \
        fields return n;                                                          \
    }
#include "proto/messages.def"
#undef KVW_MESSAGE
#undef U32
#undef U64
#undef STR
#undef BYTES

static void fill(struct kvw_message *message, struct filler *filler)
{
    switch (message->type) {
#define KVW_MESSAGE(NAME, name, number, fields) \
    case number:                                \
        fill_##name(filler, &message->name);    \
        break;
#include "proto/messages.def"
#undef KVW_MESSAGE
    default:
        cr_assert_fail("no message %u", message->type);
    }
}

static bool same(const struct kvw_message *a, const struct kvw_message *b)
{
    if (a->type != b->type || a->request != b->request)
        return false;
    switch (a->type) {
#define KVW_MESSAGE(NAME, name, number, fields) \
    case number:                                \
        return same_##name(&a->name, &b->name);
#include "proto/messages.def"
#undef KVW_MESSAGE
    default:
        return false;
    }
}

static uint32_t overfill(struct kvw_message *message, uint32_t which)
{
    switch (message->type) {
#define KVW_MESSAGE(NAME, name, number, fields) \
    case number:                                \
        return overfill_##name(&message->name, which);
#include "proto/messages.def"
#undef KVW_MESSAGE
    default:
        return 0;
    }
}

/* Memory of the bytes fields; the tests of this file run one after another. */
static uint8_t field_bytes[4 * KVW_MESSAGE_MAX];

static void fill_as(struct kvw_message *message, uint32_t type, enum filling filling,
                    struct random *random)
{
    struct filler filler = {.filling = filling, .random = random, .bytes = field_bytes};

    memset(message, 0, sizeof *message);
    message->type = type;
    message->request =
        filling == RANDOM ? (uint32_t)random_u64(random) : UINT32_C(0x0badcafe);
    fill(message, &filler);
}

/* A packet on the heap, of its exact size. */
static uint8_t *encode(const struct kvw_message *message, size_t *n_bytes)
{
    static uint8_t room[KVW_MESSAGE_MAX];
    int n = message_encode(message, room, sizeof room);
    cr_assert_gt(n, 0, "%s: %d", message_name(message->type), n);

    uint8_t *packet = malloc((size_t)n);
    cr_assert_not_null(packet);
    memcpy(packet, room, (size_t)n);
    *n_bytes = (size_t)n;
    return packet;
}

static void to_hex(const uint8_t *bytes, size_t n_bytes, char *hex)
{
    for (size_t i = 0; i < n_bytes; i++) {
        hex[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    hex[2 * n_bytes] = 0;
}

Test(messages, bytes_are_those_of_the_golden_file)
{
    static char hex[2 * KVW_MESSAGE_MAX + 1];

    cr_assert_eq(N_GOLDENS, N_TYPES, "a message has no golden bytes");
    for (size_t i = 0; i < N_TYPES; i++) {
        struct kvw_message message;
        size_t n_bytes;
        fill_as(&message, types[i], FIXED, NULL);
        uint8_t *packet = encode(&message, &n_bytes);

        to_hex(packet, n_bytes, hex);
        cr_expect_str_eq(message_name(types[i]), goldens[i].name);
        cr_expect_str_eq(hex, goldens[i].hex, "%s", goldens[i].name);
        free(packet);
    }
}

/* What is decoded encodes to the same packet again: no two packets mean the same. That
 * forbids strings with a zero byte and bytes after the end as well. */
static int decode_and_back(const uint8_t *packet, size_t n_bytes)
{
    static uint8_t room[KVW_MESSAGE_MAX];
    struct kvw_message message;

    int error = message_decode(packet, n_bytes, &message);
    if (error != 0) {
        cr_assert_eq(error, -EPROTO);
        return error;
    }
    int n = message_encode(&message, room, sizeof room);
    cr_assert_eq(n, (int)n_bytes, "%s", message_name(message.type));
    cr_assert_eq(memcmp(room, packet, n_bytes), 0, "%s", message_name(message.type));
    return 0;
}

Test(messages, what_is_sent_arrives)
{
    struct random random = random_init(20);

    for (uint32_t round = 0; round < 4000; round++) {
        uint32_t type = types[round % N_TYPES];
        struct kvw_message sent;
        struct kvw_message got;
        size_t n_bytes;
        fill_as(&sent, type, RANDOM, &random);
        uint8_t *packet = encode(&sent, &n_bytes);

        cr_assert_eq(message_decode(packet, n_bytes, &got), 0);
        cr_assert(same(&sent, &got), "%s, seed %" PRIu64, message_name(type),
                  random.seed);
        cr_assert_eq(decode_and_back(packet, n_bytes), 0);
        free(packet);
    }
}

Test(messages, the_longest_of_each_fits_into_a_packet)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        struct kvw_message sent;
        struct kvw_message got;
        size_t n_bytes;
        fill_as(&sent, types[i], LONGEST, NULL);
        uint8_t *packet = encode(&sent, &n_bytes);

        cr_expect_eq(message_decode(packet, n_bytes, &got), 0);
        cr_expect(same(&sent, &got), "%s", message_name(types[i]));
        free(packet);
    }
}

Test(messages, no_truncated_packet_decodes)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        struct kvw_message message;
        size_t n_bytes;
        fill_as(&message, types[i], FIXED, NULL);
        uint8_t *packet = encode(&message, &n_bytes);

        for (size_t n = 0; n < n_bytes; n++) {
            uint8_t *cut = malloc(n == 0 ? 1 : n);
            cr_assert_not_null(cut);
            memcpy(cut, packet, n);
            cr_expect_eq(decode_and_back(cut, n), -EPROTO, "%s cut to %zu",
                         message_name(types[i]), n);
            /* And where the head says that this is all of it. */
            if (n >= KVW_MESSAGE_HEAD_BYTES) {
                uint32_t body_bytes = (uint32_t)(n - KVW_MESSAGE_HEAD_BYTES);
                memcpy(cut + 12, &body_bytes, sizeof body_bytes);
                cr_expect_eq(decode_and_back(cut, n), -EPROTO, "%s ends at %zu",
                             message_name(types[i]), n);
            }
            free(cut);
        }
        free(packet);
    }
}

Test(messages, a_byte_too_many_is_refused)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        struct kvw_message message;
        size_t n_bytes;
        fill_as(&message, types[i], FIXED, NULL);
        uint8_t *packet = encode(&message, &n_bytes);
        uint8_t *longer = calloc(1, n_bytes + 1);
        cr_assert_not_null(longer);
        memcpy(longer, packet, n_bytes);

        cr_expect_eq(decode_and_back(longer, n_bytes + 1), -EPROTO);
        uint32_t body_bytes = (uint32_t)(n_bytes + 1 - KVW_MESSAGE_HEAD_BYTES);
        memcpy(longer + 12, &body_bytes, sizeof body_bytes);
        cr_expect_eq(decode_and_back(longer, n_bytes + 1), -EPROTO);
        free(longer);
        free(packet);
    }
}

Test(messages, no_corrupted_byte_crashes_the_decoder)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        struct kvw_message message;
        size_t n_bytes;
        fill_as(&message, types[i], FIXED, NULL);
        uint8_t *packet = encode(&message, &n_bytes);

        for (size_t at = 0; at < n_bytes; at++) {
            for (uint32_t by = 1; by < 256; by++) {
                packet[at] ^= (uint8_t)by;
                (void)decode_and_back(packet, n_bytes);
                packet[at] ^= (uint8_t)by;
            }
        }
        free(packet);
    }
}

Test(messages, noise_does_not_crash_the_decoder)
{
    struct random random = random_init(21);

    for (uint32_t round = 0; round < 50000; round++) {
        size_t n_bytes = random_below(&random, 200);
        uint8_t *packet = malloc(n_bytes == 0 ? 1 : n_bytes);
        cr_assert_not_null(packet);
        for (size_t i = 0; i < n_bytes; i++)
            packet[i] = (uint8_t)(random_u64(&random) & (i % 4 == 0 ? 0xff : 0x00));
        if (n_bytes >= KVW_MESSAGE_HEAD_BYTES) {
            const uint32_t head[4] = {0x3177766b, types[random_below(&random, N_TYPES)],
                                      round,
                                      (uint32_t)(n_bytes - KVW_MESSAGE_HEAD_BYTES)};
            memcpy(packet, head, sizeof head);
        }
        (void)decode_and_back(packet, n_bytes);
        free(packet);
    }
}

Test(messages, a_string_with_a_zero_byte_is_refused)
{
    struct kvw_message message;
    size_t n_bytes;
    fill_as(&message, KVW_MESSAGE_HELLO, FIXED, NULL);
    uint8_t *packet = encode(&message, &n_bytes);

    cr_assert_eq(packet[n_bytes - 1], 'm'); /* of "program", the last field */
    packet[n_bytes - 3] = 0;

    cr_assert_eq(message_decode(packet, n_bytes, &message), -EPROTO);
    free(packet);
}

Test(messages, a_field_over_its_bound_is_not_sent)
{
    uint8_t room[KVW_MESSAGE_MAX];
    uint32_t n_fields = 0;

    for (size_t i = 0; i < N_TYPES; i++) {
        struct kvw_message message;
        fill_as(&message, types[i], FIXED, NULL);
        uint32_t n = overfill(&message, UINT32_MAX);

        for (uint32_t which = 0; which < n; which++) {
            fill_as(&message, types[i], FIXED, NULL);
            (void)overfill(&message, which);
            cr_expect_eq(message_encode(&message, room, sizeof room), -EMSGSIZE,
                         "%s %u", message_name(types[i]), which);
        }
        n_fields += n;
    }
    cr_assert_gt(n_fields, 10);
}

/* The decoder has the same bound: a packet of somebody else's encoder may break it. */
Test(messages, a_field_over_its_bound_is_not_taken)
{
    struct kvw_message message;
    size_t n_bytes;
    fill_as(&message, KVW_MESSAGE_HELLO, LONGEST, NULL);
    uint8_t *packet = encode(&message, &n_bytes);
    uint8_t *longer = malloc(n_bytes + 1);
    cr_assert_not_null(longer);
    memcpy(longer, packet, n_bytes);
    longer[n_bytes] = 'x';
    longer[n_bytes - 63 - 4]++; /* the string's length */
    longer[12]++;               /* the body's */

    cr_assert_eq(message_decode(packet, n_bytes, &message), 0);
    cr_assert_eq(message_decode(longer, n_bytes + 1, &message), -EPROTO);
    /* Nor is it cut to its bound. */
    packet[n_bytes - 63 - 4]++;
    cr_assert_eq(message_decode(packet, n_bytes, &message), -EPROTO);
    free(longer);
    free(packet);
}

Test(messages, an_encoder_without_room_says_so)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        struct kvw_message message;
        size_t n_bytes;
        fill_as(&message, types[i], FIXED, NULL);
        uint8_t *packet = encode(&message, &n_bytes);

        for (size_t room = 0; room < n_bytes; room++) {
            uint8_t *bytes = malloc(room == 0 ? 1 : room);
            cr_assert_not_null(bytes);
            cr_expect_eq(message_encode(&message, bytes, room), -EMSGSIZE);
            free(bytes);
        }
        free(packet);
    }
}

Test(messages, unknown_types_are_refused)
{
    static const uint32_t unknown[] = {0, 1, 6, 28, 38, 1000, UINT32_MAX};
    uint8_t bytes[64] = "kvw1";

    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        struct kvw_message message = {.type = unknown[i]};
        uint8_t room[64];

        cr_expect_eq(message_encode(&message, room, sizeof room), -EINVAL);
        memcpy(bytes + 4, &unknown[i], 4);
        cr_expect_eq(message_decode(bytes, KVW_MESSAGE_HEAD_BYTES, &message), -EPROTO);
        cr_expect_str_eq(message_name(unknown[i]), "unknown");
    }
}

/* A whole head is enough to know whom to answer. */
Test(messages, type_and_request_survive_a_broken_body)
{
    struct kvw_message message;
    size_t n_bytes;
    fill_as(&message, KVW_MESSAGE_ATTACH, FIXED, NULL);
    uint8_t *packet = encode(&message, &n_bytes);
    packet[16] = 0xff;

    cr_assert_eq(message_decode(packet, n_bytes, &message), -EPROTO);
    cr_assert_eq(message.type, KVW_MESSAGE_ATTACH);
    cr_assert_eq(message.request, 0x0badcafe);
    free(packet);
}
