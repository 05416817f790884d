/* SPDX-License-Identifier: Apache-2.0 */
/* Requests whose answers are lost, late, wrong, or without their descriptors. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/client.h"
#include "tests/cli/fake.h"

#define assert_told(part) \
    cr_assert_not_null(strstr(kvw_last_error(), part), "have: %s", kvw_last_error())

static struct kvw_client *connect_to(struct fake *fake, fake_script_fn *script)
{
    struct kvw_client *client;

    fake_init(fake);
    fake_run(fake, script);
    cr_assert_eq(kvw_connect(fake->path, &client), 0);
    return client;
}

static int ask(struct kvw_client *client, uint32_t type, struct kvw_message *answer)
{
    struct kvw_message request = {.type = type};

    return client_call(client, &request, answer, NULL, 0, NULL, NULL);
}

static void finish(struct kvw_client *client, struct fake *fake)
{
    client->caches = NULL; /* those of the tests are not attached */
    kvw_disconnect(client);
    fake_fini(fake);
}

static void answer_status(struct fake *fake, uint32_t pid)
{
    struct kvw_message request;
    struct kvw_message answer = {.type = KVW_MESSAGE_STATUS_IS,
                                 .status_is = {.pid = pid}};

    fake_expect(fake, KVW_MESSAGE_STATUS, &request);
    answer.request = request.request;
    fake_answer(fake, &answer, 0);
}

static void answer_resume(struct fake *fake, uint64_t attachment)
{
    struct kvw_message request;
    struct kvw_message answer = {.type = KVW_MESSAGE_RESUMED};

    fake_expect(fake, KVW_MESSAGE_RESUME, &request);
    cr_assert_eq(request.resume.attachment, attachment);
    answer.request = request.request;
    answer.resumed.attachment = attachment;
    fake_answer(fake, &answer, 0);
}

/* --------------------------------------------------------------- answers ---------- */

static void script_refuse(struct fake *fake)
{
    struct kvw_message request;

    fake_welcome(fake, 1);
    fake_expect(fake, KVW_MESSAGE_GC, &request);
    fake_refuse(fake, request.request, EDQUOT, "no: need 12, have 7");
}

Test(call, hands_on_a_refusal_with_its_numbers)
{
    struct kvw_message answer;
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_refuse);

    cr_assert_eq(ask(client, KVW_MESSAGE_GC, &answer), -EDQUOT);

    cr_assert_str_eq(kvw_last_error(), "no: need 12, have 7");
    cr_assert(client_failure().is_refused);
    cr_assert_eq(client_failure().need, 12);
    finish(client, &fake);
}

static void script_progress(struct fake *fake)
{
    struct kvw_message request;
    struct kvw_message answer = {.type = KVW_MESSAGE_PROGRESS};

    fake_welcome(fake, 1);
    fake_expect(fake, KVW_MESSAGE_CREATE, &request);
    cr_assert_str_eq(request.create.name, "video");
    answer.request = request.request;
    for (uint32_t i = 1; i <= 3; i++) {
        answer.progress.done_bytes = i;
        answer.progress.total_bytes = 3;
        fake_answer(fake, &answer, 0);
    }
    answer =
        (struct kvw_message){.type = KVW_MESSAGE_CREATED, .request = request.request};
    answer.created.existed = 1;
    fake_answer(fake, &answer, 0);
}

static void add_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    cr_assert_eq(total_bytes, 3);
    *(uint64_t *)context += done_bytes;
}

Test(call, passes_progress_on_before_the_answer)
{
    struct kvw_spec spec;
    uint64_t sum = 0;
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_progress);
    cr_assert_eq(kvw_spec_preset(&spec, "longlive-1.3b", 0), 0);
    snprintf(spec.name, sizeof spec.name, "video");

    cr_assert_eq(kvw_create(client, &spec, add_progress, &sum), 1);

    cr_assert_eq(sum, 6);
    finish(client, &fake);
}

static void script_wrong_number(struct fake *fake)
{
    struct kvw_message request;
    struct kvw_message answer = {.type = KVW_MESSAGE_STATUS_IS};

    fake_welcome(fake, 1);
    fake_expect(fake, KVW_MESSAGE_STATUS, &request);
    answer.request = request.request + 1;
    fake_answer(fake, &answer, 0);
    fake_welcome(fake, 2);
    answer_status(fake, 5);
}

Test(call, leaves_a_daemon_that_answers_something_else)
{
    struct kvw_message answer;
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_wrong_number);

    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), -EPROTO);

    cr_assert_eq(client->socket, -1);
    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), 0);
    cr_assert_eq(answer.status_is.pid, 5);
    finish(client, &fake);
}

/* ------------------------------------------------------------ descriptors ----------
 */

static void answer_attach(struct fake *fake, uint32_t n_fds)
{
    struct kvw_message request;
    struct kvw_message answer = {.type = KVW_MESSAGE_ATTACHED};

    fake_expect(fake, KVW_MESSAGE_ATTACH, &request);
    answer.request = request.request;
    answer.attached.attachment = 11;
    fake_answer(fake, &answer, n_fds);
}

