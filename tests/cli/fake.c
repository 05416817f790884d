/* SPDX-License-Identifier: Apache-2.0 */
/* See fake.h. Every wait has a deadline, so that a wrong client fails instead of
 * hanging. */
#include "tests/cli/fake.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/layout.h"

#define WAIT_MS 10000

void fake_init(struct fake *fake)
{
    *fake = (struct fake){.listener = -1, .peer = -1};
    snprintf(fake->folder, sizeof fake->folder, "/tmp/kvw-fake-XXXXXX");
    cr_assert_not_null(mkdtemp(fake->folder));
    snprintf(fake->path, sizeof fake->path, "%s/s", fake->folder);
}

static void *run(void *context)
{
    struct fake *fake = context;

    fake->script(fake);
    return NULL;
}

void fake_run(struct fake *fake, fake_script_fn *script)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof address.sun_path, "%s", fake->path);
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert(fake->listener >= 0);
    cr_assert_eq(bind(fake->listener, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fake->listener, 4), 0);
    fake->script = script;
    cr_assert_eq(pthread_create(&fake->thread, NULL, run, fake), 0);
}

void fake_fini(struct fake *fake)
{
    char command[96];

    if (fake->script != NULL)
        pthread_join(fake->thread, NULL);
    fake_hang_up(fake);
    if (fake->listener >= 0)
        close(fake->listener);
    unlink(fake->path);
    snprintf(command, sizeof command, "rm -rf '%s'", fake->folder);
    cr_assert_eq(system(command), 0);
}

static void wait_readable(int fd)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};

    cr_assert_eq(poll(&readable, 1, WAIT_MS), 1, "the client does nothing");
}

void fake_accept(struct fake *fake)
{
    fake_hang_up(fake);
    wait_readable(fake->listener);
    fake->peer = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert(fake->peer >= 0);
    fake->n_accepted++;
}

void fake_welcome(struct fake *fake, uint64_t epoch)
{
    struct kvw_message hello;
    struct kvw_message answer = {.type = KVW_MESSAGE_WELCOME};

    fake_accept(fake);
    fake_expect(fake, KVW_MESSAGE_HELLO, &hello);
    cr_assert_eq(hello.hello.protocol, KVW_PROTOCOL_VERSION);
    cr_assert_eq(hello.hello.layout_hash, layout_hash());
    answer.request = hello.request;
    answer.welcome = (struct kvw_message_welcome){.protocol = KVW_PROTOCOL_VERSION,
                                                  .layout_hash = layout_hash(),
                                                  .daemon_epoch = epoch,
                                                  .pid = 77,
                                                  .version = "fake"};
    fake_answer(fake, &answer, 0);
}

void fake_expect(struct fake *fake, uint32_t type, struct kvw_message *request)
{
    wait_readable(fake->peer);
    ssize_t n_bytes = recv(fake->peer, fake->packet, sizeof fake->packet, 0);
    cr_assert(n_bytes > 0, "the client hung up, expected %s", message_name(type));
    cr_assert_eq(message_decode(fake->packet, (size_t)n_bytes, request), 0);
    cr_assert_eq(request->type, type, "expected %s, have %s", message_name(type),
                 message_name(request->type));
}

void fake_answer(struct fake *fake, struct kvw_message *answer, uint32_t n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    uint8_t packet[KVW_MESSAGE_MAX];
    int n_bytes = message_encode(answer, packet, sizeof packet);
    struct iovec body = {packet, (size_t)n_bytes};
    struct msghdr head = {.msg_iov = &body, .msg_iovlen = 1};
    int null = n_fds > 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;

    cr_assert(n_bytes > 0);
    if (n_fds > 0) {
        head.msg_control = control.bytes;
        head.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *part = CMSG_FIRSTHDR(&head);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (uint32_t i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(part) + i * sizeof null, &null, sizeof null);
    }
    cr_assert_eq(sendmsg(fake->peer, &head, MSG_NOSIGNAL), n_bytes);
    if (null >= 0)
        close(null);
}

void fake_refuse(struct fake *fake, uint32_t request, uint32_t error, const char *text)
{
    struct kvw_message answer = {.type = KVW_MESSAGE_REFUSED, .request = request};

    answer.refused.error = error;
    answer.refused.need = 12;
    answer.refused.have = 7;
    snprintf(answer.refused.text, sizeof answer.refused.text, "%s", text);
    fake_answer(fake, &answer, 0);
}

void fake_hang_up(struct fake *fake)
{
    if (fake->peer >= 0)
        close(fake->peer);
    fake->peer = -1;
}

uint32_t fake_count_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint32_t n_fds = 0;

    while (readdir(folder) != NULL)
        n_fds++;
    closedir(folder);
    return n_fds;
}
