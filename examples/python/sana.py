#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Block-causal linear attention with a temporal convolution (SANA-Video): a small model with
random weights, written for its in-process cache. One line makes its cache kvwheel's."""

import argparse
import math

import inprocess
import torch

import kvwheel
from kvwheel import families
from kvwheel.families import LinearCache

HEADS, HEAD_DIM, SPLIT = 2, 12, (4, 4, 4)
GRID = (2, 2)
FRAME = GRID[0] * GRID[1]
WIDTH = HEADS * HEAD_DIM
TAIL = WIDTH * FRAME  # a frame that enters the convolution
EPS = 1e-4


class Model:
    """Blocks of linear attention, then a convolution over three frames."""

    def __init__(self, layers=2, seed=2, max_frames=80):
        generator = torch.Generator().manual_seed(seed)
        self.weights = [{name: torch.randn(WIDTH, WIDTH, generator=generator) / math.sqrt(WIDTH)
                         for name in ("q", "k", "v", "o")} for _ in range(layers)]
        self.kernel = torch.randn(layers, 3, generator=generator) / 2
        self.rope = kvwheel.Rope.grid((max_frames, *GRID), SPLIT)

    def __call__(self, x, time, cache, frame, is_saving, pieces=False, at=None):
        """One pass over a chunk, [batch, tokens, width], whose first frame is `frame`.
        pieces: the kernels' linear attention, on the shared memory, in place of torch's.
        at: rotate as if that were the chunk's first frame: sums are stored at absolute
        frames, and are re-based to it and back."""
        batch, tokens = x.shape[:2]
        moved = 0 if at is None else (at - frame) * FRAME
        for layer, w in enumerate(self.weights):
            h = torch.tanh(x + time)
            q, k, v = ((h @ w[name]).reshape(batch, tokens, HEADS, HEAD_DIM) for name in "qkv")
            q, k = q.relu(), k.relu()
            turned_q, turned_k = (self.rope.rotate(part, frame * FRAME + moved)
                                  for part in (q, k))
            past_vk, past_k_sum, tail = cache[layer].get()
            if moved:
                past_vk = families.rebase(past_vk, self.rope, moved)
            vk, k_sum = (families.sums(k, turned_k, v) if pieces else
                         (torch.einsum("bnhd,bnhk->bhdk", v, turned_k), k.sum(1)))
            if not pieces:
                out = attend(q, turned_q, vk + past_vk, k_sum + past_k_sum)
            elif not moved:
                out = cache[layer].attend(q, turned_q, vk, k_sum, EPS)
            else:
                out = torch.stack([kvwheel.linear_attention(one, [past, own], turned, EPS)
                                   for one, turned, past, own in zip(
                                       q, turned_q, zip(past_vk, past_k_sum), zip(vk, k_sum))])
            x = x + torch.tanh(out.flatten(-2)) @ w["o"]
            x = x + self._convolve(layer, x, tail)
            if is_saving:
                if moved:
                    vk = families.rebase(vk, self.rope, -moved)
                cache[layer].update(vk, k_sum, x[:, -FRAME:].flatten(1))
        return x

    def _convolve(self, layer, x, tail):
        """Kernel 3 in time: the frame before a chunk is the tail, the frame behind it zero."""
        batch, tokens = x.shape[:2]
        frames = x.reshape(batch, tokens // FRAME, FRAME, WIDTH)
        zero = torch.zeros(batch, 1, FRAME, WIDTH)
        before = zero if tail is None else tail.reshape(zero.shape)
        padded = torch.cat([before, frames, zero], 1)
        a, b, c = self.kernel[layer]
        return (a * padded[:, :-2] + b * padded[:, 1:-1] + c * padded[:, 2:]).reshape(x.shape) / 3


def attend(q, turned_q, vk, k_sum):
    """Linear attention; above the line rotated, below not."""
    above = torch.einsum("bhdk,bnhk->bnhd", vk, turned_q)
    return above / (torch.einsum("bhk,bnhk->bnh", k_sum, q) + EPS)[..., None]


class Player:
    """Generation over a cache."""

    def __init__(self, cache, model, batch=1, passes=2, pieces=False, at=None):
        self.cache, self.model, self.batch, self.passes = cache, model, batch, passes
        self.pieces, self.at = pieces, at
        self.made, self.last, self.prompt, self.outputs = 0, None, 0.0, []

    def chunk(self, frames=3):
        """Denoise with nothing written, then one clean pass that saves."""
        frame = self.cache.begin()
        x = torch.randn(self.batch, frames * FRAME, WIDTH,
                        generator=torch.Generator().manual_seed(self.made))
        self.made += frames
        for step in range(self.passes):
            x = torch.tanh(self._pass(x, 1.0 - step / self.passes, frame, False))
        self._save(x, frame)

    def switch(self, prompt):
        """A new prompt: the last chunk is run again on the sums before it."""
        self.prompt = prompt
        self.cache.rewind()
        self._save(self.last, self.cache.begin())

    def _save(self, x, frame):
        self._pass(x, 0.0, frame, True)
        self.cache.commit(x.shape[1] // FRAME)
        self.last = x

    def _pass(self, x, time, frame, is_saving):
        out = self.model(x, time + self.prompt, self.cache, frame, is_saving,
                         self.pieces, self.at)
        self.outputs.append(out)
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--blocks", type=int, default=3, help="chunks that a query sees; 0: all")
    parser.add_argument("--inprocess", action="store_true", help="the model's own cache")
    options = parser.parse_args()
    geometry = dict(layers=2, batch=1, heads=HEADS, head_dim=HEAD_DIM, tail_elems=TAIL,
                    blocks=options.blocks or None)
    if options.inprocess:
        cache = inprocess.LinearCache(**geometry)
    else:
        cache = LinearCache(**geometry)  # the one line
    player = Player(cache, Model())
    player.chunk(4)  # the first chunk takes the remainder
    for chunk in range(1, options.chunks):
        if chunk == options.chunks // 2:
            player.switch(0.5)
        player.chunk()
    print(f"{player.made} frames, checksum {player.outputs[-1].abs().sum():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
