/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that knows zlib. */
#include "examples/video/png.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void put_u32(unsigned char *to, uint32_t number)
{
    to[0] = (unsigned char)(number >> 24);
    to[1] = (unsigned char)(number >> 16);
    to[2] = (unsigned char)(number >> 8);
    to[3] = (unsigned char)number;
}

static int failed(const struct png *png, struct fail *fail)
{
    return fail_set(fail, FAIL_IO, "%s: %s", png->path, strerror(errno));
}

static int write_bytes(const struct png *png, const void *bytes, size_t n_bytes,
                       struct fail *fail)
{
    return fwrite(bytes, 1, n_bytes, png->file) == n_bytes ? 0 : failed(png, fail);
}

/* Length, type, two parts of data, checksum. */
static int write_chunk(const struct png *png, const char type[4], const void *head,
                       size_t head_bytes, const void *data, size_t data_bytes,
                       struct fail *fail)
{
    unsigned char begin[8], end[4];
    uLong sum;

    put_u32(begin, (uint32_t)(head_bytes + data_bytes));
    memcpy(begin + 4, type, 4);
    sum = crc32(0, begin + 4, 4);
    if (head_bytes > 0)
        sum = crc32(sum, head, (uInt)head_bytes);
    if (data_bytes > 0)
        sum = crc32(sum, data, (uInt)data_bytes);
    put_u32(end, (uint32_t)sum);
    if (write_bytes(png, begin, sizeof(begin), fail) != 0 ||
        write_bytes(png, head, head_bytes, fail) != 0 ||
        write_bytes(png, data, data_bytes, fail) != 0)
        return -EINVAL;
    return write_bytes(png, end, sizeof(end), fail);
}

int png_open(struct png *png, const char *path, uint32_t width, uint32_t height,
             uint32_t n_frames, uint32_t frame_ms, struct fail *fail)
{
    static const unsigned char signature[8] = {137, 'P', 'N', 'G', 13, 10, 26, 10};
    const size_t raw_bytes = (size_t)height * (width + 1);
    unsigned char size[13] = {0}, frames[8] = {0};

    *png = (struct png){.path = path,
                        .width = width,
                        .height = height,
                        .n_frames = n_frames,
                        .frame_ms = frame_ms,
                        .packed_bytes = compressBound(raw_bytes)};
    png->line = malloc(raw_bytes);
    png->packed = malloc(png->packed_bytes);
    if (png->line == NULL || png->packed == NULL)
        return fail_memory(fail, path);
    png->file = fopen(path, "wbe");
    if (png->file == NULL)
        return failed(png, fail);
    put_u32(size, width);
    put_u32(size + 4, height);
    size[8] = 8; /* bits of grey; no colour, no interlace */
    put_u32(frames, n_frames);
    if (write_bytes(png, signature, sizeof(signature), fail) != 0 ||
        write_chunk(png, "IHDR", size, sizeof(size), NULL, 0, fail) != 0)
        return -EINVAL;
    if (n_frames == 1)
        return 0;
    return write_chunk(png, "acTL", frames, sizeof(frames), NULL, 0, fail);
}

/* What of the picture a frame replaces, and for how long it is shown. */
static int write_control(struct png *png, struct fail *fail)
{
    unsigned char control[26] = {0};

    put_u32(control, png->sequence++);
    put_u32(control + 4, png->width);
    put_u32(control + 8, png->height);
    control[20] = (unsigned char)(png->frame_ms >> 8); /* of 1000 */
    control[21] = (unsigned char)png->frame_ms;
    control[22] = 1000 >> 8;
    control[23] = 1000 & 255;
    return write_chunk(png, "fcTL", control, sizeof(control), NULL, 0, fail);
}

int png_add(struct png *png, const unsigned char *grey, struct fail *fail)
{
    const size_t line_bytes = (size_t)png->width + 1;
    uLongf packed_bytes = png->packed_bytes;
    unsigned char sequence[4];

    for (uint32_t y = 0; y < png->height; y++) {
        png->line[y * line_bytes] = 0; /* no filter */
        memcpy(png->line + y * line_bytes + 1, grey + (size_t)y * png->width,
               png->width);
    }
    if (compress2(png->packed, &packed_bytes, png->line, png->height * line_bytes, 9) !=
        Z_OK)
        return fail_memory(fail, png->path);
    if (png->n_frames > 1 && write_control(png, fail) != 0)
        return -EINVAL;
    if (png->n_written++ == 0)
        return write_chunk(png, "IDAT", NULL, 0, png->packed, packed_bytes, fail);
    put_u32(sequence, png->sequence++);
    return write_chunk(png, "fdAT", sequence, sizeof(sequence), png->packed,
                       packed_bytes, fail);
}

int png_close(struct png *png, struct fail *fail)
{
    if (png->file != NULL) {
        (void)write_chunk(png, "IEND", NULL, 0, NULL, 0, fail);
        if (fclose(png->file) != 0)
            (void)failed(png, fail);
    }
    free(png->line);
    free(png->packed);
    *png = (struct png){0};
    return has_failed(fail) ? -EINVAL : 0;
}
