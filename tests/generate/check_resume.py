#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run whose worker or daemon is killed gives the text of a run that was left alone."""

import json
import os
import signal

from harness import (PROMPT, REFUSED_RESUME, USAGE, Node, by_speed, check, refused, result, run,
                     start, together, wait_until, workers)

TOKENS = by_speed(1500, 500, 120)
BEFORE = by_speed(200, 100, 30)  # tokens that come before a kill
WINDOW = ("--window", by_speed(256, 64, 40), "--sink", 4)
FLAGS = ("--prompt", PROMPT, "--tokens", TOKENS, "--seed", 3, *WINDOW)


def read_tokens(job, n):
    """Wait for n more lines of tokens."""
    for _ in range(n):
        line = job.stdout.readline()
        check(b'"token"' in line, f"a token, have {line}")


def check_worker_killed(node, wanted, ranks, victim):
    """Kill a rank twice, go on, and compare."""
    name = f"killed-{ranks}-{victim}"
    for n in (BEFORE, BEFORE + 10):
        job = start(ranks, node, *FLAGS, "--json", "--resume", name)
        read_tokens(job, n)
        pids = workers(job)
        check(len(pids) == ranks, f"{ranks} workers, have {len(pids)}")
        os.kill(pids[victim], signal.SIGKILL)
        job.communicate(timeout=60)
        check(job.returncode != 0, "a job whose rank was killed fails")
    got = result(ranks, node, *FLAGS, "--resume", name)
    check(got["tokens"] == wanted, f"{name}: another text")
    check(got["resumed_from"] >= 2 * BEFORE, f"resumed from {got['resumed_from']}")
    check(got["bytes_written"] == got["bytes_new_rows"], f"{name}: bytes")
    print(f"{ranks} ranks, rank {victim} killed twice: same text, the last run began at row "
          f"{got['resumed_from']}")


def check_launcher_killed(node, wanted):
    """mpirun is killed: its ranks end by themselves, and the next job waits for that."""
    job = start(2, node, *FLAGS, "--json", "--resume", "launcher")
    read_tokens(job, BEFORE)
    job.kill()
    job.wait(60)
    got = result(2, node, *FLAGS, "--resume", "launcher")
    check(got["tokens"] == wanted, "launcher: another text")
    check(got["resumed_from"] >= BEFORE, f"resumed from {got['resumed_from']}")
    print(f"mpirun killed: same text, the last run began at row {got['resumed_from']}")


def check_daemon_killed(node, wanted):
    """Nobody needs the daemon while tokens come."""
    job = start(2, node, *FLAGS, "--json", "--resume", "daemon")
    read_tokens(job, BEFORE)
    servers = node.servers()
    check(len(servers) > 0, "a serving process under the keeper")
    os.kill(servers[0], signal.SIGKILL)
    out, err = job.communicate(timeout=120)
    check(job.returncode == 0, f"the run goes on: {err.decode()}")
    check(json.loads(out.splitlines()[-1])["tokens"] == wanted, "daemon: another text")
    wait_until(node.answers, "a new daemon")
    again = result(2, node, *FLAGS, "--resume", "daemon")
    check(again["tokens"] == wanted, "the cache is still there")
    print("kvwheeld killed: same text, and the cache was adopted")


def check_going_on(node, wanted):
    """In two parts, with nothing given again; and what must not be changed."""
    parts = ("--resume", "parts")
    half, most = TOKENS // 4, TOKENS // 2
    first = result(2, node, "--prompt", PROMPT, "--seed", 3, *WINDOW, "--tokens", half,
                   *parts)
    check(first["tokens"] == wanted[:half], "first part")
    check(first["resumed_from"] is None, "nothing to resume")
    second = result(2, node, "--tokens", most, *parts)
    check(second["tokens"] == wanted[:most], "second part")
    check(second["resumed_from"] == len(PROMPT) + half - 1, "where it went on")
    check(second["seed"] == 3, "the seed is the cache's")
    plain = run(2, node, "--tokens", most + 5, *parts)
    check(plain.stdout == bytes(wanted[:most + 5]) + b"\n", "the whole text from the start")
    check(b"kvwheel rm parts" in plain.stderr, "how to remove the cache")
    fewer = result(2, node, "--tokens", 10, *parts)
    check(fewer["tokens"] == wanted[:10] and fewer["bytes_written"] == 0, "fewer tokens")
    check_refused(node, parts)
    check(result(2, node, "--tokens", most + 9, *parts)["tokens"] == wanted[:most + 9],
          "refusals change nothing")
    removed = node.kvwheel("rm", "parts")
    check(removed.returncode == 0, f"kvwheel rm: {removed.stderr}")


def check_refused(node, parts):
    for text, more in (
        ("--seed", ("--seed", 4)),
        ("--greedy", ("--greedy",)),
        ("--temperature", ("--temperature", 0.5)),
        ("--window", ("--window", 129)),
        ("--sink", ("--sink", 8)),
        ("--dtype", ("--dtype", "bf16")),
        ("--positions", ("--positions", "absolute")),
        ("--chunk", ("--chunk", 64)),
        ("--prompt", ("--prompt", PROMPT + "x")),
        ("--prompt", ("--prompt", PROMPT[::-1])),
        ("--tokens", ("--tokens", 10**8)),
    ):
        refused(2, node, REFUSED_RESUME, text, "--tokens", 400, *parts, *more)
    refused(1, node, REFUSED_RESUME, "ranks", "--tokens", 400, *parts)
    refused(1, node, USAGE, "no cache absent", "--tokens", 400, "--resume", "absent")


node = Node()
wanted = result(1, node, *FLAGS)["tokens"]
together((
    lambda: check_going_on(node, wanted),
    lambda: check_worker_killed(node, wanted, 2, 1),
    lambda: check_worker_killed(node, wanted, 2, 0),
    lambda: check_worker_killed(node, wanted, 4, 2),
    lambda: check_launcher_killed(node, wanted),
))
check_daemon_killed(node, wanted)
