#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain Llama decoder with a rolling window: the oracle for kvwheel-generate.

It reads a Hugging Face Llama folder (config.json and safetensors, one file or
several) and feeds one token at a time, in double precision unless told
otherwise.  Nothing is batched and nothing is ever dropped from the cache, so
that the rule below is the only thing that decides what a query sees.

The rolling-window rule, with window W and sink S (W > S):

  rows       the token fed at step t is row t, in every layer;
  visible    a query at row t sees rows 0 .. S-1 and the W-S rows that end at
             t itself: max(S, t+1-(W-S)) .. t.  W = 0 means every row;
  positions  `window`: a visible row's position is its index among the visible
             rows, so the query's is their number less one;
             `absolute`: a row's position is its row number;
  cache      holds K before rotation; RoPE is applied when K is read, with the
             position the row has then.  K and V of a row are computed once,
             from what that step could see.

Four ways to feed it (choose one):

  reference.py MODEL --ids 72,101,108      logits of each step as JSON
  reference.py MODEL --prompt "In the beginning" --tokens 100
                                           greedy continuation
  reference.py MODEL --nll FILE --bytes N  negative log-likelihood of bytes
  reference.py MODEL --ids-file FILE ...   as --ids, from a file

Any of them can also write the logits of every step with --logits FILE: a .npy
array, steps x vocabulary, or raw little-endian doubles if FILE ends in .f64.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when the BLAS loads

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from safetensors import read_safetensors

