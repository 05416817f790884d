# SPDX-License-Identifier: Apache-2.0
"""Caches for model families, with the calls that models of the field already make: a
container with layers; layers have update, get and reset; tensors are torch's, of
[batch, rows, heads, elems]. Each is a small helper over RollingKVCache, which is its
attribute `shared`.

    VideoCache   Self-Forcing, LongLive 1 and 2, Krea, infinity-RoPE
    LinearCache  SANA-Video: sums of linear attention and the convolution's tail
    ImageCache   GLM-Image: condition images, written once and read or skipped
    TextCache    language models: sliding and full layers, sinks, rollback

update() and get() return tensors of the shared memory where the window is one piece
(`contiguous`, no sink), else gathers, which `shared.stats` counts; attend() reads the
pieces where they lie and never gathers. A tensor that was returned holds its rows: one
that is still referred to two chunks later makes begin() say so.
"""

from .image import ImageCache
from .linear import LinearCache, rebase, sums
from .text import TextCache
from .video import VideoCache

__all__ = ["ImageCache", "LinearCache", "TextCache", "VideoCache", "rebase", "sums"]
