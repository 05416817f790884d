# SPDX-License-Identifier: Apache-2.0
"""A small block-causal diffusion transformer over chunks of three grey frames.

A frame of 16 x 16 pixels is 16 tokens of 4 x 4 pixels, a chunk is 48 rows. A
chunk sees itself and the chunks before it: the window is the sink (the first
chunk) and the last three before the current one. Keys are cached raw and
rotated by their place within the window (frame, line, column), so that any
number of chunks is seen from the same positions. The condition (how many
balls, how fast) is two tokens, seen through cross-attention.

A noisy chunk at time t is (1 - t) frames + t noise; the model says what the
frames are. Context rows are made by a pass at time 0.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from safetensors import read_safetensors

SIZE = 16
PATCH = 4
SIDE = SIZE // PATCH  # tokens
FRAMES = 3  # of a chunk
ROWS = FRAMES * SIDE * SIDE  # of a chunk
PIXELS = PATCH * PATCH
SINK = 1  # chunks
WINDOW = 5  # chunks, with the sink and the current one
CONDITIONS = (3, 2)  # values of each of the condition's tokens
PASSES = 6  # of denoising
SHIFT = 3.0  # of their times, towards noise
TIMES = 32  # sines and cosines of the time's embedding
PAIRS = (6, 5, 5)  # of a head, rotated by frame, line, column
SLOWEST = (0.03, 0.3, 0.3)  # radians a step; the fastest turns by 1.5


def patches(frames: Tensor) -> Tensor:
    """[..., FRAMES, SIZE, SIZE] to rows [..., ROWS, PIXELS]."""
    lead = frames.shape[:-3]
    x = frames.reshape(*lead, FRAMES, SIDE, PATCH, SIDE, PATCH)
    return x.transpose(-3, -2).reshape(*lead, ROWS, PIXELS)


def pictures(rows: Tensor) -> Tensor:
    """The way back."""
    lead = rows.shape[:-2]
    x = rows.reshape(*lead, FRAMES, SIDE, SIDE, PATCH, PATCH).transpose(-3, -2)
    return x.reshape(*lead, FRAMES, SIZE, SIZE)


def angles(n_rows: int) -> Tensor:
    """Radians of each row of a window and each pair of a head."""
    row = torch.arange(n_rows, dtype=torch.float64)
    place = (row // (SIDE * SIDE), row // SIDE % SIDE, row % SIDE)
    parts = []
    for at, n, slowest in zip((p.floor() for p in place), PAIRS, SLOWEST):
        rate = 1.5 * (slowest / 1.5) ** (torch.arange(n, dtype=torch.float64) / (n - 1))
        parts.append(at[:, None] * rate)
    return torch.cat(parts, 1)


_angles = angles(WINDOW * ROWS)
COS, SIN = _angles.cos().float(), _angles.sin().float()


def rotate(x: Tensor, first: int) -> Tensor:
    """Rotary embedding, half-split pairs; x [..., rows, head_dim] from row `first` on."""
    n, half = x.shape[-2], x.shape[-1] // 2
    cos, sin = COS[first : first + n], SIN[first : first + n]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return torch.addcmul(shift, norm(x), 1 + scale)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[..., heads, rows, head_dim] to [..., rows, dim]."""
    score = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-1, -2)
    return (score.softmax(-1) @ v).transpose(-3, -2).flatten(-2)