static void expect_detach(struct fake *fake, uint64_t attachment)
{
    struct kvw_message request;
    struct kvw_message answer = {.type = KVW_MESSAGE_DETACHED};

    fake_expect(fake, KVW_MESSAGE_DETACH, &request);
    cr_assert_eq(request.detach.attachment, attachment);
    answer.request = request.request;
    fake_answer(fake, &answer, 0);
}

static void script_seven_fds(struct fake *fake)
{
    fake_welcome(fake, 1);
    answer_attach(fake, 7);
    expect_detach(fake, 11);
}

Test(call, closes_all_descriptors_of_an_answer_that_has_too_many)
{
    struct kvw_message request = {.type = KVW_MESSAGE_ATTACH};
    struct kvw_message answer;
    int fds[3];
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_seven_fds);
    uint32_t n_fds = fake_count_fds();

    cr_assert_eq(client_call(client, &request, &answer, fds, 3, NULL, NULL), -EMFILE);

    cr_assert_eq(fake_count_fds(), n_fds);
    finish(client, &fake);
}

static void script_four_fds(struct fake *fake)
{
    fake_welcome(fake, 1);
    answer_attach(fake, 4);
}

Test(call, keeps_only_the_descriptors_it_expects)
{
    struct kvw_message request = {.type = KVW_MESSAGE_ATTACH};
    struct kvw_message answer;
    int fds[3];
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_four_fds);
    uint32_t n_fds = fake_count_fds();

    cr_assert_eq(client_call(client, &request, &answer, fds, 3, NULL, NULL), 0);

    for (int i = 0; i < 3; i++)
        close(fds[i]);
    /* The thread of the script may still have its own /dev/null. */
    pthread_join(fake.thread, NULL);
    fake.script = NULL;
    cr_assert_eq(fake_count_fds(), n_fds);
    finish(client, &fake);
}

static void script_no_room(struct fake *fake)
{
    fake_welcome(fake, 1);
    answer_attach(fake, 3);
    expect_detach(fake, 11);
    answer_status(fake, 8);
}

Test(call, gives_an_attachment_back_whose_descriptors_found_no_room)
{
    struct kvw_message request = {.type = KVW_MESSAGE_ATTACH};
    struct kvw_message answer;
    struct rlimit limit, tight;
    int fds[3];
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_no_room);
    int next = dup(0);
    close(next);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    tight = limit;
    tight.rlim_cur = (rlim_t)next + 2; /* two: the script needs one */
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);

    int result = client_call(client, &request, &answer, fds, 3, NULL, NULL);

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(result, -EMFILE);
    assert_told("ulimit");
    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), 0);
    finish(client, &fake);
}

static void script_no_fds(struct fake *fake)
{
    fake_welcome(fake, 1);
    answer_attach(fake, 0);
    expect_detach(fake, 11);
}

Test(call, refuses_an_attachment_without_descriptors)
{
    struct kvw_message request = {.type = KVW_MESSAGE_ATTACH};
    struct kvw_message answer;
    int fds[3];
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_no_fds);

    cr_assert_eq(client_call(client, &request, &answer, fds, 3, NULL, NULL), -EPROTO);

    finish(client, &fake);
}

/* -------------------------------------------------------------- lost ones ----------
 */

static void script_restart_while_idle(struct fake *fake)
{
    struct kvw_message request;
    struct kvw_message answer = {.type = KVW_MESSAGE_REMOVED};

    fake_welcome(fake, 1);
    fake_welcome(fake, 2); /* hangs up first */
    answer_resume(fake, 9);
    answer_resume(fake, 7);
    fake_expect(fake, KVW_MESSAGE_REMOVE, &request);
    cr_assert_str_eq(request.remove.name, "old");
    answer.request = request.request;
    fake_answer(fake, &answer, 0);
}

Test(call, connects_again_and_resumes_before_it_asks)
{
    struct kvw_cache first = {.attachment = 7};
    struct kvw_cache second = {.attachment = 9, .next = &first};
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_restart_while_idle);
    client->caches = &second;

    /* Not repeatable, but never read by the first daemon. */
    cr_assert_eq(kvw_remove(client, "old", 0), 0, "%s", kvw_last_error());

    cr_assert_eq(client->daemon_epoch, 2);
    finish(client, &fake);
}

static void script_lose_status(struct fake *fake)
{
    struct kvw_message request;

    fake_welcome(fake, 1);
    fake_expect(fake, KVW_MESSAGE_STATUS, &request);
    fake_welcome(fake, 2);
    fake_expect(fake, KVW_MESSAGE_STATUS, &request);
    fake_welcome(fake, 3);
    answer_status(fake, 31);
}

Test(call, asks_again_what_may_be_asked_twice)
{
    struct kvw_message answer;
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_lose_status);

    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), 0);

    cr_assert_eq(answer.status_is.pid, 31);
    finish(client, &fake);
}

