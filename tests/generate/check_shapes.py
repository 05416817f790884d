#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits of random models of many shapes against reference.py, within 1e-4."""

import array

from harness import Node, by_speed, check, output_of, programs, run, together

REFERENCE, RANDOM_MODEL = programs()
BOUND = 1e-4  # of the largest logit
SHAPES = {
    "tied": ("--head-dim", 8),
    "untied": ("--untied", "--rope-theta", 500000),
    "sharded-bf16": ("--untied", "--dtype", "bf16", "--shards", 3),
    "f16": ("--dtype", "f16"),
    "heads-1-to-1": ("--heads", 4, "--kv-heads", 4, "--head-dim", 64),
    "heads-8-to-1": ("--heads", 8, "--kv-heads", 1, "--head-dim", 64),
    "head-dim-128": ("--heads", 4, "--kv-heads", 2, "--head-dim", 128, "--hidden", 80),
    "odd-sizes": ("--heads", 6, "--kv-heads", 3, "--hidden", 52, "--intermediate", 101,
                  "--vocab", 307, "--untied"),
}
N_IDS = 90
WINDOW = ("--window", 30, "--sink", 3)
IDS = ",".join(str(i * 37 % 251) for i in range(N_IDS))


def logits(path, kind):
    values = array.array(kind)
    values.frombytes(path.read_bytes())
    return values


def check_shape(node, name, flags, positions):
    """One model under one rule of positions: ranks and chunks give the same bits."""
    folder = node.folder / name
    rule = (*WINDOW, "--positions", positions)
    kv_heads = int(flags[flags.index("--kv-heads") + 1]) if "--kv-heads" in flags else 4
    ways = ((1, 1), (min(2, kv_heads), 16), (min(3, kv_heads), 1))
    if not by_speed(True, False, False):  # each rule of positions with its own ranks
        ways = (ways[0], ways[1 if positions == "window" else 2])

    output_of(REFERENCE, folder, "--ids", IDS, "--logits", folder / "want.f64", *rule)
    want = logits(folder / "want.f64", "d")
    largest = max(map(abs, want))
    together(
        lambda i=i, ranks=ranks, chunk=chunk: run(
            ranks, node, "--prompt-ids", IDS, "--tokens", 0, "--chunk", chunk, "--logits",
            folder / f"got-{i}.f32", *rule, model=folder)
        for i, (ranks, chunk) in enumerate(ways))
    same = set()
    for i, (ranks, _) in enumerate(ways):
        got = logits(folder / f"got-{i}.f32", "f")
        same.add(got.tobytes())
        check(len(got) == len(want), f"{name}: {len(want)} logits, have {len(got)}")
        error = max(abs(a - b) for a, b in zip(got, want)) / largest
        check(error <= BOUND, f"{name} {positions}, {ranks} ranks: off by {error:.2e}")
    check(len(same) == 1, f"{name} {positions}: ranks differ in some bit")
    print(f"{name} {positions}: relative error {error:.1e}, same bits by ranks and chunk")


node = Node()
for name, flags in SHAPES.items():
    output_of(RANDOM_MODEL, "--out", node.folder / name, *flags)
    for positions in ("window", "absolute"):
        check_shape(node, name, flags, positions)