class SquaredRelu(torch.autograd.Function):
    """relu(x) squared; by hand, since memory traffic is what training waits for."""

    @staticmethod
    def forward(ctx, x):
        x = x.relu()
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return (ctx.saved_tensors[0] * grad).mul_(2)


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.cross_q = nn.Linear(dim, dim, bias=False)
        self.cross_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.cross_out = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)
        self.table = nn.Parameter(torch.zeros(6 * dim))

    def split(self, x: Tensor) -> Tensor:
        """[..., rows, dim] to [..., heads, rows, head_dim]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def prompt(self, condition: Tensor):
        """Keys and values of condition [..., tokens, dim]."""
        return tuple(self.split(part) for part in self.cross_kv(condition).chunk(2, -1))

    def cross_seen(self, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """x [..., rows, dim] looks at the prompt."""
        return self.cross_out(attend(self.split(self.cross_q(norm(x))), k, v))

    def feed(self, x: Tensor, m: list) -> Tensor:
        y = SquaredRelu.apply(self.up(modulated(x, m[3], m[4])))
        return torch.addcmul(x, m[5], self.down(y))


class Model(nn.Module):
    def __init__(self, dim: int = 128, heads: int = 4, depth: int = 6):
        super().__init__()
        self.dim = dim
        self.enter = nn.Linear(PIXELS, dim)
        self.place = nn.Parameter(torch.randn(ROWS, dim) * 0.1)
        self.words = nn.Parameter(torch.randn(sum(CONDITIONS), dim))
        self.time_in = nn.Linear(2 * TIMES, dim)
        self.time_out = nn.Linear(dim, 6 * dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.last_table = nn.Parameter(torch.zeros(2 * dim))
        self.leave = nn.Linear(dim, PIXELS)
        with torch.no_grad():
            for layer in self.layers:
                layer.table[2 * dim : 3 * dim] = 0.3
                layer.table[5 * dim : 6 * dim] = 0.3
                layer.cross_out.weight.mul_(0.3)
            self.time_out.weight.mul_(0.1)
            self.leave.weight.mul_(0.1)
            self.leave.bias.fill_(-0.7)

    def time(self, t: Tensor) -> Tensor:
        """t [...] to the modulation [..., 6 dim]."""
        rate = torch.exp(-math.log(1e3) * torch.arange(TIMES) / TIMES)
        angle = 100.0 * t[..., None] * rate
        hidden = functional.silu(self.time_in(torch.cat([angle.cos(), angle.sin()], -1)))
        return self.time_out(hidden)

    def condition(self, labels: Tensor) -> Tensor:
        """labels [..., 2] to tokens [..., 2, dim]."""
        return self.words[labels + torch.tensor([0, CONDITIONS[0]])]

    def finish(self, x: Tensor, step: Tensor) -> Tensor:
        m = (step[..., : 2 * self.dim] + self.last_table).chunk(2, -1)
        return self.leave(modulated(x, *m))

    def clips(self, rows: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """Teach: rows [B, copies, chunks, ROWS, PIXELS], t [B, copies, chunks], labels
        [B, chunks, 2]. Copy 0 is the clean one; every other copy's chunk sees the
        clean chunks before it, and itself. Returns the frames said of copies 1 on."""
        copies, chunks = rows.shape[1:3]
        condition = self.condition(labels)[:, None]
        x = self.enter(rows) + self.place
        step = self.time(t)[..., None, :]
        for layer in self.layers:
            m = (step + layer.table).chunk(6, -1)
            q, k, v = layer.qkv(modulated(x, m[0], m[1])).chunk(3, -1)
            x = torch.addcmul(x, m[2], layer.out(self.seen(layer, q, k, v, copies, chunks)))
            x = x + layer.cross_seen(x, *layer.prompt(condition.expand(-1, copies, -1, -1, -1)))
            x = layer.feed(x, m)
        return self.finish(x[:, 1:], step[:, 1:])

    def seen(self, layer, q, k, v, copies: int, chunks: int) -> Tensor:
        q, k, v = (layer.split(part) for part in (q, k, v))
        out, past_k, past_v = [], [], []
        for at in range(chunks):
            own_k = rotate(k[:, :, at], at * ROWS)
            own_v = v[:, :, at]
            keys = torch.cat([*past_k, own_k], -2) if past_k else own_k
            values = torch.cat([*past_v, own_v], -2) if past_v else own_v
            out.append(attend(rotate(q[:, :, at], at * ROWS), keys, values))
            past_k.append(own_k[:, :1].expand(-1, copies, -1, -1, -1))
            past_v.append(own_v[:, :1].expand(-1, copies, -1, -1, -1))
        return torch.stack(out, 2)

    def chunk(self, rows: Tensor, t: float, labels: Tensor, cache) -> Tensor:
        """One pass over one chunk: rows [n, ROWS, PIXELS], labels [n, 2]. Returns the
        frames said. cache: see Window."""
        x = self.enter(rows) + self.place
        step = self.time(torch.tensor(t))
        for i, layer in enumerate(self.layers):
            m = (step + layer.table).chunk(6, -1)
            y = modulated(x, m[0], m[1])
            q, k, v = (layer.split(part) for part in layer.qkv(y).chunk(3, -1))
            k, v = cache.rows(i, k, v)
            y = attend(rotate(q, k.shape[-2] - ROWS), rotate(k, 0), v)
            x = torch.addcmul(x, m[2], layer.out(y))
            x = x + layer.cross_seen(x, *cache.prompt(i, lambda: layer.prompt(
                self.condition(labels))))
            x = layer.feed(x, m)
        return self.finish(x, step)


class Window:
    """The cache of a video in one process: raw keys and values, [n, heads, rows, head_dim],
    of each layer's sink and last chunks, rolled by copying."""

    def __init__(self, sink: int = SINK, window: int = WINDOW):
        self.sink, self.window = sink, window
        self.past, self.open, self.prompts = {}, {}, {}

    def rows(self, layer: int, k: Tensor, v: Tensor):
        """Write the open chunk's rows of a layer; returns all that it sees, those last."""
        self.open[layer] = (k, v)
        if layer in self.past:
            self.open[layer] = tuple(torch.cat([self.left(x), own], -2)
                                     for x, own in zip(self.past[layer], (k, v)))
        return self.open[layer]

    def left(self, x: Tensor) -> Tensor:
        """What an open chunk sees of committed rows."""
        keep = self.sink * ROWS
        if x.shape[-2] < self.window * ROWS:
            return x
        return torch.cat([x[..., :keep, :], x[..., keep + ROWS :, :]], -2)

    def prompt(self, layer: int, make):
        """Keys and values of the prompt, made when they are not there."""
        if layer not in self.prompts:
            self.prompts[layer] = make()
        return self.prompts[layer]

    def commit(self):
        self.past, self.open = self.open, {}

    def switch(self):
        self.prompts = {}