static void script_lose_remove(struct fake *fake)
{
    struct kvw_message request;

    fake_welcome(fake, 1);
    fake_expect(fake, KVW_MESSAGE_REMOVE, &request);
    fake_welcome(fake, 2);
    answer_status(fake, 31);
}

Test(call, does_not_repeat_what_may_have_been_done)
{
    struct kvw_message answer;
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_lose_remove);

    cr_assert_eq(kvw_remove(client, "old", 0), -EPIPE);

    assert_told("went away");
    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), 0);
    finish(client, &fake);
}

static void script_vanish(struct fake *fake)
{
    fake_welcome(fake, 1);
    close(fake->listener);
    unlink(fake->path);
    fake->listener = -1;
    fake_hang_up(fake);
}

Test(call, says_that_no_daemon_came_back_and_waits_only_once)
{
    struct kvw_message answer;
    struct timespec before, after;
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_vanish);

    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), -EPIPE);
    clock_gettime(CLOCK_MONOTONIC, &before);
    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), -EPIPE);
    clock_gettime(CLOCK_MONOTONIC, &after);

    assert_told("no daemon at");
    cr_assert_leq(after.tv_sec - before.tv_sec, 1);
    finish(client, &fake);
}

static void script_lose_detach(struct fake *fake)
{
    struct kvw_message request;

    fake_welcome(fake, 1);
    fake_expect(fake, KVW_MESSAGE_DETACH, &request);
    fake_welcome(fake, 2);
    answer_resume(fake, 5);
    expect_detach(fake, 5);
}

Test(call, resumes_what_it_detaches)
{
    struct kvw_message request = {.type = KVW_MESSAGE_DETACH,
                                  .detach = {.attachment = 5}};
    struct kvw_message answer;
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_lose_detach);

    cr_assert_eq(client_call(client, &request, &answer, NULL, 0, NULL, NULL), 0);

    finish(client, &fake);
}

static void script_lose_attach(struct fake *fake)
{
    struct kvw_message request;

    fake_welcome(fake, 1);
    fake_expect(fake, KVW_MESSAGE_ATTACH, &request);
    fake_welcome(fake, 2);
    answer_attach(fake, 3);
}

Test(call, attaches_again_when_the_answer_was_lost)
{
    struct kvw_message request = {.type = KVW_MESSAGE_ATTACH,
                                  .attach = {.name = "video", .rank = 1}};
    struct kvw_message answer;
    int fds[3];
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_lose_attach);

    int result = client_call(client, &request, &answer, fds, 3, NULL, NULL);

    cr_assert_eq(result, 0, "%s", kvw_last_error());
    cr_assert_eq(answer.attached.attachment, 11);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    finish(client, &fake);
}

static void script_forget(struct fake *fake)
{
    struct kvw_message request;

    fake_welcome(fake, 1);
    fake_welcome(fake, 2);
    fake_expect(fake, KVW_MESSAGE_RESUME, &request);
    fake_refuse(fake, request.request, ENOENT, "there is no attachment 9");
    answer_resume(fake, 7);
    answer_status(fake, 1);
    fake_welcome(fake, 3);
    answer_resume(fake, 7);
    answer_status(fake, 1);
}

Test(call, marks_an_attachment_that_the_daemon_does_not_know_any_more)
{
    struct kvw_cache first = {.attachment = 7};
    struct kvw_cache second = {.attachment = 9, .next = &first};
    struct kvw_message answer;
    struct fake fake;
    struct kvw_client *client = connect_to(&fake, script_forget);
    client->caches = &second;

    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), 0);
    cr_assert_eq(ask(client, KVW_MESSAGE_STATUS, &answer), 0);

    cr_assert_eq(first.attachment, 7);
    cr_assert_eq(second.attachment, 0);
    finish(client, &fake);
}

/* ----------------------------------------------------------------- texts ---------- */

Test(error, has_a_text_for_every_number)
{
    cr_assert_str_eq(kvw_strerror(0), "success");
    cr_assert_str_eq(kvw_strerror(3), "success");
    cr_assert_str_eq(kvw_strerror(-EACCES), "Permission denied");
    for (int error = KVW_EOVERRUN; error <= KVW_ELAYOUT; error++)
        cr_assert_str_neq(kvw_strerror(-error), "unknown error");
    cr_assert_str_eq(kvw_strerror(-4095), "unknown error");
    cr_assert_str_eq(kvw_strerror(INT32_MIN), "unknown error");
}

Test(error, may_be_made_of_the_error_before)
{
    cr_assert_str_eq(kvw_last_error(), "");
    cr_assert_eq(fail(-EIO, "disk %d", 3), -EIO);

    cr_assert_eq(fail(-EPIPE, "lost: %s", kvw_last_error()), -EPIPE);

    cr_assert_str_eq(kvw_last_error(), "lost: disk 3");
}