COMPUTE = {"float64": torch.float64, "float32": torch.float32}
KV = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def load_folder(folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """Return config.json and every tensor, in the types they are stored in."""
    config = json.loads((folder / "config.json").read_text())
    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(read_safetensors(folder / file))
    return config, tensors


def refuse_unknown(config: dict) -> None:
    """Stop on a model this file would get wrong rather than give a number."""
    expected = {
        "model_type": ("llama",),
        "hidden_act": ("silu", None),
        "rope_scaling": (None,),
        "attention_bias": (False, None),
        "mlp_bias": (False, None),
    }
    for key, allowed in expected.items():
        if config.get(key) not in allowed:
            raise SystemExit(f"reference: {key} = {config.get(key)!r} is not supported")


def visible_rows(t: int, window: int, sink: int) -> list[int]:
    """Return the rows a query at row t sees, in order."""
    if window == 0:
        return list(range(t + 1))
    first = max(sink, t + 1 - (window - sink))
    return [*range(min(sink, t + 1)), *range(first, t + 1)]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.square().mean() + eps) * weight


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate x (rows x heads x head_dim) by each row's position.

    Hugging Face's layout: element j pairs with element j + head_dim/2.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class Reference:
    """The decoder and its cache; `step` feeds one token.

    capacity is the number of rows the run will need at most.
    kv_dtype, if given, is the type K and V are rounded to when stored.
    """

    def __init__(
        self,
        folder: Path,
        capacity: int,
        window: int = 256,
        sink: int = 4,
        positions: str = "window",
        dtype: torch.dtype = torch.float64,
        kv_dtype: torch.dtype | None = None,
    ):
        config, tensors = load_folder(folder)
        refuse_unknown(config)
        self.weights = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config.get("num_key_value_heads", self.heads)
        self.head_dim: int = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps: float = config["rms_norm_eps"]
        self.theta: float = config.get("rope_theta", 10000.0)
        self.vocab: int = config["vocab_size"]
        tied = config.get("tie_word_embeddings", False)
        self.head = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        self.window = window
        self.sink = sink
        self.positions = positions
        self.dtype = dtype
        self.kv_dtype = kv_dtype
        self.rows = 0
        shape = (self.layers, capacity, self.kv_heads, self.head_dim)
        self.k = torch.zeros(shape, dtype=dtype)
        self.v = torch.zeros(shape, dtype=dtype)

    def stored(self, x: Tensor) -> Tensor:
        """Return x as the cache would give it back."""
        if self.kv_dtype is None:
            return x
        # By way of float32, the type in which the C program has its K and V.
        return x.float().to(self.kv_dtype).to(self.dtype)

    def attention(self, layer: int, x: Tensor) -> Tensor:
        w = self.weights
        p = f"model.layers.{layer}.self_attn."
        t = self.rows
        q = (w[p + "q_proj.weight"] @ x).view(1, self.heads, self.head_dim)
        k = (w[p + "k_proj.weight"] @ x).view(self.kv_heads, self.head_dim)
        v = (w[p + "v_proj.weight"] @ x).view(self.kv_heads, self.head_dim)
        self.k[layer, t] = self.stored(k)
        self.v[layer, t] = self.stored(v)

        rows = torch.tensor(visible_rows(t, self.window, self.sink))
        place = torch.arange(len(rows)) if self.positions == "window" else rows
        q = rope(q, place[-1:], self.theta)[0]
        keys = rope(self.k[layer, rows], place, self.theta)
        values = self.v[layer, rows]

        # Query head h uses KV head h // group.
        group = self.heads // self.kv_heads
        q = q.view(self.kv_heads, group, self.head_dim)
        score = torch.einsum("hgd,rhd->hgr", q, keys) / math.sqrt(self.head_dim)
        out = torch.einsum("hgr,rhd->hgd", score.softmax(-1), values)
        return w[p + "o_proj.weight"] @ out.reshape(-1)

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        w = self.weights
        p = f"model.layers.{layer}.mlp."
        gate = w[p + "gate_proj.weight"] @ x
        up = w[p + "up_proj.weight"] @ x
        return w[p + "down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)

    @torch.no_grad()
    def step(self, token: int) -> Tensor:
        """Feed one token and return the logits of the next."""
        w = self.weights
        x = w["model.embed_tokens.weight"][token]
        for i in range(self.layers):
            p = f"model.layers.{i}."
            x = x + self.attention(i, rms_norm(x, w[p + "input_layernorm.weight"], self.eps))
            x = x + self.mlp(i, rms_norm(x, w[p + "post_attention_layernorm.weight"], self.eps))
        self.rows += 1
        return self.head @ rms_norm(x, w["model.norm.weight"], self.eps)


def write_logits(path: Path, steps: list[Tensor]) -> None:
    array = torch.stack(steps).double().numpy().astype("<f8")
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".f64":
        path.write_bytes(array.tobytes())
    else:
        raise SystemExit("reference: --logits wants a name that ends in .npy or .f64")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder with config.json and the weights")
    feed = parser.add_mutually_exclusive_group(required=True)
    feed.add_argument("--ids", help="token ids, separated by commas")
    feed.add_argument("--ids-file", type=Path, help="token ids, separated by white space")
    feed.add_argument("--prompt", help="text to continue greedily, one token per byte")
    feed.add_argument("--nll", type=Path, help="file whose bytes are the tokens")
    parser.add_argument("--tokens", type=int, default=100, help="to generate (default 100)")
    parser.add_argument("--bytes", type=int, help="of the --nll file (default all)")
    parser.add_argument("--window", type=int, default=256, help="default 256; 0: no limit")
    parser.add_argument("--sink", type=int, default=4, help="default 4")
    parser.add_argument("--positions", choices=("window", "absolute"), default="window")
    parser.add_argument("--dtype", choices=sorted(COMPUTE), default="float64")
    parser.add_argument(
        "--dtype-kv", choices=sorted(KV), help="round stored K and V (default: not)"
    )
    parser.add_argument("--logits", type=Path, help="write every step's logits here")
    parser.add_argument("--json", action="store_true", help="JSON for --prompt and --nll")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    if args.window and not 0 <= args.sink < args.window:
        parser.error("--sink must be at least 0 and less than --window")
    if args.logits and args.logits.suffix not in (".npy", ".f64"):
        parser.error("--logits wants a name that ends in .npy or .f64")
    torch.set_num_threads(args.threads)

    generate = 0
    if args.ids is not None:
        tokens = [int(item) for item in args.ids.split(",")]
    elif args.ids_file is not None:
        tokens = [int(item) for item in args.ids_file.read_text().split()]
    elif args.prompt is not None:
        tokens = list(args.prompt.encode())
        generate = args.tokens
    else:
        tokens = list(args.nll.read_bytes()[: args.bytes])
    if not tokens:
        parser.error("no tokens to feed")
    if args.nll is not None and len(tokens) < 2:
        parser.error("--nll needs two bytes at least: the first is given")

    run = Reference(
        args.model,
        capacity=len(tokens) + generate,
        window=args.window,
        sink=args.sink,
        positions=args.positions,
        dtype=COMPUTE[args.dtype],
        kv_dtype=KV[args.dtype_kv] if args.dtype_kv else None,
    )
    if not all(0 <= token < run.vocab for token in tokens):
        parser.error(f"a token is outside the vocabulary of {run.vocab}")
    start = time.monotonic()
    steps: list[Tensor] = []

    def feed_token(token: int) -> Tensor:
        logits = run.step(token)
        if args.logits or args.ids or args.ids_file:
            steps.append(logits)
        return logits

    if args.nll is not None:
        nats = 0.0
        for now, following in zip(tokens, tokens[1:]):
            logits = feed_token(now).double()
            nats += (logits.logsumexp(0) - logits[following]).item()
        predicted = len(tokens) - 1
        bits = nats / math.log(2) / predicted
        if args.json:
            result = {
                "bytes": len(tokens),
                "predicted": predicted,
                "nll_nats": nats,
                "bits_per_byte": bits,
                "window": args.window,
                "sink": args.sink,
                "positions": args.positions,
                "dtype": args.dtype,
                "dtype_kv": args.dtype_kv,
                "seconds": round(time.monotonic() - start, 3),
            }
            print(json.dumps(result))
        else:
            print(f"{predicted} bytes predicted: {nats:.9g} nats, {bits:.6f} bits per byte")
    elif args.prompt is not None:
        for token in tokens:
            logits = feed_token(token)
        new: list[int] = []
        for _ in range(generate):
            # argmax over numpy: the lowest id wins a tie, which torch does
            # not promise.
            new.append(int(np.argmax(logits.numpy())))
            logits = feed_token(new[-1])
        if args.json:
            print(json.dumps({"prompt": tokens, "generated": new}))
        else:
            sys.stdout.buffer.write(bytes(t for t in tokens + new if t < 256) + b"\n")
    else:
        for token in tokens:
            feed_token(token)
        if not args.logits:
            print(json.dumps([step.tolist() for step in steps]))
    if args.logits:
        write_logits(args.logits, steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
