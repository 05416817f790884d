# SPDX-License-Identifier: Apache-2.0
"""What attention may see of a layer: pieces of the shared memory, and the pin on them."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np

from . import _abi
from .arrays import NUMPY_TYPES, Rows
from .errors import Error

CLASSES = {number: name for name, number in _abi.PIECE_CLASSES.items()}
TYPES = {number: name for name, number in _abi.TYPES.items()}
WINDOW_KINDS = {number: name for name, number in _abi.WINDOW_KINDS.items()}


class Hold:
    """A pin, and what shows the rows that it holds. The pin ends with the last of them, in
    whatever thread that goes."""

    __slots__ = ("attachment", "struct", "is_ended", "_shown")

    def __init__(self, attachment: Any, struct: Optional[_abi.kvw_view]) -> None:
        self.attachment, self.struct = attachment, struct
        self.is_ended = struct is None
        self._shown: Set[int] = set()  # arrays, by id: sets change in one step, counts in two

    def add(self, array: int) -> None:
        self._shown.add(array)

    def discard(self, array: int) -> None:
        self._shown.discard(array)

    @property
    def exports(self) -> int:
        """Arrays that show the rows."""
        return len(self._shown)

    def end(self) -> None:
        """End the pin; raises Overrun."""
        if not self.is_ended:
            self.is_ended = True
            self.attachment.release(self.struct)

    def __del__(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.attachment.release_later(self.struct)


class Holds:
    """Several of them as one, for an array over lanes."""

    __slots__ = ("holds",)

    def __init__(self, holds: Sequence[Hold]) -> None:
        self.holds = tuple(holds)

    def add(self, array: int) -> None:
        for hold in self.holds:
            hold.add(array)

    def discard(self, array: int) -> None:
        for hold in self.holds:
            hold.discard(array)


class _Memory:
    """The planes of a view. Its pieces refer to it, not to the view: nothing refers in a
    circle, so that a pin ends at once with the last that shows its rows."""

    __slots__ = ("hold", "struct", "names")

    def __init__(self, hold: Hold, struct: _abi.kvw_view, names: Dict[str, int]) -> None:
        self.hold, self.struct, self.names = hold, struct, names

    def plane(self, name: str) -> _abi.kvw_plane:
        try:
            return self.struct.plane[self.names[name]]
        except KeyError:
            raise KeyError(f"planes are {', '.join(self.names)}, not {name}") from None

    def rows(self, name: str, slot: int, n_rows: int) -> Rows:
        if self.hold.is_ended and self.hold.struct is not None:
            raise ValueError("the view was released")
        of = self.plane(name)
        type = TYPES[of.type]
        return Rows(of.base + slot * of.row_bytes, (n_rows, self.struct.n_heads, of.elems),
                    (of.row_bytes, of.head_bytes, NUMPY_TYPES[type].itemsize), type, True,
                    self.hold)


class Piece:
    """A run of rows that lies contiguous in memory."""

    __slots__ = ("_memory", "row", "position", "n_rows", "slot", "kind")

    def __init__(self, memory: _Memory, piece: _abi.kvw_piece) -> None:
        self._memory = memory
        self.row, self.position = piece.row, piece.position  # of the first row
        self.n_rows, self.slot = piece.n_rows, piece.slot
        self.kind = CLASSES[piece.piece_class]  # sink, kept, past, current

    def __getitem__(self, plane: str) -> Rows:
        """The rows of a plane, [rows, heads, elems], where they lie."""
        return self._memory.rows(plane, self.slot, self.n_rows)

    def __repr__(self) -> str:
        return (f"Piece({self.kind}, rows {self.row} to {self.row + self.n_rows - 1}, "
                f"position {self.position})")


class View:
    """One layer of one lane: pieces, sink first, then kept, past and current rows.

    The view and every array made from it hold a pin: a writer does not overwrite the rows
    before the last of them is gone. `with` or release() ends the pin at once, and refuses
    while arrays show the rows, so that none outlives them unnoticed. Rows of the open
    chunk change with each update; that is what they are for.
    """

    __slots__ = ("_hold", "_struct", "_memory", "_pieces", "n_rows", "n_heads", "lane",
                 "open_row", "__weakref__")

    def __init__(self, attachment: Any, struct: _abi.kvw_view, names: Dict[str, int],
                 is_held: bool = True, open_row: Optional[int] = None) -> None:
        self._hold = Hold(attachment, struct if is_held else None)
        self._struct, self._memory = struct, _Memory(self._hold, struct, names)
        self._pieces: Optional[Tuple[Piece, ...]] = None
        self.n_rows, self.n_heads, self.lane = struct.n_rows, struct.n_heads, struct.lane
        self.open_row = open_row  # where the open chunk starts; None in a committed view

    # What it is.

    @property
    def step(self) -> int:
        """The lane's step."""
        return int(self._struct.step)

    @property
    def epoch(self) -> int:
        """Condition (prompt) of the group."""
        return int(self._struct.epoch)

    @property
    def generation(self) -> int:
        """Resets of the group, counted from 1."""
        return int(self._struct.generation)

    @property
    def end_row(self) -> int:
        """One past the newest row."""
        return int(self._struct.end_row)

    @property
    def window(self) -> int:
        """Rows of the group's window, the sink included."""
        return int(self._struct.window_rows)

    @property
    def sink(self) -> int:
        """Rows of the group's sink."""
        return int(self._struct.sink_rows)

    @property
    def head_first(self) -> int:
        """The group's number of the first head here."""
        return int(self._struct.head_first)

    @property
    def window_kind(self) -> str:
        """`chunk` or `row`: which rows each query sees."""
        return WINDOW_KINDS[self._struct.window_kind]

    @property
    def pieces(self) -> Tuple[Piece, ...]:
        """Its runs of rows: sink, kept, past, current."""
        if self._pieces is None:
            n = self._struct.n_pieces
            self._pieces = tuple(Piece(self._memory, piece) for piece in self._struct.piece[:n])
        return self._pieces

    def __len__(self) -> int:
        return self.n_rows

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.pieces)

    @property
    def positions(self) -> np.ndarray:
        """The position of each row, int64."""
        return _runs([(piece.position, piece.n_rows) for piece in self.pieces])

    @property
    def rows(self) -> np.ndarray:
        """The number of each row, int64."""
        return _runs([(piece.row, piece.n_rows) for piece in self.pieces])

    @property
    def kinds(self) -> np.ndarray:
        """The class of each row, as its number in kvwheel.h (1 sink ... 4 current)."""
        return np.repeat(np.array([_abi.PIECE_CLASSES[p.kind] for p in self.pieces], np.uint8),
                         [p.n_rows for p in self.pieces])

    # Its rows.

    def __getitem__(self, plane: str) -> List[Rows]:
        """The rows of a plane, piece by piece, where they lie."""
        return [piece[plane] for piece in self.pieces]

    def _plane(self, plane: str) -> _abi.kvw_plane:
        return self._memory.plane(plane)

    def numpy(self, plane: str = "k") -> np.ndarray:
        """All rows of a plane, [rows, heads, elems]: the memory itself if they are one
        piece, else a copy (a gather), which the cache's stats count."""
        if self._struct.n_pieces == 1:
            return self.pieces[0][plane].numpy()
        of = self._plane(plane)
        out = np.empty((self.n_rows, self.n_heads, of.elems), NUMPY_TYPES[TYPES[of.type]])
        self._gather(plane, out)
        return out

    def _gather(self, plane: str, out: np.ndarray) -> None:
        at = 0
        for piece in self.pieces:
            out[at : at + piece.n_rows] = piece[plane].numpy()
            at += piece.n_rows
        self._hold.attachment.stats.count(out.nbytes)

    def tensor(self, plane: str = "k") -> Any:
        """The same as a torch tensor. (Never write to it: torch has no read-only tensors.)"""
        if self._struct.n_pieces == 1:
            return self.pieces[0][plane].torch()
        return to_torch(self.numpy(plane), TYPES[self._plane(plane).type])

    # Its end.

    def release(self) -> None:
        """End the pin. Raises BufferError while arrays show the rows, and Overrun if they
        were overwritten or taken back meanwhile. A second time is nothing."""
        if self._hold.exports > 0 and not self._hold.is_ended:
            raise BufferError(f"{self._hold.exports} arrays show rows of this view")
        self._hold.end()

    def __enter__(self) -> "View":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.release()
        elif self._hold.exports == 0:  # an error is on its way: do not hide it
            try:
                self._hold.end()
            except Error:
                pass

    def __repr__(self) -> str:
        return (f"View(layer {self._struct.layer}, lane {self.lane}, {self.n_rows} rows in "
                f"{self._struct.n_pieces} pieces, step {self.step})")


