#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a Llama folder with random weights, for tests.

The folder holds config.json and the weights in the safetensors format, with
the tensor names of Hugging Face's LlamaForCausalLM.  Every size is a flag, so
a test can ask for the shapes a trained model would not have: a head_dim that
is not hidden / heads, one KV head, an untied output matrix, weights spread
over several files.  Only numpy is needed.

    random_model.py --out /tmp/tiny --head-dim 64 --dtype bf16 --shards 3

The same flags and seed give the same bytes.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from safetensors import Tensor, encode, write_atomically, write_safetensors


TORCH_DTYPE = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def write_sharded(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    """Write the tensors as one file, or as `shards` files and their index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in part})
        weight_map.update({name: file for name in part})
    total = sum(len(tensor.data) for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_atomically(
        folder / "model.safetensors.index.json",
        (json.dumps(index, indent=2) + "\n").encode(),
    )


def random_weights(config: dict, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw weights that keep activations near 1 whatever the sizes.

    A trained model's attention is far from uniform.  Independent small
    weights would make it almost uniform and hide mistakes in positions, so
    q_proj and k_proj are drawn large enough for scores of a few units.
    """
    hidden = config["hidden_size"]
    head_dim = config["head_dim"]
    q_rows = config["num_attention_heads"] * head_dim
    kv_rows = config["num_key_value_heads"] * head_dim
    inter = config["intermediate_size"]

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(gain / math.sqrt(columns))

    def norm() -> np.ndarray:
        # Not all ones: a reader that forgets to multiply must be caught.
        return rng.uniform(0.5, 1.5, hidden).astype(np.float32)

    vocab = config["vocab_size"]
    weights = {"model.embed_tokens.weight": matrix(vocab, hidden, math.sqrt(hidden))}
    if config["tie_word_embeddings"]:
        # The same matrix gives the logits: keep them to a few units.
        weights["model.embed_tokens.weight"] *= np.float32(3 / math.sqrt(hidden))
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        weights[p + "input_layernorm.weight"] = norm()
        weights[p + "self_attn.q_proj.weight"] = matrix(q_rows, hidden, 1.5)
        weights[p + "self_attn.k_proj.weight"] = matrix(kv_rows, hidden, 1.5)
        weights[p + "self_attn.v_proj.weight"] = matrix(kv_rows, hidden)
        weights[p + "self_attn.o_proj.weight"] = matrix(hidden, q_rows)
        weights[p + "post_attention_layernorm.weight"] = norm()
        weights[p + "mlp.gate_proj.weight"] = matrix(inter, hidden)
        weights[p + "mlp.up_proj.weight"] = matrix(inter, hidden)
        weights[p + "mlp.down_proj.weight"] = matrix(hidden, inter)
    weights["model.norm.weight"] = norm()
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(vocab, hidden, 3.0)
    return weights


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write a Llama folder with random weights (for tests).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to create")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64, help="hidden size")
    parser.add_argument("--heads", type=int, default=8, help="query heads")
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument(
        "--head-dim", type=int, default=8, help="even; need not be hidden / heads"
    )
    parser.add_argument("--intermediate", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--max-positions", type=int, default=4096)
    parser.add_argument("--rope-theta", type=float, default=10000.0)
    parser.add_argument("--rms-eps", type=float, default=1e-5)
    parser.add_argument(
        "--untied", action="store_true", help="separate lm_head.weight"
    )
    parser.add_argument("--dtype", choices=sorted(TORCH_DTYPE), default="f32")
    parser.add_argument(
        "--shards", type=int, default=1, help="files; above 1 with an index"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    sizes = "layers hidden heads kv_heads head_dim intermediate vocab max_positions"
    for name in sizes.split() + ["shards"]:
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.head_dim % 2:
        parser.error("--head-dim must be even: RoPE rotates pairs")
    if args.heads % args.kv_heads:
        parser.error("--heads must be a multiple of --kv-heads")

    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "head_dim": args.head_dim,
        "hidden_act": "silu",
        "hidden_size": args.hidden,
        "intermediate_size": args.intermediate,
        "max_position_embeddings": args.max_positions,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": args.heads,
        "num_hidden_layers": args.layers,
        "num_key_value_heads": args.kv_heads,
        "rms_norm_eps": args.rms_eps,
        "rope_scaling": None,
        "rope_theta": args.rope_theta,
        "tie_word_embeddings": not args.untied,
        "torch_dtype": TORCH_DTYPE[args.dtype],
        "vocab_size": args.vocab,
    }
    weights = random_weights(config, np.random.default_rng(args.seed))
    if args.shards > len(weights):
        parser.error(f"--shards: the model has only {len(weights)} tensors")
    tensors = {name: encode(array, args.dtype) for name, array in weights.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    write_sharded(args.out, tensors, args.shards)
    write_atomically(
        args.out / "config.json", (json.dumps(config, indent=2) + "\n").encode()
    )
    size = sum(len(tensor.data) for tensor in tensors.values())
    print(f"{args.out}: {len(tensors)} tensors, {size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
