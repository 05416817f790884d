# SPDX-License-Identifier: Apache-2.0
"""One layer of a cache: update, get, reset."""

import ctypes as c
from typing import Any, List, Optional, Sequence, Tuple

from . import _abi
from ._native import check, lib
from .arrays import NUMPY_TYPES, Given, given
from .core import Core, GroupInfo
from .view import BatchView, Slots, View


class Layer:
    """One layer in one or more lanes: update, get, reset. From cache[layer] (all lanes of
    this rank), cache[group, layer], or lane[layer].

    Arrays are [rows, heads, elems], heads those of this rank; over several lanes
    [lanes, rows, heads, elems]."""

    def __init__(self, core: Core, info: GroupInfo, index: int,
                 lanes: Sequence[int]) -> None:
        self._core, self._info, self.lanes = core, info, tuple(lanes)
        self.index = index  # in all layers of the cache
        self._layer = _abi.kvw_layer(index)
        self._at = core.attachment

    @property
    def group(self) -> str:
        """The name of its group."""
        return self._info.name

    def update(self, *planes: Any, row: int = 0) -> bool:
        """Write rows of the open chunk, one array for each plane of the group (k, v), from
        row `row` of the chunk on; any number of times, each pass overwrites the last. Rows
        of another type than the plane's are converted on the way; of a group with planes of
        i8 and their scales, give k and v: they are quantised.

        Opens a chunk of that many rows if none is open (see RollingKVCache.begin()).
        Lanes whose mode is not `write` are passed over. True if anything was stored."""
        info = self._info
        # Of which planes there are arrays: those that are scales may be made on the way.
        of = (range(len(info.types)) if len(planes) == len(info.types) else info.without_scales)
        if len(planes) != len(of):
            raise ValueError(f"group {info.name}: need {', '.join(info.plane_names)}, "
                             f"have {len(planes)} arrays")
        arrays = [given(value, info.planes[number].name, info.types[number])
                  for value, number in zip(planes, of)]
        n_rows = self._check_shapes(arrays, of)
        is_batch = len(arrays[0].shape) == 4
        stored = False
        with self._at.client.lock:
            for number, lane in enumerate(self.lanes):
                if self._core.modes[lane] == "write":
                    self._core.open_for(info, lane, row + n_rows)
                    self._write(lane, row, n_rows,
                                [array.lane(number) for array in arrays] if is_batch else arrays, of)
                    stored = True
        return stored

    def _check_shapes(self, arrays: List[Given], of: Sequence[int]) -> int:
        info, n_lanes = self._info, len(self.lanes)
        shape = arrays[0].shape
        n_rows = shape[-3] if len(shape) >= 3 else -1
        for array, number in zip(arrays, of):
            elems, name = info.elems[number], info.planes[number].name
            want: Tuple[int, ...] = (n_rows, info.n_heads, elems)
            if n_lanes > 1 or len(array.shape) == 4:
                want = (n_lanes, *want)
            if array.shape != want:
                raise ValueError(
                    f"group {info.name}, {name}: need "
                    f"[{'lanes, ' if len(want) == 4 else ''}rows, heads, elems] = "
                    f"{list(want[:-3]) + ['n'] + list(want[-2:])}, have {list(array.shape)}")
        return n_rows

    def _write(self, lane: int, row: int, n_rows: int, arrays: List[Given],
               of: Sequence[int]) -> None:
        info, handle = self._info, self._at.live()
        if len(of) == len(info.types) and all(array.type == type for array, type in zip(arrays, info.types)):
            sources = info.sources()
            for source, array in zip(sources, arrays):
                source.data = array.address
                source.row_bytes, source.head_bytes = array.strides[0], array.strides[1]
            check(lib.update(handle, lane, self._layer, row, n_rows, sources))
            return
        slots = _abi.kvw_slots()
        check(lib.slots(handle, lane, self._layer, row, n_rows, c.byref(slots)))
        for number, array in zip(of, arrays):
            self._convert(slots, number, array, len(of) < len(info.types))
        check(lib.written(handle, lane, self._layer, row, n_rows))

    def _convert(self, slots: _abi.kvw_slots, number: int, array: Given,
                 is_scaled: bool) -> None:
        plane, at = slots.plane[number], 0
        scales = slots.plane[number + 1] if is_scaled else None
        for piece in slots.piece[: slots.n_pieces]:
            args = _abi.kvw_convert_args(
                array.address + at * array.strides[0], array.strides[0], array.strides[1],
                plane.base + piece.slot * plane.row_bytes, plane.row_bytes, plane.head_bytes,
                piece.n_rows, slots.n_heads, plane.elems,
                _abi.NUMS.get(array.type, 99), _abi.NUMS.get(self._info.types[number], 99))
            if scales is not None:
                args.scales = scales.base + piece.slot * scales.row_bytes
                args.scales_row_stride = scales.row_bytes
                args.scales_head_stride = scales.head_bytes
            if lib.rows_convert(c.byref(args)) < 0:
                raise ValueError(f"group {self.group}, {self._info.planes[number].name}: rows "
                                 f"are {self._info.types[number]}, {array.type} cannot become it")
            at += piece.n_rows
        self._at.stats.conversions += 1
        self._at.stats.conversion_bytes += (
            at * slots.n_heads * plane.elems * NUMPY_TYPES[self._info.types[number]].itemsize)

    def slots(self, n_rows: int, row: int = 0) -> Slots:
        """The memory of rows of the open chunk, to write it in place of update()."""
        lane, slots = self._one_lane("slots"), _abi.kvw_slots()
        with self._at.client.lock:
            self._core.open_for(self._info, lane, row + n_rows)
            check(lib.slots(self._at.live(), lane, self._layer, row, n_rows, c.byref(slots)))
        return Slots(self, row, n_rows, slots, self._info.plane_names, self._at)

    def written(self, n_rows: int, row: int = 0) -> None:
        """Say that rows of the open chunk are written in all planes. It is trusted."""
        lane = self._one_lane("written")
        with self._at.client.lock:
            check(lib.written(self._at.live(), lane, self._layer, row, n_rows))

    def _one_lane(self, call: str) -> int:
        if len(self.lanes) != 1:
            raise ValueError(f"{call}: need one lane, have {len(self.lanes)}: use lane(i)[layer]")
        return self.lanes[0]

    def get(self, staged: Optional[bool] = None, pinned: bool = True) -> Any:
        """What attention may see: a View, or over several lanes a BatchView of them.

        `staged`: with the rows of the open chunk that this layer has so far (default: if a
        chunk is open; always False in mode `read`; a reader's default is False, and True
        shows it what all ranks have written). Mode `skip` gives no rows. `pinned`:
        hold the rows; False: release() is the whole protection."""
        views = [self._get(lane, staged, pinned) for lane in self.lanes]
        return views[0] if len(views) == 1 else BatchView(views)

    def _get(self, lane: int, staged: Optional[bool], pinned: bool) -> View:
        core, info = self._core, self._info
        struct = _abi.kvw_view()
        mode = core.modes[lane]
        if mode == "skip":
            return self._nothing(lane, struct)
        if staged is None:
            staged = mode == "write" and core.open[lane].get(info.index, 0) > 0
        flags = (_abi.STAGED if staged else 0) | (0 if pinned else _abi.UNPINNED)
        with self._at.client.lock:
            check(lib.get(self._at.live(), lane, self._layer, flags, c.byref(struct)))
            self._at.held()
        return View(self._at, struct, info.plane_names,
                    open_row=core.open_row[lane].get(info.index) if staged else None)

    def cut(self, ranks: int = 0, staged: bool = False, pinned: bool = True) -> View:
        """A view over a set of ranks (bit r: rank r; 0: all that hold the layer) at the
        newest step that all of them have. `staged`: and the rows of the open chunk that all
        of them have written; see kvw_cut() and wait_written()."""
        lane, struct = self._one_lane("cut"), _abi.kvw_view()
        flags = (_abi.STAGED if staged else 0) | (0 if pinned else _abi.UNPINNED)
        with self._at.client.lock:
            check(lib.cut(self._at.live(), lane, self._layer, ranks, flags, c.byref(struct)))
            self._at.held()
        return View(self._at, struct, self._info.plane_names)

    def wait_written(self, count: int, rank: int = _abi.ALL_RANKS,
                     timeout: Optional[float] = None) -> None:
        """Wait until a rank (default: every other one) has written the layer `count` times
        in the open chunk: before a staged cut(). A pass is one update()."""
        lane = self._one_lane("wait_written")
        self._core.wait(lane, rank, timeout, lambda ns: lib.wait_written(
            self._at.live(), lane, rank, self._layer, count, ns))

    def have_read(self, count: int) -> None:
        """Say that this rank has read what it needs of that pass, on all ranks."""
        lane = self._one_lane("have_read")
        with self._at.client.lock:
            check(lib.have_read(self._at.live(), lane, self._layer, count))

    def wait_read(self, count: int, rank: int = _abi.ALL_RANKS,
                  timeout: Optional[float] = None) -> None:
        """Wait until a rank (default: every other one) has said so."""
        lane = self._one_lane("wait_read")
        self._core.wait(lane, rank, timeout, lambda ns: lib.wait_read(
            self._at.live(), lane, rank, self._layer, count, ns))

    def _nothing(self, lane: int, struct: _abi.kvw_view) -> View:
        group = self._info.group
        struct.lane, struct.layer, struct.n_heads = lane, self.index, self._info.n_heads
        struct.window_rows, struct.sink_rows = group.window, group.sink
        struct.window_kind = _abi.WINDOW_KINDS[group.window_kind]
        struct.n_planes = len(group.planes)
        for to, plane in zip(struct.plane, group.planes):
            to.elems, to.type = plane.elems, _abi.TYPES[plane.type]
        return View(self._at, struct, self._info.plane_names, is_held=False)

    def reset(self) -> None:
        """Show only rows that are committed from now on."""
        with self._at.client.lock:
            for lane in self.lanes:
                check(lib.reset_layer(self._at.live(), lane, self._layer))
