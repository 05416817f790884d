# SPDX-License-Identifier: Apache-2.0
"""Linear attention by the kernels: sums of a chunk's rows, and queries to such sums."""

import ctypes as c
from typing import Any, Sequence, Tuple

import numpy as np

from . import _abi
from ._native import lib, strerror
from .arrays import Given, given, is_torch, like


def linear_sums(k: Any, v: Any, k_rotated: Any = None) -> Tuple[Any, Any]:
    """What rows [rows, heads, elems] add up to, in f32: vk [heads, elems of v, elems of k],
    of v x k_rotated (default: k), and k_sum [heads, elems of k], of k. See
    kvw_linear_update(). k are features, such as relu."""
    keys, values = (_rows(of, what) for of, what in ((k, "k"), (v, "v")))
    turned = keys if k_rotated is None else _rows(k_rotated, "k_rotated")
    n_rows, n_heads, dim_k = keys.shape
    if (turned.shape != keys.shape or turned.strides != keys.strides
            or values.shape[:2] != keys.shape[:2]):
        raise ValueError(f"need k and k_rotated alike, and v of as many rows and heads, have "
                         f"{keys.shape}, {turned.shape} and {values.shape}")
    vk = np.empty((n_heads, values.shape[2], dim_k), np.float32)
    k_sum = np.empty((n_heads, dim_k), np.float32)
    args = _abi.kvw_linear_update_args(
        keys.address, turned.address, values.address, *keys.strides[:2], *values.strides[:2],
        n_rows, n_heads, dim_k, values.shape[2], 0, _state(given(vk, "vk"), given(k_sum, "k_sum")))
    _check("linear_sums", lib.linear_update(c.byref(args)))
    return like(vk, k), like(k_sum, k)


def linear_attention(q: Any, states: Sequence[Tuple[Any, Any]], q_rotated: Any = None,
                     eps: float = 1e-8) -> Any:
    """Attend from queries [queries, heads, elems] to the sum of `states`, each (vk, k_sum) as
    linear_sums() gives them, read where they lie. [queries, heads, elems of v], f32. See
    kvw_linear_use()."""
    if not states:
        raise ValueError("states: need one or more")
    queries = _rows(q, "q")
    turned = queries if q_rotated is None else _rows(q_rotated, "q_rotated")
    n_q, n_heads, dim_k = queries.shape
    sums = [(given(vk, "vk"), given(k_sum, "k_sum")) for vk, k_sum in states]
    dim_v = sums[0][0].shape[-2]
    for vk, k_sum in sums:
        if (vk.type != "f32" or k_sum.type != "f32" or vk.shape != (n_heads, dim_v, dim_k)
                or k_sum.shape != (n_heads, dim_k)):
            raise ValueError(f"states: need f32 of {(n_heads, dim_v, dim_k)} and "
                             f"{(n_heads, dim_k)}, have {vk.type} of {vk.shape} and "
                             f"{k_sum.type} of {k_sum.shape}")
    if turned.shape != queries.shape or turned.strides != queries.strides:
        raise ValueError(f"need q and q_rotated alike, have {queries.shape} and {turned.shape}")
    structs = (_abi.kvw_linear_state * len(sums))(*(_state(*of) for of in sums))
    out = np.empty((n_q, n_heads, dim_v), np.float32)
    args = _abi.kvw_linear_use_args(
        queries.address, turned.address, *queries.strides[:2], c.addressof(structs), len(sums),
        n_q, n_heads, dim_k, dim_v, eps, out.ctypes.data, *out.strides[:2])
    _check("linear_attention", lib.linear_use(c.byref(args)))
    return like(out, q)


def _rows(value: Any, what: str) -> Given:
    """f32 rows, packed."""
    packed = (value.detach().float().contiguous() if is_torch(value)
              else np.ascontiguousarray(value, np.float32))
    rows = given(packed, what)
    if len(rows.shape) != 3:
        raise ValueError(f"{what}: need [rows, heads, elems], have {list(rows.shape)}")
    return rows


def _state(vk: Given, k_sum: Given) -> _abi.kvw_linear_state:
    return _abi.kvw_linear_state(vk.address, k_sum.address, *vk.strides[:2], k_sum.strides[0])


def _check(what: str, answer: int) -> None:
    if answer < 0:
        raise ValueError(f"{what}: {strerror(answer)}: see kernels.h")