class BatchView:
    """Views of one layer in several lanes; index or iterate to get those."""

    def __init__(self, views: Sequence[View]) -> None:
        self.views = tuple(views)

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def __getitem__(self, index: int) -> View:
        return self.views[index]

    @property
    def n_rows(self) -> List[int]:
        """Rows of each lane."""
        return [view.n_rows for view in self.views]

    def _rows(self, plane: str) -> Optional[Rows]:
        """One array over all lanes, if they lie at one distance and show the same slots."""
        pieces = [view.pieces for view in self.views]
        first = pieces[0]
        if any(len(of) != 1 or of[0].slot != first[0].slot or of[0].n_rows != first[0].n_rows
               for of in pieces):
            return None
        parts = [of[0][plane] for of in pieces]
        steps = {b.address - a.address for a, b in zip(parts, parts[1:])}
        if len(steps) > 1:
            return None
        return Rows(parts[0].address, (len(parts), *parts[0].shape),
                    (steps.pop() if steps else 0, *parts[0].strides), parts[0].type, True,
                    Holds([view._hold for view in self.views]))

    def numpy(self, plane: str = "k") -> np.ndarray:
        """[lanes, rows, heads, elems]: the memory itself where that is one array, else a
        gather, which is counted. Lanes of different lengths are no array: ValueError."""
        rows = self._rows(plane)
        if rows is not None:
            return rows.numpy()
        if len(set(self.n_rows)) > 1:
            raise ValueError(f"lanes have different lengths: {self.n_rows} rows")
        view = self.views[0]
        of = view._plane(plane)
        out = np.empty((len(self.views), view.n_rows, view.n_heads, of.elems),
                       NUMPY_TYPES[TYPES[of.type]])
        for lane, view in enumerate(self.views):
            view._gather(plane, out[lane])
        return out

    def tensor(self, plane: str = "k") -> Any:
        """The same as a torch tensor."""
        rows = self._rows(plane)
        if rows is not None:
            return rows.torch()
        return to_torch(self.numpy(plane), TYPES[self.views[0]._plane(plane).type])

    def release(self) -> None:
        """End all of them; see View.release()."""
        for view in self.views:
            view.release()

    def __enter__(self) -> "BatchView":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        for view in self.views:
            view.__exit__(kind, value, trace)


