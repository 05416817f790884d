#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Autoregressive video (Self-Forcing, LongLive, Krea, infinity-RoPE): a small model with
random weights, written for its in-process cache. One line makes its cache kvwheel's."""

import argparse
import math

import inprocess
import torch

import kvwheel
from kvwheel.families import VideoCache

HEADS, HEAD_DIM, SPLIT = 2, 12, (4, 4, 4)
GRID = (2, 2)  # tokens of a frame
FRAME = GRID[0] * GRID[1]
WIDTH = HEADS * HEAD_DIM


class Model:
    """Blocks of self-attention over the window, and attention to the prompt."""

    def __init__(self, layers=2, seed=1, max_frames=64):
        generator = torch.Generator().manual_seed(seed)
        self.weights = [{name: torch.randn(WIDTH, WIDTH, generator=generator) / math.sqrt(WIDTH)
                         for name in ("q", "k", "v", "o", "cq", "ck", "cv", "co")}
                        for _ in range(layers)]
        self.rope = kvwheel.Rope.grid((max_frames, *GRID), SPLIT)

    def heads(self, x):
        return x.reshape(*x.shape[:-1], HEADS, HEAD_DIM)

    def __call__(self, x, time, cache, position, text, bias=None, pieces=False):
        """One pass over a chunk, [batch, tokens, width], at noise `time`. pieces: attention
        on the shared memory in place of tensors."""
        for layer, w in enumerate(self.weights):
            h = torch.tanh(x + time)
            q, k, v = (self.heads(h @ w[name]) for name in "qkv")
            q = self.rope.rotate(q, position)
            if cache.is_absolute:
                k = self.rope.rotate(k, position)
            if pieces:
                cache[layer].store(k, v)
                out = cache[layer].attend(q, bias=bias, rope=None if cache.is_absolute
                                          else self.rope)
            else:
                keys, values = cache[layer].update(k, v)
                if not cache.is_absolute:
                    keys = self.rope.rotate(keys, cache[layer].positions)
                out = attend(q, keys, values, cache[layer].bias(bias) if bias else None)
            x = x + out.flatten(-2) @ w["o"]
            prompt = cache.cross[layer].get()
            if prompt is None:
                prompt = cache.cross[layer].update(self.heads(text @ w["ck"]),
                                                   self.heads(text @ w["cv"]))
            x = x + attend(self.heads(x @ w["cq"]), *prompt).flatten(-2) @ w["co"]
        return x


def attend(q, k, v, bias=None):
    """Softmax attention of [batch, rows, heads, elems]."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


class Player:
    """Generation over a cache: chunks, and what happens between them."""

    def __init__(self, cache, model, batch=1, pieces=False, passes=3):
        self.cache, self.model, self.batch = cache, model, batch
        self.pieces, self.passes = pieces, passes
        self.text = self._random("text", 0, 5)
        self.clean = {}  # latents by frame
        self.outputs = []

    def _random(self, what, number, n):
        seed = hash((what == "text", number)) % (1 << 31)
        return torch.randn(self.batch, n, WIDTH, generator=torch.Generator().manual_seed(seed))

    def _pass(self, x, time, position, bias=None):
        x = self.model(x, time, self.cache, position, self.text, bias, self.pieces)
        self.outputs.append(x)
        return x

    def chunk(self, frames=3, bias=None, commit=True):
        """Denoise a chunk in place and run it once more, clean."""
        first = len(self.clean)
        position = self.cache.begin(frames)
        x = torch.cat([self._random("noise", first + i, FRAME) for i in range(frames)], 1)
        for step in range(self.passes):
            x = torch.tanh(self._pass(x, 1.0 - step / self.passes, position, bias))
        for i in range(frames):
            self.clean[first + i] = x[:, i * FRAME : (i + 1) * FRAME]
        if commit:
            self._pass(x, 0.0, position, bias)
            self.cache.commit()

    def _again(self, position, frames):
        """One clean pass over frames that are known."""
        self._pass(torch.cat([self.clean[i] for i in frames], 1), 0.0, position)
        self.cache.commit()

    def switch(self, number, sink="keep", context=0):
        """A new prompt; what is to be run again under it, is."""
        self.text = self._random("text", number, 4)
        for frames in self.cache.switch(sink, context):
            self._again(self.cache.begin(frames), frames)

    def interpolate(self, number, part):
        """A step from the present prompt towards another (Krea). The text is installed before
        the next krea_block(), whose context is so computed under it, not a block behind."""
        self.text = torch.lerp(self.text[:, :4], self._random("text", number, 4), part)
        self.cache.switch()

    def krea_block(self, frames=3, context=3, bias=0.3):
        """Krea: the window is computed anew from the first frame and the last ones before
        each block; there is no clean pass. Cached rows but the first frame get a bias."""
        known = len(self.clean)
        self.cache.restart()
        if known:
            again = [0, *range(max(known - context + 1, 1), known)]
            self._again(self.cache.begin(len(again)), again)
        self.chunk(frames, {"past": math.log(bias)} if known else None, commit=False)

    def call(self, name, *arguments):
        getattr(self.cache, name)(*arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--inprocess", action="store_true", help="the model's own cache")
    options = parser.parse_args()
    geometry = dict(layers=2, batch=1, heads=HEADS, head_dim=HEAD_DIM, frame_rows=FRAME,
                    window=9, chunk=3, sink=3, text_rows=8)
    if options.inprocess:
        cache = inprocess.VideoCache(**geometry)
    else:
        cache = VideoCache(**geometry)  # the one line
    player = Player(cache, Model())
    for chunk in range(options.chunks):
        if chunk == options.chunks // 2:
            player.switch(1, context=6)
        player.chunk()
    print(f"{len(player.clean)} frames, checksum {player.outputs[-1].abs().sum():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
