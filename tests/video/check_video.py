#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvwheel-video: each chunk is torch's from the same context, 1 and 2 ranks make the same
bytes, and so does a run whose workers are killed.

usage: check_video.py [long]
"""

import json
import os
import signal
import subprocess
import sys
import zlib

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when the BLAS loads

from harness import (IO, MODEL, RANKS, REFUSED_MODEL, REFUSED_RESUME, SOURCE, USAGE, Node,
                     by_speed, check, environment, modules, refused, result, run, start, words,
                     workers)

(video,) = modules("model")

import numpy as np
import torch
from footage import W, film

IS_LONG = sys.argv[1:] == ["long"]
FRAMES = 300 if IS_LONG else by_speed(24, 24, 12)
MIDDLE = FRAMES // 2 // 3 * 3
PROMPTS = ("--prompt", f"2 slow, {MIDDLE}: 3 fast", "--seed", 7)
BOUND = 1e-3


def labels_of(frame):
    return torch.tensor([[1, 0] if frame < MIDDLE else [2, 1]])


def follow(frames):
    """Make each chunk by torch from the frames before it. Returns the largest difference,
    and torch's cache after the last one."""
    model, cache, worst = video.load(MODEL), video.Window(), 0.0
    chunks = torch.from_numpy(frames).view(-1, video.FRAMES, video.SIZE, video.SIZE)
    for at, chunk in enumerate(chunks):
        frame = at * video.FRAMES
        if frame == MIDDLE:
            cache.switch()
        want, x = video.patches(chunk)[None], video.noise(7, frame)[None]
        x = video.denoise(model, x, labels_of(frame), cache, video.PASSES)
        worst = max(worst, (x - want).abs().max().item())
        with torch.no_grad():
            model.chunk(want, 0.0, labels_of(frame), cache)
        cache.commit()
    return worst, cache


def check_rows(node, name, cache):
    """The committed keys and values are torch's: sink, window, order."""
    if "KVWHEEL_LIBRARY_DIR" not in os.environ:
        return "not compared"
    import kvwheel

    worst = 0.0
    with kvwheel.connect(str(node.socket)) as client:
        with kvwheel.RollingKVCache.attach(name, client=client) as shared:
            for layer, want in cache.past.items():
                with shared["self", layer].get() as view:
                    have = [torch.from_numpy(view.numpy(name).copy()) for name in "kv"]
                for rows, part in zip(have, want):
                    check(len(rows) == part.shape[2], f"{part.shape[2]} rows, have {len(rows)}")
                    worst = max(worst, (rows.transpose(0, 1) - part[0]).abs().max().item())
    check(worst <= BOUND, f"rows in the cache differ from torch's by {worst}")
    return f"{worst:.1e}"


def check_frames(node):
    wanted = film(node, 1, FRAMES, *PROMPTS, "--resume", "one")
    worst, cache = follow(wanted)
    check(worst <= BOUND, f"a chunk differs from torch's by {worst}")
    rows = check_rows(node, "one", cache)
    print(f"{FRAMES} frames: each chunk is torch's from the same context, at most {worst:.1e} "
          f"off; rows in the cache: {rows}")
    check(film(node, 2, FRAMES, *PROMPTS).tobytes() == wanted.tobytes(), "2 ranks: other bytes")
    print("1 and 2 ranks: the same bytes")
    return wanted


def check_killed(node, wanted, victim):
    """Kill a rank, go on, and compare."""
    name = f"killed-{victim}"
    job = start(2, node, *PROMPTS, "--frames", FRAMES, "--json", "--resume", name)
    before = FRAMES // 3 // 3 * 3
    for frame in range(0, before, 3):
        check(json.loads(job.stdout.readline())["frame"] == frame, f"frame {frame}")
    os.kill(workers(job)[victim], signal.SIGKILL)
    job.communicate(timeout=60)
    check(job.returncode != 0, "a job whose rank was killed fails")
    got = film(node, 2, FRAMES, "--resume", name)
    check(got.tobytes() == wanted.tobytes(), f"{name}: other frames")
    print(f"rank {victim} killed after {before} frames: the same frames")


