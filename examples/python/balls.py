#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The trained video model of examples/video, as kvwheel-video runs it, from Python: balls
that bounce, chunk by chunk, with another prompt in the middle. One line makes its cache
kvwheel's."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when the BLAS loads

import argparse
import sys
from pathlib import Path

import torch

EXAMPLE = Path(__file__).resolve().parents[1] / "video"
sys.path.insert(0, str(EXAMPLE))

import model as video
import world

from kvwheel.families import VideoCache


class Shared:
    """The calls of video.Window on a VideoCache, whose tensors are [n, rows, heads, elems]."""

    def __init__(self, cache):
        self.cache = cache
        self.commit, self.switch, self.begin = cache.commit, cache.switch, cache.begin

    def rows(self, layer, k, v):
        seen = self.cache[layer].update(k.transpose(1, 2), v.transpose(1, 2))
        return tuple(x.transpose(1, 2) for x in seen)

    def prompt(self, layer, make):
        rows = self.cache.cross[layer]
        seen = rows.get()
        if seen is None:
            seen = rows.update(*(x.transpose(1, 2) for x in make()))
        return tuple(x.transpose(1, 2) for x in seen)


class InProcess(video.Window):
    """video.Window is told of a chunk by its first rows alone."""

    def begin(self):
        pass


def shared_cache(model, **options):
    """A cache of the model's shape; positions are those in the window."""
    layer = model.layers[0]
    return VideoCache(layers=len(model.layers), batch=1, heads=layer.heads,
                      head_dim=model.dim // layer.heads,
                      frame_rows=video.ROWS // video.FRAMES, window=video.WINDOW * video.FRAMES,
                      chunk=video.FRAMES, sink=video.SINK * video.FRAMES,
                      text_rows=len(video.CONDITIONS), positions="window", **options)


@torch.no_grad()
def play(model, cache, prompts, chunks, seed=0, passes=video.PASSES):
    """prompts: (first frame, balls, speed) ascending. Yields the frames of each chunk."""
    for at in range(chunks):
        frame = at * video.FRAMES
        now = [prompt for prompt in prompts if prompt[0] <= frame][-1]
        if at and now[0] == frame:
            cache.switch()
        labels = torch.tensor([[now[1] - 1, now[2]]])
        cache.begin()
        x = video.denoise(model, video.noise(seed, frame)[None], labels, cache, passes)
        model.chunk(x, 0.0, labels, cache)  # leaves the clean rows
        cache.commit()
        yield video.pictures(x)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--model", type=Path, default=EXAMPLE / "model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--raw", type=Path, help="write the frames as raw f32")
    parser.add_argument("--inprocess", action="store_true", help="the model's own cache")
    options = parser.parse_args()
    model = video.load(options.model)
    if options.inprocess:
        cache = InProcess()
    else:
        cache = Shared(shared_cache(model))  # the one line
    chunks = options.frames // video.FRAMES
    prompts = [(0, 2, 0), (chunks // 2 * video.FRAMES, 3, 1)]
    frames = []
    for made in play(model, cache, prompts, chunks, options.seed):
        frames += made
        print(f"\r{len(frames)} of {options.frames} frames", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if options.raw:
        options.raw.write_bytes(torch.stack(frames).numpy().tobytes())
    right = [world.count(frame.numpy()) == [p for p in prompts if p[0] <= at][-1][1]
             for at, frame in enumerate(frames)]
    print(f"{len(frames)} frames, {sum(right)} with the number of balls that was asked for")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