def to_torch(array: np.ndarray, type: str) -> Any:
    """A torch tensor of a numpy array; bits of bf16 become bfloat16."""
    import torch
    if type == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if type == "u32":
        return torch.from_numpy(array.view(np.int32))
    return torch.from_numpy(array)


def _runs(runs: List[Tuple[int, int]]) -> np.ndarray:
    if not runs:
        return np.zeros(0, np.int64)
    return np.concatenate([np.arange(first, first + n, dtype=np.int64) for first, n in runs])


class Slots:
    """The memory of rows of the open chunk, to be written in place. `planes` has for each
    plane its runs, writable, in row order; written() says that all of them are filled."""

    def __init__(self, layer: Any, row: int, n_rows: int, struct: _abi.kvw_slots,
                 names: Dict[str, int], attachment: Any) -> None:
        self._layer, self.row, self.n_rows = layer, row, n_rows
        hold = Hold(attachment, None)
        self.planes: Dict[str, List[Rows]] = {}
        for name, number in names.items():
            of = struct.plane[number]
            type = TYPES[of.type]
            self.planes[name] = [
                Rows(of.base + piece.slot * of.row_bytes,
                     (piece.n_rows, struct.n_heads, of.elems),
                     (of.row_bytes, of.head_bytes, NUMPY_TYPES[type].itemsize), type, False,
                     hold)
                for piece in struct.piece[: struct.n_pieces]]

    def __getitem__(self, plane: str) -> List[Rows]:
        return self.planes[plane]

    def written(self) -> None:
        """The rows are filled in all planes. It is trusted."""
        self._layer.written(self.n_rows, row=self.row)
