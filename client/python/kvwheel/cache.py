# SPDX-License-Identifier: Apache-2.0
"""RollingKVCache: groups of layers, for lanes; a layer has update, get and reset."""

import copy
import ctypes as c
import itertools
import os
from os import PathLike
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._native import check, lib, nanoseconds
from .client import Attachment, Client, Stats, connect
from .core import Begun, Core, Counts, Epochs, Groups, LaneState
from .layer import Layer
from .spec import Spec

READER = _abi.READER
MODES = ("write", "read", "skip")
_numbers = itertools.count()


class _Lanes:
    """Steps of one or more lanes, one after the other."""

    lanes: Tuple[int, ...]

    def __init__(self, core: Core, lanes: Tuple[int, ...]) -> None:
        self._core, self.lanes = core, lanes
        self._layers: Dict[Any, Layer] = {}

    def __getitem__(self, key: Union[int, Tuple[str, int]]) -> Layer:
        """cache[layer]: the layer of the first group that has this layer of the model;
        cache[group, layer]: that of the named group."""
        layer = self._layers.get(key)
        if layer is None:
            layer = self._layers[key] = Layer(self._core, *self._core.layer(key), self.lanes)
        return layer

    def begin(self, rows: Counts, epoch: Epochs = None) -> Dict[str, Begun]:
        """Open the chunks that the next step adds, and learn their positions and what is
        evicted, before anything is rotated or written.

        rows: {group: n}, the groups of this step and their rows, all of which commit wants
        written. Or a number: n rows in the groups that roll, all that still fits in those
        that fill up (`refuse`); commit publishes what was written then. update() does the
        latter by itself where nothing is open.
        epoch: the condition (prompt) that is published with the step; of all its groups, or
        {group: epoch}.
        Several lanes begin the same; the answer is that of the first."""
        answers = [self._core.begin(lane, rows, epoch) for lane in self.lanes]
        return answers[0]

    def commit(self, rows: Optional[Counts] = None) -> None:
        """Publish the open chunks: all groups and layers of this rank at once, lane by
        lane. rows: fewer than were begun ({group: n} or n), the rest is forgotten."""
        for lane in self.lanes:
            self._core.commit(lane, rows)

    def abort(self) -> None:
        """Forget the open chunks."""
        with self._core.lock:
            for lane in self.lanes:
                check(lib.abort(self._core.handle(), lane))
                self._core.closed(lane)

    def truncate(self, row: Counts, groups: Groups = None, epoch: Epochs = None) -> None:
        """Drop committed rows from `row` on (of each group: {name: row})."""
        self._core.step(lib.truncate, self.lanes, self._core.counts(row, groups), epoch)

    def evict(self, row: Counts, groups: Groups = None, epoch: Epochs = None) -> None:
        """Hide the rows between the sink and `row`."""
        self._core.step(lib.evict, self.lanes, self._core.counts(row, groups), epoch)

    def keep(self, row: int, n: int, group: Groups = None, epoch: Epochs = None) -> None:
        """Keep rows [row, row + n) of the window (of the first group, or of those named) as
        an extra sink; n = 0 drops the kept range that starts there."""
        names = self._core.names(group if group is not None else self._core.infos[0].name)
        self._core.step(lib.keep, self.lanes, dict.fromkeys(names, row), epoch, n)

    def reset(self, groups: Groups = None, epoch: Epochs = None) -> None:
        """Start groups (default: all) from row 0 with a new generation."""
        names = self._core.names(groups)
        self._core.step(lib.reset, self.lanes, dict.fromkeys(names, 0), epoch)

    def set_mode(self, mode: str) -> None:
        """What passes do with the lane: `write` stores and shows the open chunk; `read`
        shows what is committed and stores nothing; `skip` shows nothing and stores nothing.
        """
        if mode not in MODES:
            raise ValueError(f"mode: need one of {', '.join(MODES)}, have {mode!r}")
        for lane in self.lanes:
            self._core.modes[lane] = mode