def load(folder: Path) -> Model:
    model = Model()
    model.load_state_dict(read_safetensors(Path(folder) / "model.safetensors"))
    return model


def times(n: int) -> list:
    """Times of n denoising passes and the end, from 1 to 0."""
    u = [1 - i / n for i in range(n + 1)]
    return [SHIFT * x / (1 + (SHIFT - 1) * x) for x in u]


def philox(counter: np.ndarray, key: tuple) -> np.ndarray:
    """Philox4x32-10 of counters [n, 4]: four words each. As examples/common/philox.c."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    low = np.uint64(0xFFFFFFFF)
    k = [np.uint64(key[0]), np.uint64(key[1])]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k[0], p1 & low,
             (p0 >> np.uint64(32)) ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, 1)


def noise(seed: int, frame: int) -> Tensor:
    """The noise [ROWS, PIXELS] that the chunk from `frame` on begins as: see noise.h."""
    frames = []
    for at in range(frame, frame + FRAMES):
        counter = np.zeros((SIZE * SIZE // 2, 4), np.uint64)
        counter[:, 0], counter[:, 1] = at & 0xFFFFFFFF, at >> 32
        counter[:, 3] = 2 * np.arange(len(counter))
        words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
        uniform = ((words[:, 1::2] << np.uint64(32) | words[:, ::2]) >> np.uint64(11)) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(1 - uniform[:, 0])), 2 * math.pi * uniform[:, 1]
        frames.append(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1))
    made = torch.from_numpy(np.concatenate(frames)).float()
    return patches(made.view(FRAMES, SIZE, SIZE))


@torch.no_grad()
def denoise(model: Model, x: Tensor, labels: Tensor, cache, passes: int) -> Tensor:
    """From noise [n, ROWS, PIXELS] to the chunk's rows; the cache has those of the last
    pass."""
    plan = times(passes)
    for t, then in zip(plan, plan[1:]):
        said = model.chunk(x, t, labels, cache)
        x = said + (then / t) * (x - said)
    return x.clamp(-1, 1)


@torch.no_grad()
def generate(model: Model, labels: Tensor, seeds: list, passes: int = PASSES,
             sink: int = SINK) -> Tensor:
    """Whole videos: labels [n, chunks, 2] and n seeds to frames [n, chunks * FRAMES, SIZE,
    SIZE]."""
    cache = Window(sink)
    frames = []
    for at in range(labels.shape[1]):
        if at and not torch.equal(labels[:, at], labels[:, at - 1]):
            cache.switch()
        x = torch.stack([noise(seed, at * FRAMES) for seed in seeds])
        x = denoise(model, x, labels[:, at], cache, passes)
        model.chunk(x, 0.0, labels[:, at], cache)
        cache.commit()
        frames.append(pictures(x))
    return torch.cat(frames, 1)
