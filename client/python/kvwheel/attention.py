# SPDX-License-Identifier: Apache-2.0
"""Attention over the pieces of a view where they lie."""

import ctypes as c
import math
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _abi
from ._native import lib, strerror
from .arrays import NUMPY_TYPES, Given, given, is_torch, like
from .rope import Rope
from .view import TYPES, BatchView, View


class _Call(NamedTuple):
    """What is the same for every lane."""

    scale: Optional[float]
    mask: Optional[str]
    q_row: Optional[int]
    softcap: float
    sink_logits: Optional[np.ndarray]
    bias: Mapping[str, float]
    rope: Optional[Rope]
    threads: int


def attention(q: Any, view: Union[View, BatchView], *, also: Optional[Tuple[Any, Any]] = None,
              scale: Optional[float] = None, mask: Optional[str] = None,
              q_row: Optional[int] = None, softcap: float = 0.0, sink_logits: Any = None,
              bias: Optional[Mapping[str, float]] = None, rope: Optional[Rope] = None,
              threads: int = 1, lse: bool = False) -> Any:
    """Attend from queries to the rows of a view, in place: see kvw_attn_run().

    q: [queries, heads, head_dim], or [batch, queries, heads, head_dim]. A batch goes with a
        view of one lane (all attend to it), of as many lanes, or of N where the batch is a
        multiple of N (each lane serves batch / N queries in a row).
    also: keys and values [rows, heads, elems] that are attended to besides, after those of
        the view, and stored nowhere; with a batch if q has one. The view may be empty.
    mask: none, causal or block_causal (every query sees the open chunk). Default: by the
        window kind: `chunk` none, `row` causal.
    q_row: row of the first query; default: the queries are the newest rows.
    bias: added to the scores of the rows of a class: {"past": -1.2}.
    rope: keys are stored unrotated: rotate them on read by their positions. (q is the
        caller's to rotate.)
    sink_logits: [heads], in the denominator only. scale: default 1 / sqrt(head_dim).

    Returns an array like q, [..., queries, heads, elems of v], computed in f32; with `lse`
    also the logarithms of the denominators, f32 [..., queries, heads]."""
    views = view.views if isinstance(view, BatchView) else (view,)
    call = _Call(scale, mask, q_row, softcap,
                 None if sink_logits is None
                 else np.ascontiguousarray(_numpy32(sink_logits)), bias or {}, rope, threads)
    queries = _numpy32(q)
    is_batch = queries.ndim == 4
    if queries.ndim not in (3, 4):
        raise ValueError(f"q: need 3 or 4 dimensions, have {queries.ndim}")
    if not is_batch:
        queries = queries[None]
    if len(queries) % len(views):
        raise ValueError(f"batch: need 1, {len(views)} or a multiple of it (lanes of the "
                         f"view), have {len(queries)}")
    repeat = len(queries) // len(views)
    extra = None if also is None else _extra(also, len(queries), views[0])
    results = [_one(queries[i], views[i // repeat], extra[i] if extra else None, call)
               for i in range(len(queries))]
    outs, logs = [np.stack(part) for part in zip(*results)]
    if not is_batch:
        outs, logs = outs[0], logs[0]
    out = _like(outs, q)
    return (out, like(logs, q)) if lse else out


def _numpy32(value: Any) -> np.ndarray:
    if is_torch(value):
        value = value.detach().float().numpy()
    array = np.asarray(value, np.float32)
    return array if array.ndim == 0 or array.strides[-1] == 4 else np.ascontiguousarray(array)


def _like(array: np.ndarray, q: Any) -> Any:
    """Of q's kind and type."""
    result, dtype = like(array, q), getattr(q, "dtype", np.dtype(np.float32))
    return result.to(dtype) if is_torch(q) else result.astype(dtype, copy=False)


class _Beside(NamedTuple):
    """Rows of the caller's, in the type of the cache; scales of int8, [rows, heads]."""

    rows: Given
    scales: Optional[np.ndarray]


def _extra(also: Tuple[Any, Any], n_batch: int, view: View) -> List[Tuple[_Beside, _Beside]]:
    """Keys and values of each query's own."""
    parts = []
    for value, plane in zip(also, ("k", "v")):
        type = TYPES[view._plane(plane).type]
        array = given(value, plane, type)
        if len(array.shape) != 4:
            parts.append([_beside(array, type)] * n_batch)
        elif array.shape[0] == n_batch:
            parts.append([_beside(array.lane(i), type) for i in range(n_batch)])
        else:
            raise ValueError(f"also: need a batch of {n_batch}, have {array.shape[0]}")
    return list(zip(parts[0], parts[1]))


def _beside(array: Given, type: str) -> _Beside:
    if len(array.shape) != 3:
        raise ValueError(f"also: need [rows, heads, elems], have {list(array.shape)}")
    if array.type == type != "i8":
        return _Beside(array, None)
    out = np.empty(array.shape, NUMPY_TYPES[type])
    scales = np.empty(array.shape[:2], np.float32) if type == "i8" else None
    args = _abi.kvw_convert_args(
        array.address, *array.strides[:2], out.ctypes.data, *out.strides[:2], *array.shape,
        _abi.NUMS.get(array.type, 99), _abi.NUMS.get(type, 99))
    if scales is not None:
        args.scales = scales.ctypes.data
        args.scales_row_stride, args.scales_head_stride = scales.strides
    if array.shape[0] and lib.rows_convert(c.byref(args)) < 0:
        raise ValueError(f"also: rows of type {array.type} cannot become {type}")
    return _Beside(Given(out.ctypes.data, out.shape, out.strides, type, out), scales)


def _pieces(view: View, call: _Call, extra: Optional[Tuple[_Beside, _Beside]], is_masked: bool
            ) -> Tuple[Any, int]:
    """The kernel's pieces. Where a contiguous group shows past and current rows as one, it
    is cut if their biases differ: the cut costs nothing, rows stay where they are."""
    k, v = view._plane("k"), view._plane("v")
    scales = ((view._plane("k_scale"), view._plane("v_scale")) if TYPES[k.type] == "i8"
              else None)
    runs: List[Tuple[int, int, int, int, str]] = []  # row, position, slot, n, kind
    cut = view.open_row
    for piece in view.pieces:
        run = (piece.row, piece.position, piece.slot, piece.n_rows, piece.kind)
        n = 0 if cut is None else cut - piece.row
        if (piece.kind == "past" and cut is not None and n < piece.n_rows
                and call.bias.get("past", 0.0) != call.bias.get("current", 0.0)):
            runs.append((*run[:3], n, "past"))
            run = (run[0] + n, run[1] + n, run[2] + n, run[3] - n, "current")
        runs.append(run)
    pieces = (_abi.kvw_attn_piece * (len(runs) + (extra is not None)))()
    for to, (row, position, slot, n, kind) in zip(pieces, runs):
        to.k, to.v = k.base + slot * k.row_bytes, v.base + slot * v.row_bytes
        to.k_row_stride, to.k_head_stride = k.row_bytes, k.head_bytes
        to.v_row_stride, to.v_head_stride = v.row_bytes, v.head_bytes
        to.n_rows, to.first_row, to.pos_base = n, row, position
        if scales is not None:
            of_k, of_v = scales
            to.k_scales = of_k.base + slot * of_k.row_bytes
            to.v_scales = of_v.base + slot * of_v.row_bytes
            to.k_scales_row_stride, to.k_scales_head_stride = of_k.row_bytes, of_k.head_bytes
            to.v_scales_row_stride, to.v_scales_head_stride = of_v.row_bytes, of_v.head_bytes
        to.bias = call.bias.get(kind, 0.0)
        to.flags = ((_abi.ATTN_ALWAYS if kind == "kept" and is_masked else 0)
                    | (_abi.ATTN_RAW_KEYS if call.rope is not None else 0))
    if extra is not None:
        _fill_extra(pieces[len(runs)], *extra)
        pieces[len(runs)].flags = _abi.ATTN_ALWAYS if is_masked else 0
    return pieces, len(pieces)


def _fill_extra(to: _abi.kvw_attn_piece, k: _Beside, v: _Beside) -> None:
    if k.rows.shape[0] != v.rows.shape[0]:
        raise ValueError(f"also: {k.rows.shape[0]} keys, {v.rows.shape[0]} values")
    to.k, to.v, to.n_rows = k.rows.address, v.rows.address, k.rows.shape[0]
    to.k_row_stride, to.k_head_stride = k.rows.strides[:2]
    to.v_row_stride, to.v_head_stride = v.rows.strides[:2]
    if k.scales is not None and v.scales is not None:
        to.k_scales, to.v_scales = k.scales.ctypes.data, v.scales.ctypes.data
        to.k_scales_row_stride, to.k_scales_head_stride = k.scales.strides
        to.v_scales_row_stride, to.v_scales_head_stride = v.scales.strides


def _one(q: np.ndarray, view: View, extra: Optional[Tuple[_Beside, _Beside]], call: _Call
         ) -> Tuple[np.ndarray, np.ndarray]:
    if view._hold.is_ended and view._hold.struct is not None:
        raise ValueError("the view was released")
    n_q, n_q_heads, head_dim = q.shape
    k, v = view._plane("k"), view._plane("v")
    if head_dim != k.elems or n_q_heads % view.n_heads:
        raise ValueError(f"q: need heads a multiple of {view.n_heads} and head_dim {k.elems}, "
                         f"have {n_q_heads} and {head_dim}")
    if k.type != v.type or TYPES[k.type] not in _abi.NUMS:
        raise ValueError(f"attention takes k and v of {', '.join(_abi.NUMS)}, not of "
                         f"{TYPES[k.type]} and {TYPES[v.type]}")
    mask = call.mask or ("causal" if view.window_kind == "row" else "none")
    pieces, n_pieces = _pieces(view, call, extra, mask != "none")
    out = np.empty((n_q, n_q_heads, v.elems), np.float32)
    log = np.empty((n_q, n_q_heads), np.float32)
    args = _abi.kvw_attn_args(
        q=q.ctypes.data, q_row_stride=q.strides[0], q_head_stride=q.strides[1], n_q=n_q,
        n_q_heads=n_q_heads, n_kv_heads=view.n_heads, head_dim_k=head_dim, head_dim_v=v.elems,
        kv_type=_abi.NUMS[TYPES[k.type]], pieces=c.addressof(pieces), n_pieces=n_pieces,
        mask=_abi.ATTN_MASKS[mask], scale=call.scale or 1.0 / math.sqrt(head_dim),
        softcap=call.softcap, out=out.ctypes.data, out_row_stride=out.strides[0],
        out_head_stride=out.strides[1], lse=log.ctypes.data, lse_row_stride=log.strides[0],
        lse_head_stride=log.strides[1], n_threads=call.threads)
    if mask != "none":
        args.q_first_row = view.end_row - n_q if call.q_row is None else call.q_row
        if mask == "block_causal":
            args.block_rows, args.block_first_row = n_q, args.q_first_row
        if view.window_kind == "row":
            args.window_rows, args.sink_rows = view.window, view.sink
    if call.sink_logits is not None:
        if call.sink_logits.shape != (n_q_heads,):
            raise ValueError(f"sink_logits: need [{n_q_heads}], have "
                             f"{list(call.sink_logits.shape)}")
        args.sink_logits = call.sink_logits.ctypes.data
    if call.rope is not None:
        args.rope = c.addressof(call.rope.struct)
    answer = lib.attn_run(c.byref(args))
    if answer < 0:
        raise ValueError(f"attention: {strerror(answer)}: see kvw_attn_run() in kernels.h "
                         f"({n_q} queries, {view!r}, mask {mask}"
                         + (f", {call.rope.n_positions} positions in the tables)"
                            if call.rope else ")"))
    return out, log