class Lane(_Lanes):
    """One lane: an independent sequence, a sample or a branch of guidance."""

    def __init__(self, core: Core, lane: int) -> None:
        super().__init__(core, (lane,))
        self.number = lane

    @property
    def mode(self) -> str:
        """What set_mode() said last: write, read or skip."""
        return self._core.modes[self.number]

    def state(self, rank: Optional[int] = None) -> LaneState:
        """The lane as a rank published it last (default: this rank; a reader: the newest
        step that all ranks have)."""
        return self._core.state(self.number, rank)

    def rows(self, group: Optional[str] = None) -> int:
        """Rows committed in a group (default: the first)."""
        groups = self.state().groups
        return groups[group if group is not None else next(iter(groups))].rows

    def lowest(self, group: Optional[str] = None) -> int:
        """The lowest row to which truncate() can go now."""
        row = c.c_uint64()
        info = self._core.group(group)
        with self._core.lock:
            check(lib.lowest(self._core.handle(), self.number, info.index, c.byref(row)))
        return row.value

    def wait_step(self, step: int, rank: int = _abi.ALL_RANKS,
                  timeout: Optional[float] = None) -> None:
        """Wait until a rank (default: every rank that holds the lane) published `step`."""
        self._core.wait(self.number, rank, timeout, lambda ns: lib.wait_step(
            self._core.handle(), self.number, rank, step, ns))

    def wait_rows(self, rows: int, group: Optional[str] = None, rank: int = _abi.ALL_RANKS,
                  timeout: Optional[float] = None) -> None:
        """The same until `rows` rows of a group are committed."""
        index = self._core.group(group).index
        self._core.wait(self.number, rank, timeout, lambda ns: lib.wait_rows(
            self._core.handle(), self.number, rank, index, rows, ns))

    def recover(self, timeout: Optional[float] = 30.0) -> int:
        """Bring all ranks back to the smallest step that all have; every rank calls it."""
        step = c.c_uint64()
        with self._core.lock:
            check(lib.recover(self._core.handle(), self.number, nanoseconds(timeout),
                              c.byref(step)))
            self._core.closed(self.number)
        return step.value


