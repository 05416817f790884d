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
SEEDS = 2
FIRST_LEAST = 0.8
FALL_MOST = 0.05


def right(node, sink, balls, speed, seed):
    """Of each frame of a video: has it the right number?"""
    frames = film(node, 1, FRAMES, "--prompt", f"{balls} {speed}", "--sink", sink, "--seed", seed)
    return [world.count(frame) == balls for frame in frames]


def shares(node, sink):
    """By frame, over videos of every prompt and a few seeds."""
    calls = [functools.partial(right, node, sink, balls, speed, seed)
             for balls in range(1, world.BALLS + 1) for speed in ("slow", "fast")
             for seed in range(SEEDS)]
    return np.mean(together(calls), 0)


# What the world itself makes is counted right.
films, labels = world.film(np.random.default_rng(1), 40, 60)
exact = np.mean([world.count(frame) == label[0] + 1
                 for film_, film_labels in zip(films, labels)
                 for frame, label in zip(film_, film_labels)])
check(exact == 1.0, f"counting the world's own frames: {exact}")

node = Node()
for sink in (3, 0):
    share = shares(node, sink)
    first, last = share[:W].mean(), share[-W:].mean()
    print(f"sink of {sink} frames: right number of balls in {first:.3f} of frames 1-{W}, "
          f"{last:.3f} of the last {W} of {FRAMES}, {share.mean():.3f} of all")
    if sink:
        check(first >= FIRST_LEAST, f"{first:.3f} of the first {W} frames, need {FIRST_LEAST}")
        check(last >= first - FALL_MOST, f"falls by {first - last:.3f}, need {FALL_MOST} at most")
