#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Take the weights out of what train.py left: state.pt to a folder for kvwheel-video.

    export.py build/video-model/state.pt examples/video/model
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from safetensors import encode, write_safetensors


def main():
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    weights = torch.load(source)["mean"]
    write_safetensors(folder / "model.safetensors",
                      {name: encode(part.numpy(), "f32") for name, part in weights.items()})


if __name__ == "__main__":
    sys.exit(main())
