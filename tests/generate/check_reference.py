#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The trained model against reference.py: score and greedy tokens, under the same rule.

Bounds are relative to the reference in double precision, with K and V rounded as stored.
"""

import json

from harness import MODEL, PROMPT, Node, by_speed, check, output_of, programs, result

REFERENCE, _ = programs()
BYTES = by_speed(400, 300, 100)
TOKENS = by_speed(200, 200, 60)
WINDOW = ("--window", by_speed(64, 64, 30), "--sink", 4)
BOUND = {"f32": 1e-4, "f16": 5e-4, "bf16": 2e-3}


def reference(*flags):
    return json.loads(output_of(REFERENCE, MODEL, *flags))


node = Node()
path = node.folder / "scored.txt"
path.write_bytes((MODEL / "TRAINING.md").read_bytes()[:BYTES])

for positions in ("window", "absolute"):
    for dtype, bound in BOUND.items():
        flags = (*WINDOW, "--positions", positions)
        got = result(2, node, "--nll", path, "--dtype", dtype, "--nll-chunk", 8, *flags)
        want = reference("--nll", path, "--dtype-kv", dtype, "--json", *flags)
        error = abs(got["nll_nats"] / want["nll_nats"] - 1)
        check(got["tokens"] == want["predicted"], "as many tokens scored")
        check(error <= bound, f"{positions} {dtype}: score off by {error:.2e}")
        print(f"{positions} {dtype}: {got['nll_nats']:.6f} nats, relative error {error:.1e}")

flags = (*WINDOW, "--tokens", TOKENS, "--prompt", PROMPT)
want = reference("--json", *flags)["generated"]
got = result(2, node, "--greedy", *flags)["tokens"]
check(got == want, "greedy tokens")
print(f"{TOKENS} greedy tokens: the same")
