#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images from condition images (GLM-Image): a small model with random weights, written for
its in-process cache. One line makes its cache kvwheel's."""

import argparse
import math

import inprocess
import torch

import kvwheel
from kvwheel.families import ImageCache

HEADS, HEAD_DIM, SPLIT = 2, 8, (4, 4)
WIDTH = HEADS * HEAD_DIM
TEXT = 3


class Model:
    """Blocks of attention to [condition images | text | image]."""

    def __init__(self, layers=2, seed=3):
        generator = torch.Generator().manual_seed(seed)
        self.weights = [{name: torch.randn(WIDTH, WIDTH, generator=generator) / math.sqrt(WIDTH)
                         for name in ("q", "k", "v", "o")} for _ in range(layers)]

    def __call__(self, x, n_text, size, time, cache, pieces=False):
        """One pass over [batch, text and image tokens, width]. size: rows and columns of the
        image, which starts at (0, 0), as every condition image does."""
        rope = kvwheel.Rope.grid(size, SPLIT, layout="half_split")
        for layer, w in enumerate(self.weights):
            h = torch.tanh(x + time)
            q, k, v = ((h @ w[name]).reshape(*x.shape[:2], HEADS, HEAD_DIM) for name in "qkv")
            q, k = (torch.cat([part[:, :n_text], rope.rotate(part[:, n_text:], 0)], 1)
                    for part in (q, k))
            if pieces:
                out = cache[layer].attend(q, k, v)
            else:
                out = attend(q, *cache[layer].update(k, v))
            x = x + out.flatten(-2) @ w["o"]
        return x


def attend(q, k, v):
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def noise(seed, batch, n):
    return torch.randn(batch, n, WIDTH, generator=torch.Generator().manual_seed(seed))


def generate(cache, model, samples, batch, size=(3, 4), steps=4, guidance=1.5, pieces=False):
    """samples: for each prompt the sizes of its condition images. Returns all outputs."""
    outputs = []
    cache.set_mode("write")
    for number, images in enumerate(samples):
        for image, of in enumerate(images):
            x = noise(100 * number + image, 1, of[0] * of[1])
            outputs.append(model(x, 0, of, 0.0, cache, pieces))
        cache.next_sample()
    x = noise(7, batch, TEXT + size[0] * size[1])
    for step in range(steps):
        time = 1.0 - step / steps
        cache.set_mode("read")
        with_images = model(x, TEXT, size, time, cache, pieces)
        cache.set_mode("skip")
        without = model(x, TEXT, size, time, cache, pieces)
        x = torch.tanh(without + guidance * (with_images - without))
        outputs += [with_images, without, x]
    cache.clear()
    return outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--inprocess", action="store_true", help="the model's own cache")
    options = parser.parse_args()
    geometry = dict(layers=2, samples=2, heads=HEADS, head_dim=HEAD_DIM, rows=32)
    if options.inprocess:
        cache = inprocess.ImageCache(**geometry)
    else:
        cache = ImageCache(**geometry)  # the one line
    samples = [[(2, 3), (4, 2)], [(2, 3), (2, 4)]]
    outputs = generate(cache, Model(), samples, options.batch)
    print(f"{options.batch} images, checksum {outputs[-1].abs().sum():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