def check_going_on(node, wanted):
    """A video that is there: longer, and what must not be changed."""
    parts = ("--frames", FRAMES, "--resume", "one")
    again = result(1, node, *parts)
    check(again["new_frames"] == 0 and again["resumed_from"] == FRAMES, f"all there: {again}")
    check(again["prompts"] == [{"frame": 0, "balls": 2, "speed": "slow"},
                               {"frame": MIDDLE, "balls": 3, "speed": "fast"}], "prompts")
    for text, more in (("--seed", ("--seed", 8)), ("--passes", ("--passes", 5)),
                       ("--window", ("--window", 12)), ("--sink", ("--sink", 0)),
                       ("--prompt", ("--prompt", "3 slow")),
                       ("--frames", ("--frames", 99999))):
        refused(1, node, REFUSED_RESUME, text, *parts, *more)
    refused(2, node, REFUSED_RESUME, "ranks", *parts)
    refused(1, node, USAGE, "no cache absent", "--resume", "absent")
    check(film(node, 1, FRAMES, "--resume", "one").tobytes() == wanted.tobytes(), "same video")


def check_refusals(node):
    for text, more in (("--prompt", ("--prompt", "4 slow")), ("--prompt", ("--prompt", "2 idle")),
                       ("--prompt", ("--prompt", "2 slow, 0: 3 fast")),
                       ("--frames", (*PROMPTS, "--frames", 10)),
                       ("--window", (*PROMPTS, "--window", 3)), ("--what", ("--what",))):
        refused(1, node, USAGE, text, *more)
    refused(1, node, REFUSED_MODEL, "model.safetensors", *PROMPTS, model=node.folder)
    refused(5, node, RANKS, "heads", *PROMPTS)
    refused(1, node, IO, "/nowhere", *PROMPTS, "--frames", 3, "--png", "/nowhere/video.png")


def chunks_of(png):
    """Types of a PNG's chunks, whose checksums are checked."""
    at, types = 8, []
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        body = png[at + 4 : at + 8 + size]
        check(zlib.crc32(body) == int.from_bytes(png[at + 8 + size : at + 12 + size], "big"),
              "a chunk's checksum")
        types.append(body[:4].decode())
        at += 12 + size
    return types


def check_pictures(node):
    files = [node.folder / "video.png", node.folder / "sheet.png"]
    done = run(1, node, *PROMPTS, "--frames", 6, "--png", files[0], "--sheet", files[1])
    check(any(f"firefox {files[0]}" in line for line in words(done)), "how to look at it")
    video_png, sheet = (chunks_of(file.read_bytes()) for file in files)
    check(video_png == ["IHDR", "acTL", "fcTL", "IDAT"] + ["fcTL", "fdAT"] * 5 + ["IEND"],
          f"an animation of 6: {video_png}")
    check(sheet == ["IHDR", "IDAT", "IEND"], f"a picture: {sheet}")


def check_python(node, wanted):
    """The same by Python and kvwheel.families; small differences grow from chunk to chunk."""
    if "KVWHEEL_LIBRARY_DIR" not in os.environ:
        return
    path = node.folder / "python-frames"
    subprocess.run([sys.executable, SOURCE / "examples/python/balls.py", "--frames", str(2 * W),
                    "--seed", "7", "--raw", path], check=True, capture_output=True, timeout=120,
                   env={**environment(node), "KVWHEEL_SOCKET": str(node.socket)})
    have = np.fromfile(path, np.float32).reshape(-1, 16, 16)
    like = film(node, 1, 2 * W, "--prompt", f"2 slow, {W}: 3 fast", "--seed", 7)
    worst = np.abs(have - like)[:W].max()
    check(worst <= BOUND, f"examples/python/balls.py differs by {worst}")
    print(f"examples/python/balls.py: at most {worst:.1e} off in the first {W} frames")


torch.set_num_threads(1)
node = Node()
wanted = check_frames(node)
check_killed(node, wanted, 1)
check_pictures(node)
check_python(node, wanted)
if IS_LONG:
    check_killed(node, wanted, 0)
    check_going_on(node, wanted)
    check_refusals(node)
