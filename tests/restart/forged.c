/* SPDX-License-Identifier: Apache-2.0 */
/* See forged.h. */
#include "tests/restart/forged.h"

#include <criterion/criterion.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/spec.h"
#include "tests/integration/node.h"

static int make_memfd(uint64_t bytes)
{
    int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    cr_assert_eq(fallocate(fd, 0, 0, (off_t)bytes), 0);
    return fd;
}

void forged_init(struct forged *forged, const char *name)
{
    static const uint8_t uuid[16] = {1, 2, 3};
    struct kvw_geometry geometry;
    struct kvw_refusal refusal;
    struct kvw_spec spec;

    node_spec(&spec, name, 2);
    cr_assert_eq(spec_to_geometry(&spec, &geometry), 0);
    cr_assert_eq(layout_of(&geometry, &forged->layout, &refusal), 0);
    forged->bytes[0] = forged->layout.control_bytes;
    forged->bytes[1] = forged->layout.pins_bytes;
    forged->bytes[2] = forged->layout.data_bytes;
    for (int i = 0; i < 3; i++)
        forged->fds[i] = make_memfd(forged->bytes[i]);
    forged->header = mmap(NULL, forged->bytes[0], PROT_READ | PROT_WRITE, MAP_SHARED,
                          forged->fds[0], 0);
    cr_assert_neq(forged->header, MAP_FAILED);
    layout_control_init(forged->header, &forged->layout, &geometry, name, uuid);
    forged->header->uid = getuid();
    forged->header->gid = getgid();
    forged->header->mode = 0600;
    forged->header->lifetime = KVW_LIFETIME_KEEP;
    store_relaxed(&forged->header->attachments_high, 4);
    struct kvw_seat *seat = layout_seat(forged->header, &forged->layout, 0);
    store_relaxed(&seat->owner, FORGED_ATTACHMENT);
    store_relaxed(&seat->incarnation, FORGED_INCARNATION);
    store_relaxed(&seat->pid, (uint32_t)getpid());
    store_relaxed(&seat->state, KVW_SEAT_OWNED);
}

void forged_seal(const struct forged *forged)
{
    for (int i = 0; i < 3; i++)
        cr_assert_eq(fcntl(forged->fds[i], F_ADD_SEALS, FORGED_SEALS), 0);
}

void forged_close(struct forged *forged)
{
    munmap(forged->header, forged->bytes[0]);
    for (int i = 0; i < 3; i++)
        close(forged->fds[i]);
}
