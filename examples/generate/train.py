#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the small language model that kvwheel-generate ships with.

A byte-level Llama decoder (vocabulary: the 256 bytes) is trained on the King
James text that Debian's bible-kjv package prints, and written as a folder
that Hugging Face tools and kvwheel-generate both read: config.json and
model.safetensors.

    train.py --minutes 50 --out model

The model is meant to run with a rolling window of 256 rows and a sink of 4.
Most steps see sequences no longer than the window; a quarter of them see
longer ones under the rolling-window rule itself (see `attend`), so that the
model has met the gap between the sink rows and the rest before it is used
with one.

Every 20th block of 8 KiB of the text is held out and never trained on.
Needs Debian's python3-torch, python3-numpy, libopenblas0-pthread (any other
BLAS works, slowly) and bible-kjv.
"""

import os

# One BLAS thread unless the caller says otherwise: read when numpy or torch
# loads the library, so it must be set first.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import ctypes
import functools
import hashlib
import json
import math
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from safetensors import encode, write_atomically, write_safetensors

BLOCK = 8192
HELD_OUT_EVERY = 20
WINDOW = 256
SINK = 4
QUERY_CHUNK = 128
CORPUS = ["bible", "-f", "ge1:1-rev22:21"]


# --- text ---------------------------------------------------------------


def read_corpus(path: Path | None) -> bytes:
    """Return the text: the file, or what the bible command prints."""
    if path is not None:
        return path.read_bytes()
    try:
        return subprocess.run(CORPUS, check=True, stdout=subprocess.PIPE).stdout
    except FileNotFoundError:
        raise SystemExit("train: no `bible` command; install bible-kjv") from None


def split_corpus(text: bytes) -> tuple[list[bytes], bytes]:
    """Return (the runs between held-out blocks, the held-out blocks joined).

    Block i is held out when i % 20 == 19.  A last block that is not whole
    belongs to whichever side its index says.
    """
    runs: list[bytes] = []
    held_out: list[bytes] = []
    stride = BLOCK * HELD_OUT_EVERY
    for start in range(0, len(text), stride):
        cut = start + stride - BLOCK
        runs.append(text[start:cut])
        held_out.append(text[cut : start + stride])
    return runs, b"".join(held_out)


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


# --- model --------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """The sizes of a Llama decoder, under the names config.json uses."""

    hidden_size: int = 192
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    intermediate_size: int = 512
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    vocab_size: int = 256
    max_position_embeddings: int = WINDOW
    tie_word_embeddings: bool = True

    def to_json(self) -> str:
        fixed = {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "hidden_act": "silu",
            "mlp_bias": False,
            "model_type": "llama",
            "rope_scaling": None,
            "torch_dtype": "float32",
        }
        return json.dumps(fixed | vars(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, values: dict) -> "Config":
        known = {key: values[key] for key in vars(cls()) if key in values}
        known.setdefault(
            "head_dim", values["hidden_size"] // values["num_attention_heads"]
        )
        known.setdefault("tie_word_embeddings", False)
        return cls(**known)


def rope_tables(positions: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Return cos and sin, positions x head_dim, for Hugging Face's layout.

    Element j is paired with element j + head_dim/2, so both halves of a row
    of the table hold the same angles.  Angles are computed in double: a long
    held-out stream has positions whose float32 angle would be too coarse.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    frequency = config.rope_theta ** (-half / config.head_dim)
    angle = positions.double()[:, None] * frequency
    angle = torch.cat((angle, angle), -1)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Apply RoPE to x, whose last two dimensions are position and head_dim."""
    low, high = x.chunk(2, -1)
    return x * table[0] + torch.cat((-high, low), -1) * table[1]


@functools.lru_cache(maxsize=64)
def mask(begin: int, end: int, low: int, sink: int, recent: int, groups: int) -> Tensor:
    """Return 0 / -inf for queries [begin, end) x (sink rows + rows [low, end)).

    `recent` is how many rows, the query's own included, a query sees beside
    the sink.  Repeated for the query heads that share a KV head.
    """
    query = torch.arange(begin, end)[:, None]
    row = torch.arange(low, end)
    seen = (row <= query) & (row > query - recent) & (row >= sink)
    if sink:
        seen = torch.cat((torch.arange(sink) <= query, seen), 1)
    values = torch.zeros(seen.shape).masked_fill(~seen, -math.inf)
    return values.repeat(groups, 1)


