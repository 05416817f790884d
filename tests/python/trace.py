# SPDX-License-Identifier: Apache-2.0
"""Record what the package calls of the C library, for replay.c: the same calls from C, on a
cache of its own, must show the same rows and give the same attention and the same sums of
linear attention, bit for bit.

A trace is a struct kvw_spec and records: an operation (u32), u32 fields, and bytes, each
block of them behind its length (u64); replay.c reads in the same order."""

import ctypes as c
import struct

import numpy as np
from kvwheel import _abi, families
from kvwheel._native import lib

BEGIN, UPDATE, COMMIT, ABORT, TRUNCATE, EVICT, KEEP, RESET, RESET_STATE, RESET_LAYER, GET, \
    RELEASE, ATTEND, ROTATE, LINEAR_SUMS, LINEAR_ATTEND, SUM_PAST, RUNNING, END = range(1, 20)
_NONE = 0xFFFFFFFF
_ITEM_BYTES = {1: 4, 2: 2, 3: 2, 4: 1, 5: 1, 6: 4}
_STEPS = {"truncate": TRUNCATE, "evict": EVICT, "keep": KEEP, "reset": RESET}


class Trace:
    """Records between `with`, from one cache of one rank."""

    def __init__(self, monkeypatch, path):
        self._patch, self._path = monkeypatch, path
        self._views = {}  # address of a view's struct: its number, the struct
        self._n_views = self.n_attends = self.n_sums = 0
        self._spec = None

    def __enter__(self):
        self._file = open(self._path, "wb")
        for name in ("create", "begin", "update", "commit", "abort", "reset_state",
                     "reset_layer", "get", "release", "attn_run", "linear_update",
                     "linear_use", "slots", *_STEPS):
            call = getattr(lib, name)
            record = getattr(self, f"_{name}", None) or self._step_of(_STEPS.get(name), name)
            self._patch.setattr(lib, name, self._around(call, record))
        self._patch.setattr(lib, "rope_apply", self._rotate_of(lib.rope_apply))
        layer = families.linear.LinearLayer
        self._patch.setattr(layer, "_sum", self._sum_of(layer._sum))
        self._patch.setattr(layer, "update", self._running_of(layer.update))
        return self

    def __exit__(self, *_):
        self._patch.undo()
        self._op(END)
        self._file.close()

    @staticmethod
    def _around(call, record):
        def recorded(*arguments):
            result = call(*arguments)
            if result >= 0:
                record(*arguments)
            return result
        return recorded

    def _op(self, *fields):
        self._file.write(struct.pack(f"<{len(fields)}I", *fields))

    def _bytes(self, data):
        self._file.write(struct.pack("<Q", len(data)) + data)

    def _create(self, client, spec, *_):
        assert self._spec is None, "one cache in a trace"
        self._spec = spec._obj
        self._bytes(bytes(self._spec))

    def _group_of(self, layer):
        for group in self._spec.group:
            if layer < group.n_layers:
                return group
            layer -= group.n_layers
        raise IndexError(layer)

    def _begin(self, cache, lane, items, n, begun):
        self._op(BEGIN, lane, n)
        self._bytes(bytes(items))
        self._bytes(bytes(begun))

    def _update(self, cache, lane, layer, first, n_rows, sources):
        group = self._group_of(layer.index)
        self._op(UPDATE, lane, layer.index, first, n_rows, group.n_planes)
        for plane, source in zip(group.plane, sources):
            row = plane.elems * _ITEM_BYTES[plane.type]
            self._bytes(b"".join(
                c.string_at(source.data + r * source.row_bytes + h * source.head_bytes, row)
                for r in range(n_rows) for h in range(group.n_heads)))

    def _slots(self, *_):
        raise AssertionError("a trace has rows of the planes' own types only")

    def _commit(self, cache, lane, items, n):
        self._op(COMMIT, lane, _NONE if items is None else n)
        self._bytes(bytes(items) if items is not None else b"")

    def _abort(self, cache, lane):
        self._op(ABORT, lane)

    def _step_of(self, op, name):
        def step(cache, lane, items, n):
            self._op(op, lane, n)
            self._bytes(bytes(items))
        return step

    def _reset_state(self, cache):
        self._op(RESET_STATE)

    def _reset_layer(self, cache, lane, layer):
        self._op(RESET_LAYER, lane, layer.index)

    def _get(self, cache, lane, layer, flags, view):
        view = view._obj
        self._views[c.addressof(view)] = (self._n_views, view)
        self._op(GET, self._n_views, lane, layer.index, flags, view.n_pieces)
        self._bytes(bytes(view.piece)[: view.n_pieces * c.sizeof(_abi.kvw_piece)])
        self._bytes(self._rows(view))
        self._n_views += 1

    def _rows(self, view):
        """All bytes that a view shows: plane, piece, head, row."""
        out = []
        for plane in view.plane[: view.n_planes]:
            for piece in view.piece[: view.n_pieces]:
                for head in range(view.n_heads):
                    out.append(c.string_at(
                        plane.base + piece.slot * plane.row_bytes + head * plane.head_bytes,
                        piece.n_rows * plane.row_bytes))
        return b"".join(out)

    def _release(self, cache, view):
        number, _ = self._views.pop(c.addressof(view._obj))
        self._op(RELEASE, number)

    def _attn_run(self, reference):
        args = reference._obj
        pieces = (_abi.kvw_attn_piece * args.n_pieces).from_address(args.pieces)
        self.n_attends += 1
        self._op(ATTEND, args.n_pieces)
        self._bytes(bytes(args))
        for piece in pieces:
            self._piece(args, piece)
        self._bytes(_strided(args.q, args.n_q, args.q_row_stride, args.n_q_heads,
                             args.q_head_stride, args.head_dim_k))
        self._bytes(c.string_at(args.sink_logits, 4 * args.n_q_heads)
                    if args.sink_logits else b"")
        self._rope(args.rope)
        self._bytes(_strided(args.out, args.n_q, args.out_row_stride, args.n_q_heads,
                             args.out_head_stride, args.head_dim_v))

    def _piece(self, args, piece):
        """A piece of a view by its distance from the plane's base; others by their bytes."""
        self._bytes(bytes(piece))
        if self._is_of_view(piece.k, piece.v):
            return
        self._bytes(_strided(piece.k, piece.n_rows, piece.k_row_stride, args.n_kv_heads,
                             piece.k_head_stride, args.head_dim_k))
        self._bytes(_strided(piece.v, piece.n_rows, piece.v_row_stride, args.n_kv_heads,
                             piece.v_head_stride, args.head_dim_v))

    def _is_of_view(self, first, second):
        """Whether these addresses are of rows of a view, in its first two planes: its number,
        or that of none, and how far they are from where the planes begin."""
        for number, view in self._views.values():
            at, bytes_ = first - view.plane[0].base, view.plane[0].row_bytes
            for of in view.piece[: view.n_pieces]:
                if of.slot * bytes_ <= at < (of.slot + of.n_rows) * bytes_:
                    self._op(number)
                    self._file.write(struct.pack("<QQ", at, second - view.plane[1].base))
                    return True
        self._op(_NONE)
        return False

    def _rope(self, address):
        if not address:
            self._op(0)
            return
        table = _abi.kvw_rope_table.from_address(address)
        self._op(1, table.n_positions, table.n_pairs, table.layout)
        for part in (table.cos, table.sin):
            self._bytes(c.string_at(part, table.n_positions * table.row_stride))


    # Sums of linear attention, and what turns them.

    def _rotate_of(self, call):
        def rotated(reference):
            args = reference._obj
            before = _rows_to_rotate(args)
            answer = call(reference)
            if answer == 0:
                self._op(ROTATE)
                self._bytes(bytes(args))
                self._bytes(before)
                self._rope(args.table)
                self._bytes(_rows_to_rotate(args))
            return answer
        return rotated

    def _linear_update(self, reference):
        args = reference._obj
        self._op(LINEAR_SUMS)
        self._bytes(bytes(args))
        for address in (args.k, args.k_rotated):
            self._bytes(_strided(address, args.n_rows, args.k_row_stride, args.n_heads,
                                 args.k_head_stride, args.head_dim_k))
        self._bytes(_strided(args.v, args.n_rows, args.v_row_stride, args.n_heads,
                             args.v_head_stride, args.head_dim_v))
        self._state(args, args.state)

    def _linear_use(self, reference):
        args = reference._obj
        self.n_sums += args.n_states
        self._op(LINEAR_ATTEND, args.n_states)
        self._bytes(bytes(args))
        for state in (_abi.kvw_linear_state * args.n_states).from_address(args.states):
            self._bytes(bytes(state))
            if not self._is_of_view(state.vk, state.k_sum):
                self._state(args, state)
        for address in (args.q, args.q_rotated):
            self._bytes(_strided(address, args.n_q, args.q_row_stride, args.n_heads,
                                 args.q_head_stride, args.head_dim_k))
        self._bytes(_strided(args.out, args.n_q, args.out_row_stride, args.n_heads,
                             args.out_head_stride, args.head_dim_v))

    def _state(self, args, state):
        """vk and k_sum, packed."""
        self._bytes(_strided(state.vk, args.n_heads, state.vk_head_stride, args.head_dim_v,
                             state.vk_row_stride, args.head_dim_k))
        self._bytes(_strided(state.k_sum, args.n_heads, state.k_sum_head_stride, 1, 0,
                             args.head_dim_k))

    def _sum_of(self, sum_past):
        """LinearLayer's sum of what a view shows of the past: kvw_sum_past() in C."""
        def summed(layer, view):
            sums = sum_past(layer, view)
            self.n_sums += view.n_rows
            self._op(SUM_PAST, self._views[c.addressof(view._struct)][0])
            for one in sums:
                self._bytes(one.numpy().tobytes())
            return sums
        return summed

    def _running_of(self, update):
        """The chunk's own sums; with the past's, C stores what the next UPDATE has."""
        def updated(layer, vk, k_sum, tail):
            if layer._is_running:
                self._op(RUNNING, layer._state.index, len(vk))
                for own in zip(vk, k_sum):
                    for one in own:
                        self._bytes(one.numpy().tobytes())
            update(layer, vk, k_sum, tail)
        return updated


def _rows_to_rotate(args):
    table = _abi.kvw_rope_table.from_address(args.table)
    return _strided(args.rows, args.n_rows, args.row_stride, args.n_heads, args.head_stride,
                    2 * table.n_pairs)


def _strided(address, n, row_stride, heads, head_stride, elems):
    """[n, heads, elems] of float, packed."""
    return b"".join(c.string_at(address + r * row_stride + h * head_stride, elems * 4)
                    for r in range(n) for h in range(heads))


assert np.little_endian
