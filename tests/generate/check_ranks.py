#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""1, 2, 3 and 4 ranks give the same tokens and the same digits, by any chunk.

usage: check_ranks.py [long]
"""

import json
import sys

from harness import MODEL, PROMPT, Node, by_speed, check, result, run, together

IS_LONG = sys.argv[1:] == ["long"]
TOKENS = 2000 if IS_LONG else by_speed(300, 300, 60)
W = by_speed(256, 256, 40)
WINDOW = ("--window", W, "--sink", 4)
SAMPLED = ("--seed", 7, "--temperature", 0.9)
SCORED = by_speed(700, 400, 100)  # bytes: well past the window


def check_result(got, ranks):
    """The fields that a user reads."""
    rows = got["prompt_tokens"] + TOKENS - 1
    check(len(got["tokens"]) == TOKENS, f"{TOKENS} tokens, have {len(got['tokens'])}")
    check(got["text"] == bytes(got["tokens"]).decode("utf-8", "replace"), "text")
    check(got["ranks"] == ranks and got["window"] == W and got["sink"] == 4, "settings")
    check(got["rows"] == rows, f"{rows} rows, have {got['rows']}")
    check(got["rolls"] == max(0, rows - W) // (W - 4), f"rolls of {rows} rows: {got['rolls']}")
    check(got["bytes_written"] == got["bytes_new_rows"] > 0, "bytes written")
    check(got["tokens_per_second"] > 0, "tokens per second")
    check(got["resumed_from"] is None, "resumed_from")


def check_generation(node):
    for how in (("--greedy",), SAMPLED):
        ways = ((1, 32), (2, 32), (3, 5), (4, 1))
        all_got = together(
            lambda ranks=ranks, chunk=chunk: result(
                ranks, node, "--prompt", PROMPT, "--tokens", TOKENS, "--chunk", chunk,
                *WINDOW, *how)
            for ranks, chunk in ways)
        wanted = all_got[0]["tokens"]
        for (ranks, chunk), got in zip(ways, all_got):
            check_result(got, ranks)
            check(got["tokens"] == wanted, f"{ranks} ranks, {how}: other tokens")
            print(f"{ranks} ranks, chunk {chunk}, {how}: same {TOKENS} tokens, "
                  f"{got['tokens_per_second']:.0f} a second")
    other = result(1, node, "--prompt", PROMPT, "--tokens", 50, "--seed", 8,
                   "--temperature", 0.9, *WINDOW)
    check(other["tokens"] != wanted[:50], "another seed gives other tokens")


def check_long_prompt(node):
    """A prompt past the window: chunks do not change what follows, with both rules."""
    prompt = (MODEL / "TRAINING.md").read_text(errors="ignore")[:SCORED]
    for positions in ("window", "absolute"):
        tokens = together(
            lambda ranks=ranks, chunk=chunk: result(
                ranks, node, "--prompt", prompt, "--tokens", 20, "--greedy", "--window",
                W // 4, "--sink", 4, "--chunk", chunk, "--positions", positions)["tokens"]
            for ranks, chunk in ((1, 1), (1, 32), (2, 7), (1, 200)))
        check(len(set(map(str, tokens))) == 1, f"chunks, {positions}")


def check_score(node):
    """--nll: all digits the same."""
    path = node.folder / "scored.txt"
    path.write_bytes((MODEL / "TRAINING.md").read_bytes()[:SCORED])
    for positions in ("window", "absolute"):
        seen = set(together(
            lambda ranks=ranks, chunk=chunk: run(
                ranks, node, "--nll", path, "--nll-chunk", chunk, *WINDOW, "--positions",
                positions).stdout
            for ranks, chunk in ((1, 1), (2, 1), (4, 1), (3, 16))))
        check(len(seen) == 1, f"digits of the score, {positions}: {seen}")
        print(f"{positions}: {seen.pop().decode().strip()}")


def check_streams(node):
    """Plain text is what --json says it is, and lines of JSON come one a token."""
    flags = ("--prompt", PROMPT, "--tokens", 40, "--greedy")
    plain = run(2, node, *flags).stdout
    lines = [json.loads(line) for line in run(2, node, "--json", *flags).stdout.splitlines()]
    tokens = lines[-1]["tokens"]
    check(plain == bytes(tokens) + b"\n", "plain text")
    check([line["token"] for line in lines[:-1]] == tokens, "one line a token")
    check(lines[0]["row"] == len(PROMPT), "the row of a token")


node = Node()
check_generation(node)
if not IS_LONG:
    check_long_prompt(node)
    check_score(node)
    check_streams(node)
