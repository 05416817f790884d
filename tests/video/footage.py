# SPDX-License-Identifier: Apache-2.0
"""Frames that kvwheel-video wrote."""

import tempfile
from pathlib import Path

import numpy as np
from harness import check, run

W = 15  # frames of the window
SIZE = 16


def film(node, ranks, frames, *flags):
    """Run the program; its frames, f32 [frames, SIZE, SIZE]."""
    path = Path(tempfile.mkdtemp(dir=node.folder)) / "frames"
    run(ranks, node, "--frames", frames, "--raw", path, *flags)
    made = np.fromfile(path, np.float32).reshape(-1, SIZE, SIZE)
    check(len(made) == frames, f"{frames} frames, have {len(made)}")
    check(np.abs(made).max() <= 1, "grey in [-1, 1]")
    return made