def attend(q: Tensor, k: Tensor, v: Tensor, config: Config, window: int, sink: int) -> Tensor:
    """Attention of every row under the rolling-window rule, all rows at once.

    q is batch x KV head x group x T x head_dim; k and v lack the group.  None
    is rotated yet.  A query at row t sees the sink rows and the window - sink
    rows that end at itself.  Positions count visible rows: keys beside the
    sink keep their distance to the query, as with plain RoPE, but a sink row s
    is never further away than window - 1 - s.  Hence two sets of scores: the
    usual ones, and those of the sink with queries rotated by min(t, window-1).
    Both are exact, and equal to what a streaming run computes step by step.
    """
    batch, heads, groups, length, dim = q.shape
    if length <= window:
        sink, recent = 0, length  # nothing has rolled: plain causal attention
    else:
        recent = window - sink
    positions = torch.arange(length)
    table = rope_tables(positions, config)
    near = rotate(q, table)
    key = rotate(k, table)
    if sink:
        far = rotate(q, rope_tables(positions.clamp(max=window - 1), config))
        sink_key = key[:, :, :sink].flatten(0, 1).transpose(1, 2)
        sink_v = v[:, :, :sink].flatten(0, 1)
    scale = 1 / math.sqrt(dim)
    out: list[Tensor] = []
    # Chunks of queries skip the part of the square above the diagonal.
    for begin in range(0, length, QUERY_CHUNK):
        end = min(begin + QUERY_CHUNK, length)
        low = max(sink, begin + 1 - recent)
        kt = key[:, :, low:end].flatten(0, 1).transpose(1, 2)
        bias = mask(begin, end, low, sink, recent, groups)
        query = near[:, :, :, begin:end].reshape(batch * heads, -1, dim)
        score = torch.baddbmm(bias[:, sink:], query, kt, alpha=scale)
        value = v[:, :, low:end].flatten(0, 1)
        if sink:
            query = far[:, :, :, begin:end].reshape(batch * heads, -1, dim)
            extra = torch.baddbmm(bias[:, :sink], query, sink_key, alpha=scale)
            score = torch.cat((extra, score), -1)
            value = torch.cat((sink_v, value), 1)
        part = torch.bmm(score.softmax(-1), value)
        out.append(part.view(batch, heads, groups, end - begin, dim))
    return torch.cat(out, 3)


# Module and attribute names below spell Hugging Face's tensor names.


class RMSNorm(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.eps = config.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        q_rows = config.num_attention_heads * config.head_dim
        kv_rows = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(hidden, q_rows, bias=False)
        self.k_proj = nn.Linear(hidden, kv_rows, bias=False)
        self.v_proj = nn.Linear(hidden, kv_rows, bias=False)
        self.o_proj = nn.Linear(q_rows, hidden, bias=False)

    def forward(self, x: Tensor, window: int, sink: int) -> Tensor:
        c = self.config
        batch, length, _ = x.shape
        heads = c.num_key_value_heads
        groups = c.num_attention_heads // heads
        q = self.q_proj(x).view(batch, length, heads, groups, c.head_dim)
        k = self.k_proj(x).view(batch, length, heads, c.head_dim)
        v = self.v_proj(x).view(batch, length, heads, c.head_dim)
        out = attend(
            q.permute(0, 2, 3, 1, 4), k.transpose(1, 2), v.transpose(1, 2), c, window, sink
        )
        return self.o_proj(out.permute(0, 3, 1, 2, 4).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(config)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, window: int, sink: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), window, sink)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config)

    def forward(self, tokens: Tensor, window: int, sink: int) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, window, sink)
        return self.norm(x)


