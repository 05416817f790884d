#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the small video model that kvwheel-video ships with.

    train.py --minutes 75 --out build/video-model [--ranks 2]

Each clip is taught with a clean copy and a few noisy copies of its chunks
(Model.clips): all chunks learn at once, each from clean context, as the
rolling cache has it. Half of the clips have a gap between the first chunk,
the sink, and the rest; in half the prompt switches somewhere, most often
between two chunks that are seen. The clean copy carries a little noise, so
that the model is not thrown by its own small faults when it goes on for
hundreds of frames.

Matrices of the layers are trained by momentum made orthogonal (Newton-Schulz),
the rest by AdamW; what is kept is a running mean of the weights. The rate is
constant, and falls to nothing in the last third of the time.

OUT/state.pt is written every few minutes and at the end, OUT/train.log has a
JSON object a line. Needs Debian's python3-torch, python3-numpy,
libopenblas0-pthread.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import copy
import datetime
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import distributed

import world
from model import FRAMES, SHIFT, WINDOW, Model, generate, patches

GAP = 15  # chunks
CLIPS = 512  # filmed at a time
TURNS = 4  # times each is shown, turned or mirrored
SPOIL = 0.15  # most noise on context
EARLIEST, LATEST = 0.12, 1.0  # of uniform times, before the shift


