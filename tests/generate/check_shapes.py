#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits of random models of many shapes against reference.py, within 1e-4."""

import array
import subprocess

from harness import EXAMPLE, Node, check, python_with, run

PYTHON = python_with("torch")
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


node = Node()
for name, flags in SHAPES.items():
    model = node.folder / name
    subprocess.run(
        [PYTHON, EXAMPLE / "random_model.py", "--out", model, *map(str, flags)], check=True,
        capture_output=True,
    )
    for positions in ("window", "absolute"):
        rule = (*WINDOW, "--positions", positions)
        subprocess.run(
            [PYTHON, EXAMPLE / "reference.py", model, "--ids", IDS, "--logits",
             node.folder / "want.f64", *map(str, rule)], check=True,
        )
        want = logits(node.folder / "want.f64", "d")
        largest = max(map(abs, want))
        same = set()
        kv_heads = int(flags[flags.index("--kv-heads") + 1]) if "--kv-heads" in flags else 4
        for ranks, chunk in ((1, 1), (min(2, kv_heads), 16), (min(3, kv_heads), 1)):
            run(ranks, node, "--prompt-ids", IDS, "--tokens", 0, "--chunk", chunk,
                "--logits", node.folder / "got.f32", *rule, model=model)
            got = logits(node.folder / "got.f32", "f")
            same.add(got.tobytes())
            check(len(got) == len(want), f"{name}: {len(want)} logits, have {len(got)}")
            error = max(abs(a - b) for a, b in zip(got, want)) / largest
            check(error <= BOUND, f"{name} {positions}, {ranks} ranks: off by {error:.2e}")
        check(len(same) == 1, f"{name} {positions}: ranks differ in some bit")
        print(f"{name} {positions}: relative error {error:.1e}, same bits by ranks and chunk")
