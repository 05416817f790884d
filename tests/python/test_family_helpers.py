# SPDX-License-Identifier: Apache-2.0
"""The helpers of families.h do what VideoCache does: rows, positions, epochs."""

import os
import random
import subprocess

import pytest

torch = pytest.importorskip("torch")
from conftest import SEED  # noqa: E402
from kvwheel.families import VideoCache  # noqa: E402

FRAME, WINDOW, CHUNK = 2, 9, 3
SINKS = {"keep": 1, "drop": 2, "recompute": 3}


class OfPython:
    """The same lines, done by VideoCache."""

    def __init__(self, client, name, sink):
        self.cache = VideoCache(1, 1, 1, 8, FRAME, WINDOW, CHUNK, sink, text_rows=8,
                                contiguous=False, client=client, name=name)

    def chunk(self, rows):
        self.write(self.cache.begin(rows // FRAME), rows)

    def jump(self, rows):
        self.cache.jump(rows // FRAME)

    def write(self, position, rows):
        values = torch.arange(position, position + rows).float()[None, :, None, None]
        self.cache[0].store(values.expand(1, rows, 1, 8), values.expand(1, rows, 1, 8))
        self.cache.commit()

    def switch(self, sink, context):
        for frames in self.cache.switch({n: s for s, n in SINKS.items()}[sink],
                                        context // FRAME):
            self.write(self.cache.begin(frames), len(frames) * FRAME)

    def flush(self, rows):
        self.cache.evict_to_last(rows // FRAME)

    def show(self):
        with self.cache[0].view() as views:
            values = views[0].numpy("k")[:, 0, 0].copy()
            epoch = views[0].epoch
        assert (torch.from_numpy(values).long() == self.cache[0].positions).all()
        return " ".join([*(f"{value:.0f}" for value in values), "sum", f"{values.sum():.0f}",
                         "epoch", str(epoch)])


def script(seed):
    """A sequence of what may come after another."""
    rng = random.Random(seed)
    frames = 0
    for _ in range(30):
        what = rng.choice(["chunk"] * 5 + ["switch", "flush", "jump"])
        if what == "switch":
            sink = rng.choice(list(SINKS))
            context = rng.choice([0, 1, 3, 5, 6, 20]) if sink == "keep" else \
                rng.choice([1, 3, 6, 20])
            yield f"switch {SINKS[sink]} {context * FRAME}"
        elif what == "flush" and frames > 0:
            yield f"flush {2 * FRAME}"
        elif what == "jump":
            yield f"jump {8 * FRAME}"
        n = rng.choice([1, 2, 3, 3, 3])
        frames += n
        yield f"chunk {n * FRAME}"


@pytest.mark.parametrize("sink", [0, 1, 4])
def test_switches_flushes_and_chunks_are_the_same_from_c(client, name, sink):
    lines = list(script(SEED + sink))
    run = subprocess.run(
        [os.environ["KVW_FAMILIES"], f"{name}-c", str(FRAME),
         *(str(n * FRAME) for n in (WINDOW, CHUNK, sink))],
        input="\n".join(lines) + "\n", capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

    of_python = OfPython(client, name, sink)
    for line, of_c in zip(lines, run.stdout.splitlines()):
        call, *numbers = line.split()
        getattr(of_python, call)(*map(int, numbers))
        assert of_python.show() == of_c.strip(), line
    assert len(run.stdout.splitlines()) == len(lines) > 30
    of_python.cache.close()