def clips(rng):
    """Films of [CLIPS, WINDOW, FRAMES, SIZE, SIZE], labels [CLIPS, WINDOW, 2], for ever."""
    length = GAP + WINDOW
    while True:
        gap = np.where(rng.random(CLIPS) < 0.5, 0, rng.integers(0, GAP + 1, CLIPS))
        draw = rng.random(CLIPS)
        seen = gap + rng.integers(1, WINDOW, CLIPS)
        switch = np.where(draw < 0.4, seen, np.where(draw < 0.5, 1 + gap // 2, length))
        chunks = np.arange(WINDOW)[None, :] + np.where(np.arange(WINDOW) < 1, 0, gap[:, None])
        take = (chunks[:, :, None] * FRAMES + np.arange(FRAMES)).reshape(CLIPS, -1)
        frames, labels = world.film(rng, CLIPS, length * FRAMES, switch * FRAMES, take)
        frames = frames.reshape(CLIPS, WINDOW, FRAMES, world.SIZE, world.SIZE)
        yield torch.from_numpy(frames), torch.from_numpy(labels[:, ::FRAMES])


def batches(rng, size):
    for frames, labels in clips(rng):
        for _ in range(TURNS):
            flips = [axis for axis in (-1, -2) if rng.random() < 0.5]
            turned = frames.flip(flips) if flips else frames
            if rng.random() < 0.5:
                turned = turned.transpose(-1, -2)
            order = torch.from_numpy(rng.permutation(CLIPS))
            for at in range(0, CLIPS, size):
                pick = order[at : at + size]
                yield patches(turned[pick]), labels[pick]


def loss_of(model, rows, labels, copies):
    n = len(rows)
    # Each copy of a chunk has a time of its own, spread evenly over the range.
    u = (torch.rand(n, 1, WINDOW) + torch.arange(copies)[:, None]) / copies
    u = EARLIEST + (LATEST - EARLIEST) * u
    t = SHIFT * u / (1 + (SHIFT - 1) * u)
    t = torch.where(u > 0.97, torch.ones(()), t)
    spoil = (torch.rand(n, 1, WINDOW) - 0.4).clamp(min=0) * (SPOIL / 0.6)
    level = torch.cat([spoil, t], 1)[..., None, None]
    mixed = (1 - level) * rows[:, None] + level * torch.randn(n, copies + 1, *rows.shape[1:])
    said = model.clips(mixed, torch.cat([torch.zeros_like(spoil), t], 1), labels)
    error = (said - rows[:, None]).square().mean((-1, -2))
    return (error / t.square()).mean(), error.detach().mean((0, 1))


def orthogonal(m):
    """Nearly the orthogonal matrix next to m: five Newton-Schulz steps."""
    wide = m.T if m.shape[0] > m.shape[1] else m
    x = wide / (wide.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.T if m.shape[0] > m.shape[1] else x


class Orthogonal:
    """Momentum, made orthogonal, for matrices."""

    def __init__(self, matrices, momentum=0.95, decay=0.01):
        self.matrices, self.momentum, self.decay = matrices, momentum, decay
        self.running = [torch.zeros_like(m) for m in matrices]

    @torch.no_grad()
    def step(self, rate):
        for matrix, running in zip(self.matrices, self.running):
            running.lerp_(matrix.grad, 1 - self.momentum)
            ahead = matrix.grad.lerp(running, self.momentum)
            parts = ahead.split(matrix.shape[1], 0) if matrix.shape[0] % matrix.shape[1] == 0 else [ahead]
            turned = torch.cat([orthogonal(part) for part in parts])
            scale = max(1.0, parts[0].shape[0] / parts[0].shape[1]) ** 0.5
            matrix.mul_(1 - rate * self.decay).add_(turned, alpha=-rate * scale)


def right_share(model, n, chunks, sink, seed):
    """Share of frames with the right number of balls: the first window, the last."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(np.stack([np.arange(n) % 3, rng.integers(0, 2, n)], 1))
    labels = labels[:, None].expand(n, chunks, 2)
    frames = generate(model, labels, range(seed, seed + n), sink=sink).numpy()
    right = np.array([[world.count(f) == labels[i, 0, 0] + 1 for f in frames[i]] for i in range(n)])
    w = WINDOW * FRAMES
    return torch.tensor([right[:, :w].mean(), right[:, -w:].mean()])


def share(tensors, ranks):
    """Mean over ranks, in one message."""
    if ranks == 1:
        return
    flat = torch.cat([t.reshape(-1) for t in tensors])
    distributed.all_reduce(flat)
    flat /= ranks
    at = 0
    for t in tensors:
        t.copy_(flat[at : at + t.numel()].view_as(t))
        at += t.numel()


def train(rank, arguments):
    torch.set_num_threads(1)
    ranks = arguments.ranks
    if ranks > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{arguments.out.resolve()}/meet", rank=rank,
            world_size=ranks, timeout=datetime.timedelta(hours=4))
    torch.manual_seed(arguments.seed)
    model = Model()
    mean = copy.deepcopy(model)
    start = 0
    if arguments.go_on:
        kept = torch.load(arguments.out / "state.pt")
        model.load_state_dict(kept["model"])
        mean.load_state_dict(kept["mean"])
        start = kept["step"]
    torch.manual_seed(1000 * arguments.seed + 10 * start + rank)
    matrices = [p for layer in model.layers for p in layer.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
    turned = Orthogonal(matrices)
    adam = torch.optim.AdamW(rest, lr=arguments.rate * 0.15, betas=(0.9, 0.98), weight_decay=0.0)
    log = open(arguments.out / "train.log", "a") if rank == 0 else None
    begun, step, smooth, next_test, next_print = time.monotonic(), start, None, arguments.test_every, 0.0
    budget = arguments.minutes * 60
    for rows, labels in batches(np.random.default_rng(77 * arguments.seed + start + 1000003 * rank), arguments.batch):
        spent = torch.tensor(time.monotonic() - begun)
        if ranks > 1:
            distributed.broadcast(spent, 0)
        spent = spent.item()
        if spent >= budget:
            break
        rate = arguments.rate * min(1, (step - start + 1) / 50) * min(1, 3 * (1 - spent / budget))
        loss, errors = loss_of(model, rows, labels, arguments.copies)
        for p in model.parameters():
            p.grad = None
        loss.backward()
        share([p.grad for p in model.parameters()], ranks)
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        for group in adam.param_groups:
            group["lr"] = rate * 0.15
        adam.step()
        turned.step(rate)
        step += 1
        keep = min(0.995, step / (step + 10))
        with torch.no_grad():
            for p, q in zip(mean.parameters(), model.parameters()):
                p.lerp_(q, 1 - keep)
        said = torch.cat([loss.detach()[None], errors])
        smooth = said if smooth is None else 0.98 * smooth + 0.02 * said
        line = None
        if spent >= next_test:
            next_test = spent + arguments.test_every
            shares = right_share(mean, 9, 20, 1, 100 * step + rank)
            share([shares], ranks)
            line = {"right_first": round(shares[0].item(), 3), "right_last": round(shares[1].item(), 3)}
            if rank == 0:
                save(arguments.out, model, mean, step)
        if line or spent >= next_print:
            next_print = spent + 20
            line = {"step": step, "seconds": round(spent), "loss": round(smooth[0].item(), 4),
                    "errors": [round(e, 4) for e in smooth[1:].tolist()], "rate": round(rate, 5), **(line or {})}
            if rank == 0:
                print(json.dumps(line), file=log, flush=True)
    if rank == 0:
        save(arguments.out, model, mean, step)
        print("done", step, file=sys.stderr, flush=True)


def save(out, model, mean, step):
    torch.save({"model": model.state_dict(), "mean": mean.state_dict(), "step": step}, out / "new.pt")
    os.replace(out / "new.pt", out / "state.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--out", type=Path, default=Path("model"))
    parser.add_argument("--batch", type=int, default=4, help="clips of a rank")
    parser.add_argument("--copies", type=int, default=3, help="noisy copies of a clip")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--test-every", type=float, default=300, help="seconds")
    parser.add_argument("--go-on", action="store_true", help="from OUT/state.pt")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "meet").unlink(missing_ok=True)
    if arguments.ranks == 1:
        train(0, arguments)
        return
    torch.multiprocessing.spawn(train, (arguments,), nprocs=arguments.ranks)


if __name__ == "__main__":
    sys.exit(main())
