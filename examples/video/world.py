# SPDX-License-Identifier: Apache-2.0
"""A made-up world to film: balls that move, bounce off walls and off each other.

Frames are 16 x 16 grey pixels in [-1, 1]. A clip's condition is how many balls
there are (1 to 3) and how fast they go (slow, fast). At a prompt switch balls
appear or vanish, or change their speed, between two frames.

Balls keep a gap when they collide: each is drawn smaller than it is. So every
ball is one connected blob of bright pixels in every frame, and `count` finds
the true number in every frame that the world makes.
"""

import numpy as np

SIZE = 16
BALLS = 3
SPEEDS = (0.35, 0.8)  # pixels a frame: slow, fast
DRAWN = 1.7  # radius of the bright disc
SOLID = 2.6  # radius of the body that bounces
SUBSTEPS = 4
BRIGHT = 0.0  # grey above which a pixel belongs to a ball
BLOB_LEAST = 3  # pixels of a blob that counts as a ball


def _place(rng, place, there, ball):
    """Put one ball where there is room: the place of 40 that is least crowded."""
    n = len(place)
    tries = rng.uniform(SOLID, SIZE - SOLID, (n, 40, 2))
    apart = np.full((n, 40), 99.0)
    for other in range(BALLS):
        if other != ball:
            away = np.linalg.norm(tries - place[:, None, other], axis=2)
            apart = np.where(there[:, None, other], np.minimum(apart, away), apart)
    first = np.argmax(apart > 2 * SOLID, axis=1)
    crowded = ~(apart > 2 * SOLID).any(axis=1)
    pick = np.where(crowded, np.argmax(apart, axis=1), first)
    return tries[np.arange(n), pick]


def _headings(rng, n):
    angle = rng.uniform(0, 2 * np.pi, n)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _move(place, speed, there, pace):
    """One substep: walls, then each pair of balls as equal masses."""
    place += speed * (pace / SUBSTEPS)[:, None, None]
    low, high = place < SOLID, place > SIZE - SOLID
    speed[:] = np.where(low, np.abs(speed), np.where(high, -np.abs(speed), speed))
    np.clip(place, SOLID, SIZE - SOLID, out=place)
    for a in range(BALLS):
        for b in range(a):
            gap = place[:, a] - place[:, b]
            far = np.maximum(np.linalg.norm(gap, axis=1, keepdims=True), 1e-6)
            normal = gap / far
            touch = there[:, a] & there[:, b] & (far[:, 0] < 2 * SOLID)
            push = np.sum((speed[:, a] - speed[:, b]) * normal, axis=1, keepdims=True)
            push = np.where(touch[:, None] & (push < 0), push, 0)
            speed[:, a] -= push * normal
            speed[:, b] += push * normal
            overlap = np.where(touch[:, None], 2 * SOLID - far, 0) / 2
            place[:, a] += overlap * normal
            place[:, b] -= overlap * normal


def _draw(place, there):
    """Discs with a soft edge of a pixel: [n, SIZE, SIZE]."""
    centre = np.arange(SIZE) + 0.5
    grey = np.full((len(place), SIZE, SIZE), -1.0)
    for ball in range(BALLS):
        dx = centre[None, None, :] - place[:, ball, 0, None, None]
        dy = centre[None, :, None] - place[:, ball, 1, None, None]
        ink = np.clip(DRAWN + 0.5 - np.sqrt(dx * dx + dy * dy), 0, 1) * 2 - 1
        grey = np.maximum(grey, np.where(there[:, ball, None, None], ink, -1))
    return grey


def _change(rng, place, stay, n_balls):
    """Who is there after a prompt switch; balls that appear are put where there is room."""
    there = np.arange(BALLS)[None, :] < n_balls[:, None]
    for ball in range(BALLS):
        new = there[:, ball] & ~stay[:, ball]
        if new.any():
            seen = stay | (np.arange(BALLS) < ball)[None, :]
            place[new, ball] = _place(rng, place, seen & there, ball)[new]
    return there


def film(rng, n_clips, n_frames, switch=None, take=None):
    """Film clips.

    switch: [n_clips] frame before which the prompt changes (n_frames: never).
    take: [n_clips, n] frames to keep, ascending; all when None.
    Returns frames [n_clips, n, SIZE, SIZE] float32, and labels [n_clips, n, 2] of
    each frame: balls - 1, speed.
    """
    labels = np.zeros((n_clips, n_frames, 2), np.int64)
    places = np.zeros((n_clips, n_frames, BALLS, 2), np.float32)
    shown = np.zeros((n_clips, n_frames, BALLS), bool)
    n_balls = rng.integers(1, BALLS + 1, n_clips)
    fast = rng.integers(0, 2, n_clips)
    there = np.arange(BALLS)[None, :] < n_balls[:, None]
    place = np.zeros((n_clips, BALLS, 2))
    speed = np.zeros((n_clips, BALLS, 2))
    for ball in range(BALLS):
        place[:, ball] = _place(rng, place, there & (np.arange(BALLS) < ball), ball)
        speed[:, ball] = _headings(rng, n_clips)
    for t in range(n_frames):
        if switch is not None and (switch == t).any():
            now = switch == t
            n_balls = np.where(now, rng.integers(1, BALLS + 1, n_clips), n_balls)
            fast = np.where(now, rng.integers(0, 2, n_clips), fast)
            there = _change(rng, place, there, n_balls)
        places[:, t], shown[:, t] = place, there
        labels[:, t, 0] = n_balls - 1
        labels[:, t, 1] = fast
        pace = np.asarray(SPEEDS)[fast]
        for _ in range(SUBSTEPS):
            _move(place, speed, there, pace)
    if take is not None:
        clip = np.arange(n_clips)[:, None]
        places, shown, labels = places[clip, take], shown[clip, take], labels[clip, take]
    frames = _draw(places.reshape(-1, BALLS, 2), shown.reshape(-1, BALLS))
    return frames.reshape(n_clips, -1, SIZE, SIZE).astype(np.float32), labels


def count(frame):
    """Balls in one frame: connected blobs of bright pixels (four neighbours)."""
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(frame > BRIGHT))}
    balls = 0
    while left:
        heap, blob = [left.pop()], 1
        while heap:
            y, x = heap.pop()
            for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if near in left:
                    left.remove(near)
                    heap.append(near)
                    blob += 1
        balls += blob >= BLOB_LEAST
    return balls