class Llama(nn.Module):
    """The decoder; forward gives logits for batch x T tokens."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def initialise(self) -> None:
        """Draw small weights; the ends of residual branches smaller still."""
        branch = 0.02 / math.sqrt(2 * self.config.num_hidden_layers)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                ends = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=branch if ends else 0.02)

    def forward(self, tokens: Tensor, window: int = WINDOW, sink: int = SINK) -> Tensor:
        x = self.model(tokens, window, sink)
        if self.config.tie_word_embeddings:
            return functional.linear(x, self.model.embed_tokens.weight)
        return self.lm_head(x)


@torch.no_grad()
def stream_bits(model: Llama, data: bytes, window: int = WINDOW, sink: int = SINK) -> float:
    """Return bits per byte of data read as one stream, the first byte given."""
    tokens = as_tensor(data)
    logits = model(tokens[None, :-1], window, sink)[0]
    return functional.cross_entropy(logits, tokens[1:]).item() / math.log(2)


def save(model: Llama, folder: Path, notes: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: encode(weight.detach().numpy(), "f32")
        for name, weight in model.state_dict().items()
    }
    write_atomically(folder / "config.json", model.config.to_json().encode())
    write_safetensors(folder / "model.safetensors", tensors)
    write_atomically(folder / "TRAINING.md", notes.encode())


# --- training -----------------------------------------------------------


class Sampler:
    """Draws batches of windows; none touches a held-out block."""

    def __init__(self, runs: list[bytes], seed: int):
        self.runs = [as_tensor(run) for run in runs]
        self.random = random.Random(seed)

    def batch(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        usable = [run for run in self.runs if len(run) > length]
        starts = [len(run) - length for run in usable]
        rows: list[Tensor] = []
        for run in self.random.choices(usable, starts, k=count):
            start = self.random.randrange(len(run) - length)
            rows.append(run[start : start + length + 1])
        block = torch.stack(rows)
        return block[:, :-1], block[:, 1:]


def learning_rate(peak: float, step: int, warmup: int, progress: float) -> float:
    """Linear warm-up in steps, then a cosine in time down to a fiftieth."""
    floor = peak / 50
    decayed = floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return decayed * min(1.0, (step + 1) / warmup)


def reuse_memory() -> None:
    """Keep freed memory in the process (glibc).

    By default each large tensor is mapped and unmapped anew, and clearing its
    pages costs about as much time as the arithmetic on it.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: never use a mapping of its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: do not give back
        libc.mallopt(-2, 2**28)  # M_TOP_PAD: grow in large steps
    except (OSError, AttributeError):
        pass  # another C library: only slower


