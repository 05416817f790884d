#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the held-out bits per byte of a model folder.

    evaluate.py                      the model shipped in this folder
    evaluate.py FOLDER --json        any byte-level Llama folder
    evaluate.py --dump-heldout FILE --bytes 10000
                                     the bytes, for kvwheel-generate --nll FILE

The held-out blocks (every 20th block of 8 KiB of the text, see train.py) are
joined and read as one stream.  Each byte but the first is predicted under the
rolling window that the generator uses: a query sees the sink rows and the
window - sink rows that end at itself, and positions count visible rows.  All
rows are computed at once, which gives what a streaming run gives step by step
up to rounding; reference.py does the same one token at a time.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when the BLAS loads

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from reference import load_folder, refuse_unknown
from train import (
    SINK,
    WINDOW,
    Config,
    Llama,
    read_corpus,
    reuse_memory,
    split_corpus,
    stream_bits,
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parent
    parser.add_argument(
        "model", type=Path, nargs="?", default=here / "model", help="folder (default: model/)"
    )
    parser.add_argument("--window", type=int, default=WINDOW, help=f"default {WINDOW}")
    parser.add_argument("--sink", type=int, default=SINK, help=f"default {SINK}")
    parser.add_argument("--bytes", type=int, help="only the first BYTES held-out bytes")
    parser.add_argument("--corpus", type=Path, help="text file instead of the bible command")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--dump-heldout", type=Path, metavar="FILE", help="write the held-out bytes and stop"
    )
    args = parser.parse_args()
    if not 0 <= args.sink < args.window:
        parser.error("--sink must be at least 0 and less than --window")

    _, held_out = split_corpus(read_corpus(args.corpus))
    data = held_out[: args.bytes]
    if args.dump_heldout is not None:
        args.dump_heldout.write_bytes(data)
        return 0
    if len(data) < 2:
        parser.error("two bytes at least are needed: the first is given")

    reuse_memory()
    torch.set_num_threads(args.threads)
    values, tensors = load_folder(args.model)
    refuse_unknown(values)
    model = Llama(Config.from_json(values))
    if model.config.vocab_size < 256:
        parser.error("the model's vocabulary is smaller than the 256 bytes")
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    start = time.monotonic()
    bits = stream_bits(model, data, args.window, args.sink)
    result = {
        "bits_per_byte": bits,
        "bytes": len(data),
        "predicted": len(data) - 1,
        "window": args.window,
        "sink": args.sink,
        "positions": "window",
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(time.monotonic() - start, 3),
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"{bits:.4f} bits per byte on {len(data)} held-out bytes "
            f"(one stream; window {args.window}, sink {args.sink}, positions in the window)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
