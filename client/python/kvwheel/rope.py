# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding by tables, computed by the kernels."""

import ctypes as c
import math
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _abi
from ._native import lib, strerror
from .arrays import ITEM_BYTES, given, is_torch


class Rope:
    """Tables of cosines and sines: row p rotates position p. See struct kvw_rope_table.

    The positions of a cache are rows (tokens). For an image or a video a table row is a
    token of the flattened grid: Rope.grid()."""

    def __init__(self, cos: Any, sin: Any, layout: str, step: int = 1) -> None:
        """cos, sin: [positions, pairs]. layout: which elements form a pair: `interleaved`
        (2j, 2j + 1) or `half_split` (j, j + pairs). step: positions that a shift is a
        multiple of (of a grid: those of one step of its first axis)."""
        if layout not in _abi.ROPE_LAYOUTS:
            raise ValueError(f"layout: need one of {', '.join(_abi.ROPE_LAYOUTS)}, "
                             f"have {layout!r}")
        self.layout, self.step = layout, step
        self.cos, self.sin = (np.ascontiguousarray(of, np.float32) for of in (cos, sin))
        if self.cos.ndim != 2 or self.cos.shape != self.sin.shape:
            raise ValueError(f"tables: need cos and sin of [positions, pairs], have "
                             f"{list(self.cos.shape)} and {list(self.sin.shape)}")
        self.n_positions, self.n_pairs = self.cos.shape
        self.struct = _abi.kvw_rope_table(
            self.cos.ctypes.data, self.sin.ctypes.data, self.cos.strides[0],
            self.n_positions, self.n_pairs, _abi.ROPE_LAYOUTS[layout])

    @classmethod
    def line(cls, n_positions: int, head_dim: int, theta: float = 10000.0,
             layout: str = "half_split", inv_freq: Optional[Sequence[float]] = None,
             magnitude: float = 1.0) -> "Rope":
        """The usual 1-D tables; inv_freq and magnitude as Llama 3 and YaRN have them."""
        freq = None if inv_freq is None else np.ascontiguousarray(inv_freq, np.float64)
        cos, sin = _tables(n_positions, head_dim // 2 if freq is None else len(freq))
        spec = _abi.kvw_rope_spec(
            cos.ctypes.data, sin.ctypes.data, cos.strides[0], *cos.shape, theta,
            None if freq is None else freq.ctypes.data, 0, magnitude)
        _check("rotary tables", lib.rope_fill(c.byref(spec)))
        return cls(cos, sin, layout)

    @classmethod
    def grid(cls, sizes: Sequence[int], split: Sequence[int], theta: float = 10000.0,
             layout: str = "interleaved", first: int = 0) -> "Rope":
        """Tables of a flattened grid, last axis fastest: (frames, height, width) for video,
        (height, width) for an image. split: channels of each axis. first: the first index
        of the first axis (an absolute frame offset)."""
        if (len(sizes) != len(split) or any(part % 2 for part in split)
                or not 0 < len(sizes) <= _abi.ROPE_AXES_MAX):
            raise ValueError(f"split: need an even number of channels for each of 1 to "
                             f"{_abi.ROPE_AXES_MAX} axes, have {list(split)} for {list(sizes)}")
        cos, sin = _tables(math.prod(sizes), sum(split) // 2)
        grid = _abi.kvw_rope_grid(cos.ctypes.data, sin.ctypes.data, cos.strides[0], len(sizes),
                                  theta=theta)
        for axis, (size, part) in enumerate(zip(sizes, split)):
            grid.size[axis], grid.n_pairs[axis] = size, part // 2
        grid.begin[0] = first
        _check("rotary tables", lib.rope_fill_grid(c.byref(grid)))
        return cls(cos, sin, layout, step=math.prod(sizes[1:]))

    def rotate(self, x: Any, position: Union[int, Any], sign: int = 1) -> Any:
        """Rows [..., rows, heads, elems] rotated: row i by position + i, or by the i-th of
        an array of positions; sign -1 rotates back. A new array, of x's kind and type
        (numpy's uint16: bits of bf16), without a gradient; elements behind the pairs pass.
        Computed in f32."""
        n = x.shape[-3]
        at = (np.arange(position, position + n) if isinstance(position, (int, np.integer))
              else np.asarray(position))
        if n and not 0 <= at.min() <= at.max() < self.n_positions:
            raise ValueError(f"rotate: positions {at.min()} to {at.max()}: the tables have 0 "
                             f"to {self.n_positions - 1}")
        return self._apply(x, [(first, of, sign * int(at[first]), sign)
                               for first, of in _runs(at)])

    def shift(self, x: Any, delta: int) -> Any:
        """Rows that are rotated already, moved by delta positions. Those of a grid move by
        whole steps of its first axis (frames) alone: else height and width would turn."""
        if delta % self.step or abs(delta) >= self.n_positions:
            raise ValueError(f"shift: need a multiple of {self.step} below "
                             f"{self.n_positions}, have {delta}")
        return self._apply(x, [(0, x.shape[-3], delta, 0)])

    def _apply(self, x: Any, runs: List[Tuple[int, int, int, int]]) -> Any:
        """runs: first row, rows, position of the first, and from one row to the next."""
        out = _copy(x)
        rows = given(out, "rows to rotate")
        if rows.type not in ("f32", "f16", "bf16"):
            raise ValueError(f"rotate: need rows of f32, f16 or bf16, have {rows.type}")
        *batch, n_rows, n_heads, elems = rows.shape
        if elems < 2 * self.n_pairs:
            raise ValueError(f"rotate: the tables turn {2 * self.n_pairs} elements of a head, "
                             f"rows have {elems}")
        head = elems * ITEM_BYTES[rows.type]
        args = _abi.kvw_rope_args(
            row_stride=head * n_heads, head_stride=head, n_heads=n_heads,
            type=_abi.NUMS[rows.type], table=c.addressof(self.struct))
        for one in range(math.prod(batch)):
            for first, n, args.position, args.position_step in runs:
                args.rows = rows.address + (one * n_rows + first) * args.row_stride
                args.n_rows = n
                _check("rotate", lib.rope_apply(c.byref(args)) if n and n_heads else 0)
        return out.to(x.dtype) if is_torch(x) else out.astype(x.dtype, copy=False)


def _tables(n_positions: int, n_pairs: int) -> Tuple[np.ndarray, np.ndarray]:
    return (np.empty((n_positions, n_pairs), np.float32),
            np.empty((n_positions, n_pairs), np.float32))


def _copy(x: Any) -> Any:
    """A packed copy, of f32 where the kernel does not know the type."""
    if is_torch(x):
        import torch
        known = x.dtype in (torch.float32, torch.float16, torch.bfloat16)
        return x.detach().to(x.dtype if known else torch.float32, copy=True,
                             memory_format=torch.contiguous_format)
    known = np.asarray(x).dtype in (np.float32, np.float16, np.uint16)
    return np.array(x, None if known else np.float32, order="C")


def _runs(at: np.ndarray) -> Iterator[Tuple[int, int]]:
    """First index and length of each run of positions that follow each other."""
    cuts = [0, *(np.flatnonzero(np.diff(at) != 1) + 1), len(at)]
    return ((int(first), int(end - first)) for first, end in zip(cuts, cuts[1:]))


def _check(what: str, answer: int) -> None:
    if answer < 0:
        raise ValueError(f"{what}: {strerror(answer)}: see kernels.h")