def notes(args: argparse.Namespace, model: Llama, facts: dict[str, str]) -> str:
    """Return TRAINING.md: how the weights were made and what they reach."""
    parameters = sum(p.numel() for p in model.parameters())
    lines = [
        "# How these weights were made",
        "",
        f"A byte-level Llama decoder of {parameters} parameters (float32), made by",
        "`train.py` in the folder above this one:",
        "",
        f"    {args.command}",
        "",
        "| | |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += [
        "",
        f"Held out: every {HELD_OUT_EVERY}th block of {BLOCK} bytes of the text (index % "
        f"{HELD_OUT_EVERY} == {HELD_OUT_EVERY - 1}). They were never",
        "trained on; the first ones chose which checkpoint to keep. `evaluate.py`",
        "prints the figure again.",
        "",
        "The step count depends on the machine's speed, because the run is limited by",
        "time; the same command elsewhere gives other weights of about the same quality.",
        "",
        "Licence: the text, the King James Version as packaged by Debian (bible-kjv), is",
        "in the public domain in most of the world. The weights are Apache-2.0, like the",
        "rest of kvwheel.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Train the byte-level Llama model of kvwheel-generate.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    here = Path(__file__).resolve().parent
    parser.add_argument("--out", type=Path, default=here / "model", help="folder to write")
    parser.add_argument("--minutes", type=float, default=50.0, help="time to train")
    parser.add_argument("--corpus", type=Path, help="text file instead of the bible command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="torch threads; the BLAS reads OPENBLAS_NUM_THREADS (1 if not set)",
    )
    defaults = Config()
    parser.add_argument("--hidden", type=int, default=defaults.hidden_size)
    parser.add_argument("--layers", type=int, default=defaults.num_hidden_layers)
    parser.add_argument("--heads", type=int, default=defaults.num_attention_heads)
    parser.add_argument("--kv-heads", type=int, default=defaults.num_key_value_heads)
    parser.add_argument("--head-dim", type=int, default=defaults.head_dim)
    parser.add_argument("--intermediate", type=int, default=defaults.intermediate_size)
    parser.add_argument("--batch", type=int, default=16, help=f"sequences of {WINDOW} a step")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument(
        "--rolling", type=float, default=0.25, help="share of steps on sequences that roll"
    )
    parser.add_argument("--rolling-length", type=int, default=WINDOW * 3 // 2)
    parser.add_argument("--checkpoint-minutes", type=float, default=3.0)
    parser.add_argument(
        "--checkpoint-bytes", type=int, default=4 * BLOCK, help="held-out bytes per checkpoint"
    )
    args = parser.parse_args()
    args.command = " ".join(["train.py", *sys.argv[1:]])

    reuse_memory()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    text = read_corpus(args.corpus)
    runs, held_out = split_corpus(text)
    sampler = Sampler(runs, args.seed)
    config = Config(
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        head_dim=args.head_dim,
        intermediate_size=args.intermediate,
    )
    model = Llama(config)
    model.initialise()
    weights = [p for p in model.parameters() if p.dim() == 2]
    gains = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": weights, "weight_decay": args.weight_decay},
            {"params": gains, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
    )
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters} parameters; {len(text)} bytes of text, {len(held_out)} held out",
        file=sys.stderr,
        flush=True,
    )

    start = time.monotonic()
    budget = args.minutes * 60
    next_checkpoint = args.checkpoint_minutes * 60
    best = math.inf
    seen = 0
    step = 0
    average = 0.0

    def facts(bits: str) -> dict[str, str]:
        passes = seen / (len(text) - len(held_out))
        return {
            "text": f"`{' '.join(CORPUS)}`" if args.corpus is None else str(args.corpus),
            "text size, SHA-256": f"{len(text)} bytes, {hashlib.sha256(text).hexdigest()}",
            "trained": f"{time.monotonic() - start:.0f} seconds (checks included), "
            f"{args.threads} thread(s), {step} steps, {seen} bytes ({passes:.1f} passes)",
            "held-out bits per byte": bits,
        }

    while (elapsed := time.monotonic() - start) < budget:
        rate = learning_rate(args.lr, step, args.warmup, elapsed / budget)
        for group in optimizer.param_groups:
            group["lr"] = rate
        length = args.rolling_length if sampler.random.random() < args.rolling else WINDOW
        x, y = sampler.batch(max(1, args.batch * WINDOW // length), length)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        seen += x.numel()
        bits = loss.item() / math.log(2)
        average = bits if step == 1 else 0.98 * average + 0.02 * bits
        if step % 50 == 0:
            print(
                f"{time.monotonic() - start:7.0f} s  step {step:5d}  lr {rate:.2e}  "
                f"training {average:.4f} bits per byte",
                file=sys.stderr,
                flush=True,
            )
        if time.monotonic() - start >= next_checkpoint or time.monotonic() - start >= budget:
            next_checkpoint += args.checkpoint_minutes * 60
            bits = stream_bits(model, held_out[: args.checkpoint_bytes])
            kept = bits < best
            print(
                f"{time.monotonic() - start:7.0f} s  step {step:5d}  held out {bits:.4f} "
                f"bits per byte{' (kept)' if kept else ''}",
                file=sys.stderr,
                flush=True,
            )
            if kept:
                best = bits
                best_weights = {n: w.clone() for n, w in model.state_dict().items()}
                figure = f"{bits:.4f} on the first {args.checkpoint_bytes} bytes; unfinished run"
                save(model, args.out, notes(args, model, facts(figure)))

    model.load_state_dict(best_weights)
    bits = stream_bits(model, held_out)
    print(f"final: {bits:.4f} bits per byte on all {len(held_out)} held-out bytes", file=sys.stderr)
    figure = f"{bits:.4f} (all {len(held_out)} bytes as one stream; window {WINDOW}, sink {SINK})"
    save(model, args.out, notes(args, model, facts(figure)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
