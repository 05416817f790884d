#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The share of frames with the number of balls that was asked for, in the first window and in
the last of 300 frames: with the sink it falls by 0.05 at most."""

import functools

from harness import Node, check, modules, together

(world,) = modules("world")

import numpy as np
from footage import W, film

FRAMES = 300
FIRST_SEEDS, LAST_SEEDS = 10, 2  # of each prompt
FIRST_LEAST = 0.8
FALL_MOST = 0.05


def right(node, frames, sink, balls, speed, seed):
    """Of each frame of a video: has it the right number?"""
    made = film(node, 1, frames, "--prompt", f"{balls} {speed}", "--sink", sink, "--seed", seed)
    return [world.count(frame) == balls for frame in made]


def shares(node, frames, sink, seeds):
    """By frame, over videos of every prompt and a few seeds."""
    calls = [functools.partial(right, node, frames, sink, balls, speed, seed)
             for balls in range(1, world.BALLS + 1) for speed in ("slow", "fast")
             for seed in range(seeds)]
    return np.mean(together(calls), 0)


# What the world itself makes is counted right.
films, labels = world.film(np.random.default_rng(1), 40, 60)
exact = np.mean([world.count(frame) == label[0] + 1
                 for film_, film_labels in zip(films, labels)
                 for frame, label in zip(film_, film_labels)])
check(exact == 1.0, f"counting the world's own frames: {exact}")

node = Node()
first = shares(node, W, 3, FIRST_SEEDS).mean()
print(f"right number of balls in {first:.3f} of frames 1-{W}")
check(first >= FIRST_LEAST, f"{first:.3f} of the first {W} frames, need {FIRST_LEAST}")
for sink in (3, 0):
    share = shares(node, FRAMES, sink, LAST_SEEDS)
    last = share[-W:].mean()
    print(f"sink of {sink} frames: in {last:.3f} of the last {W} of {FRAMES}, in "
          f"{share.mean():.3f} of all")
    if sink:
        check(last >= first - FALL_MOST, f"falls by {first - last:.3f}, need {FALL_MOST} at most")