class RollingKVCache(_Lanes):
    """An attachment to a cache, which is created if it is not there.

    preset, config, spec: what the cache is, one of them: the name of a model
    (Spec.presets()), the path of a config.json, or a Spec. None: attach to `name`.
    name: of the cache; default: one of this process's own.
    rank: which part this process is; READER: only look.
    client: default, a connection of its own to the user's daemon.
    lanes, ranks (heads are split), dtype (of config), context (rows of full-attention
    layers), contiguous (past and current rows are one piece; or the names of the groups),
    lifetime (job, ttl, keep), ttl (seconds): changes to what preset and config say.
    pin_policy: what a writer does when a reader's pin is in the way (wait, answer, revoke).
    timeout: seconds of begin and other steps.
    owner_timeout: seconds to wait for the end of a process that holds the rank (None: until
    it ends), as after a job was killed. Busy if it is held then still; default 0: at once.

    Calls on the cache go to all lanes of this rank; lane(i) is one of them.
    """

    def __init__(self, *, preset: Optional[str] = None,
                 config: Union[None, str, "PathLike[str]"] = None, spec: Optional[Spec] = None,
                 name: Optional[str] = None, rank: int = 0, client: Optional[Client] = None,
                 lanes: Optional[int] = None, ranks: Optional[int] = None,
                 dtype: Optional[str] = None, context: int = 0,
                 contiguous: Union[None, bool, Sequence[str]] = None,
                 lifetime: Optional[str] = None, ttl: Optional[int] = None,
                 pin_policy: str = "wait", timeout: Optional[float] = 30.0,
                 spin_us: int = 30, owner_timeout: Optional[float] = 0.0) -> None:
        if sum(one is not None for one in (preset, config, spec)) > 1:
            raise ValueError("need one of preset, config and spec")
        if preset is not None:
            spec = Spec.preset(preset, context)
        elif config is not None:
            spec = Spec.config(config, dtype, context)
        elif spec is None and name is None:
            raise ValueError("need preset, config or spec, or the name of a cache")
        self._client = client if client is not None else connect()
        if spec is not None:
            spec = _changed(spec, name or (_own_name(spec.name) if preset or config else None),
                            lanes, ranks, dtype, contiguous, lifetime, ttl)
            self.is_new = self._client.create(spec)
            name = spec.name
        else:
            self.is_new = False
        assert name is not None
        attachment = Attachment(self._client, name, rank, pin_policy, timeout, spin_us,
                                owner_timeout)
        core = Core(attachment, rank)
        super().__init__(core, core.lanes())
        self.name, self.rank, self.spec = name, rank, core.spec

    @classmethod
    def attach(cls, name: str, *, rank: int = READER, **options: Any) -> "RollingKVCache":
        """Attach to a cache that is there, by default as a reader."""
        return cls(name=name, rank=rank, **options)

    @property
    def stats(self) -> Stats:
        """Gathers and conversions so far."""
        return self._core.attachment.stats

    @property
    def client(self) -> Client:
        """The connection that it goes by."""
        return self._client

    def lane(self, number: int) -> Lane:
        """One lane."""
        if not 0 <= number < self.spec.lanes:
            raise IndexError(f"lane: need 0 to {self.spec.lanes - 1}, have {number}")
        return Lane(self._core, number)

    def heads(self, group: Optional[str] = None) -> int:
        """KV heads of a group (default: the first) that this rank holds."""
        return self._core.group(group).n_heads

    def __len__(self) -> int:
        """Layers of the model."""
        return len({layer for group in self.spec.groups for layer in group.model_layers})

    def __iter__(self) -> Iterator[Layer]:
        for layer in sorted({n for group in self.spec.groups for n in group.model_layers}):
            yield self[layer]

    def reset_state(self) -> None:
        """Start all groups of all lanes of this rank from row 0, and modes from `write`."""
        with self._core.lock:
            check(lib.reset_state(self._core.handle()))
            for lane in self._core.modes:
                self._core.modes[lane] = "write"
                self._core.closed(lane)

    def verify(self) -> List[str]:
        """Check all of the cache, its rows too if it has checksums (Spec.checksums): what is
        wrong, in words; [] if nothing is. It may be in use; it reads every visible row."""
        damages: List[str] = []
        tell = _abi.kvw_damage_fn(
            lambda _, damage: damages.append(damage.contents.text.decode(errors="replace")))
        with self._core.lock:
            check(lib.verify(self._core.handle(), tell, None, None))
        return damages

    def bind_self(self) -> int:
        """Bind this thread to the CPUs of the NUMA node on which this rank's part is to lie,
        of those that it may run on: how many; 0 if it was left as it was."""
        with self._core.lock:
            return check(lib.bind_self(self._core.handle()))

    # Its end.

    def close(self) -> None:
        """Detach. Raises BufferError while views, or arrays made of them, are held."""
        self._core.attachment.detach()

    def __enter__(self) -> "RollingKVCache":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.close()

    def __repr__(self) -> str:
        rank = "READER" if self.rank == READER else self.rank
        return f"RollingKVCache({self.name!r}, rank {rank})"


def _own_name(of: str) -> str:
    return f"{of[:40]}-{os.getpid()}-{next(_numbers)}"


def _changed(spec: Spec, name: Optional[str], lanes: Optional[int], ranks: Optional[int],
             dtype: Optional[str], contiguous: Union[None, bool, Sequence[str]],
             lifetime: Optional[str], ttl: Optional[int]) -> Spec:
    """A copy of the spec with what the caller wants otherwise."""
    spec = copy.deepcopy(spec)
    spec.name = name or spec.name
    spec.lanes = lanes or spec.lanes
    if ranks is not None:
        spec.head_parts, spec.layer_parts, spec.lane_parts, spec.row_parts = ranks, 1, 1, 1
    for group in spec.groups:
        if contiguous is not None:
            group.contiguous = (contiguous if isinstance(contiguous, bool)
                                else group.name in contiguous)
        for plane in group.planes:
            if dtype is not None and plane.type in ("f32", "bf16", "f16"):
                plane.type = dtype
    if ttl is not None:
        spec.lifetime, spec.ttl_seconds = "ttl", ttl
    if lifetime is not None:
        spec.lifetime = lifetime
    return spec
