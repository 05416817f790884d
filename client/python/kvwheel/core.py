# SPDX-License-Identifier: Apache-2.0
"""What the lanes, layers and the cache of this package share: the attachment, what is open
in each lane, and the steps."""

import ctypes as c
import errno
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._native import check, lib, nanoseconds
from .client import WAIT_SLICE, Attachment
from .errors import OutOfRange, OwnerDied
from .spec import Group, Spec

Groups = Union[None, str, Sequence[str]]
Counts = Union[int, Mapping[str, int]]
Epochs = Union[None, int, Mapping[str, int]]  # of all groups of a step, or of each


class Begun(NamedTuple):
    """What begin says of one group's chunk."""

    row: int  # of its first row
    n: int
    position: int  # of its first row, by the group's rule: rotate with it
    evicted: range  # rows that the staged view no longer shows


class GroupState(NamedTuple):
    """A group of a lane as it was published last; see struct kvw_group_state."""

    rows: int
    evicted: int
    generation: int
    epoch: int
    first: int
    open: int


class LaneState(NamedTuple):
    """A lane as it was published last; see struct kvw_lane_state."""

    step: int
    era: int
    is_owned: bool
    groups: Dict[str, GroupState]


class GroupInfo:
    """What calls look up of a group."""

    def __init__(self, index: int, group: Group, part: _abi.kvw_part) -> None:
        self.index, self.group, self.name = index, group, group.name
        self.n_heads, self.n_layers = part.n_heads, part.n_layers
        self.lanes = range(part.lane_first, part.lane_first + part.n_lanes)
        self.planes = group.planes
        self.plane_names = {plane.name: number for number, plane in enumerate(group.planes)}
        self.types = [plane.type for plane in group.planes]
        self.elems = [plane.elems for plane in group.planes]
        self.sources = _abi.kvw_source * len(group.planes)
        # Planes of i8 that their scales follow, and nothing else: k and v alone are enough.
        scaled = [number for number, plane in enumerate(group.planes) if plane.type == "i8"
                  and number + 1 < len(group.planes)
                  and group.planes[number + 1].name == f"{plane.name}_scale"]
        self.without_scales = scaled if 2 * len(scaled) == len(group.planes) else range(0)


class Core:
    """See the module. Lanes and layers refer to it, it refers to none of them."""

    def __init__(self, attachment: Attachment, rank: int) -> None:
        self.attachment, self.rank = attachment, rank
        self.lock = attachment.client.lock
        struct = c.cast(lib.cache_spec(attachment.handle), c.POINTER(_abi.kvw_spec))
        self.spec = Spec.of_struct(struct.contents)
        self.infos = [self.info_of(number, group) for number, group in enumerate(self.spec.groups)]
        self.by_name = {info.name: info for info in self.infos}
        self.modes = {lane: "write" for lane in range(self.spec.lanes)}
        # Rows of the open chunk by group; and, of chunks that update() opened, the rows
        # written of each group.
        self.open: Dict[int, Dict[int, int]] = {lane: {} for lane in self.modes}
        self.own_open: Dict[int, Dict[int, int]] = {lane: {} for lane in self.modes}
        self.open_row: Dict[int, Dict[int, int]] = {lane: {} for lane in self.modes}

    def info_of(self, number: int, group: Group) -> GroupInfo:
        part = _abi.kvw_part()
        if self.rank == _abi.READER:
            return GroupInfo(number, group, _abi.kvw_part(
                0, group.heads, 0, len(group.model_layers), 0, self.spec.lanes))
        check(lib.cache_part(self.attachment.handle, number, self.rank, c.byref(part)))
        return GroupInfo(number, group, part)

    def group(self, name: Optional[str]) -> GroupInfo:
        if name is None:
            return self.infos[0]
        try:
            return self.by_name[name]
        except KeyError:
            raise KeyError(f"groups are {', '.join(self.by_name)}, not {name}") from None

    def handle(self) -> c.c_void_p:
        return self.attachment.live()

    def names(self, groups: Groups) -> List[str]:
        if groups is None:
            return list(self.by_name)
        return [groups] if isinstance(groups, str) else list(groups)

    def counts(self, counts: Counts, groups: Groups) -> Dict[str, int]:
        if isinstance(counts, Mapping):
            return dict(counts)
        if groups is None and len(self.infos) > 1:
            return {self.infos[0].name: counts}
        return dict.fromkeys(self.names(groups), counts)

    def items(self, counts: Mapping[str, int], epoch: Epochs) -> Any:
        items = (_abi.kvw_item * len(counts))()
        for item, (name, row) in zip(items, counts.items()):
            item.group, item.row = self.group(name).index, row
            of = epoch.get(name) if isinstance(epoch, Mapping) else epoch
            if of is not None:
                item.has_epoch, item.epoch = 1, of
        return items

    def step(self, call: Any, lanes: Tuple[int, ...], rows: Mapping[str, int],
             epoch: Epochs, n: int = 0) -> None:
        items = self.items(rows, epoch)
        for item in items:
            item.n = n
        with self.lock:
            for lane in lanes:
                check(call(self.handle(), lane, items, len(items)))
                self.closed(lane)

    def closed(self, lane: int) -> None:
        self.open[lane], self.own_open[lane] = {}, {}

    def lanes(self) -> Tuple[int, ...]:
        """The lanes that this rank holds."""
        return tuple(next((info.lanes for info in self.infos if len(info.lanes)), ()))

    def layer(self, key: Union[int, Tuple[str, int]]) -> Tuple[GroupInfo, int]:
        """Group and index of a layer of the model."""
        to = _abi.kvw_layer()
        with self.lock:
            if isinstance(key, tuple):
                check(lib.layer_of(self.handle(), key[0].encode(), key[1], c.byref(to)))
            else:
                check(lib.layer_at(self.handle(), key, c.byref(to)))
        end = 0
        for info in self.infos:
            end += len(info.group.model_layers)
            if to.index < end:
                break
        return info, to.index

    # Steps.

    def begin(self, lane: int, rows: Counts, epoch: Epochs) -> Dict[str, Begun]:
        """See _Lanes.begin()."""
        with self.lock:
            state = self.state(lane, None).groups
            if isinstance(rows, Mapping):
                counts = dict(rows)
            else:  # where there is no room at all, it is refused in words
                counts = self._room(state, rows) or {self.infos[0].name: rows}
            items = self.items({name: state[name].rows for name in counts}, epoch)
            begun = (_abi.kvw_begun * len(items))()
            for item, n in zip(items, counts.values()):
                item.n = n
            check(lib.begin(self.handle(), lane, items, len(items), begun))
            self.open[lane] = {item.group: item.n for item in items}
            self.open_row[lane] = {item.group: item.row for item in items}
            self.own_open[lane] = ({} if isinstance(rows, Mapping)
                                   else {item.group: 0 for item in items})
        return {name: Begun(of.row, of.n, of.position, range(of.evict_first, of.evict_end))
                for name, of in zip(counts, begun)}

    def _room(self, state: Mapping[str, GroupState], n: int) -> Dict[str, int]:
        """Rows to open in each group for a chunk of n: all that fits where rows stay; n
        where rows roll, if that is a chunk there."""
        counts = {}
        for info in self.infos:
            if info.n_layers == 0 or info.n_heads == 0:
                raise ValueError(f"begin({{group: rows, ...}}) first: this rank holds nothing "
                                 f"of group {info.name} and does not see what others write")
            of = info.group
            if of.policy == "refuse":
                room = min(of.chunk, of.window - state[info.name].rows)
            else:
                room = n if n <= of.chunk else 0
            if room > 0:
                counts[info.name] = room
        return counts

    def open_for(self, info: GroupInfo, lane: int, n_rows: int) -> None:
        """update() and slots(): the chunk is open, or is opened now."""
        if info.index not in self.open[lane]:
            if self.open[lane]:
                names = ", ".join(self.infos[g].name for g in self.open[lane])
                raise ValueError(f"lane {lane} has a chunk open in {names}, not in {info.name}: "
                                 "begin({group: rows, ...}) names all groups of a step")
            room = self._room(self.state(lane, None).groups, n_rows)
            if info.group.policy == "refuse":  # says nothing of the rows of those that roll
                room = {name: n for name, n in room.items()
                        if self.group(name).group.policy == "refuse"}
            is_room = room.get(info.name, 0) >= n_rows
            self.begin(lane, room if is_room else {info.name: n_rows}, None)
            self.own_open[lane] = dict.fromkeys(self.open[lane], 0)
        own = self.own_open[lane]
        if info.index in own:
            own[info.index] = max(own[info.index], n_rows)

    def commit(self, lane: int, rows: Optional[Counts]) -> None:
        with self.lock:
            own = self.own_open[lane]
            counts = {self.infos[index].name: n for index, n in own.items()}
            if isinstance(rows, Mapping):
                counts.update(rows)
            elif rows is not None:
                counts.update({self.infos[index].name: rows for index in self.open[lane]
                               if own.get(index, rows) > 0})
            items = self.items(dict.fromkeys(counts, 0), None)
            for item, n in zip(items, counts.values()):
                item.n = n
            check(lib.commit(self.handle(), lane, items if counts else None, len(counts)))
            self.closed(lane)

    def state(self, lane: int, rank: Optional[int]) -> LaneState:
        state = _abi.kvw_lane_state()
        if rank is None:
            rank = _abi.ALL_RANKS if self.rank == _abi.READER else self.rank
        with self.lock:
            check(lib.state(self.handle(), lane, rank, c.byref(state)))
        groups = {info.name: GroupState(of.rows, of.evicted, of.generation, of.epoch, of.first,
                                        of.open)
                  for info, of in zip(self.infos, state.group)}
        return LaneState(state.step, state.era, bool(state.is_owned), groups)

    def wait(self, lane: int, rank: int, timeout: Optional[float], call: Any) -> None:
        """Wait by slices, so that Ctrl-C works. What a rank does between two is not lost:
        one that was owned and is no longer gets one more slice, and then has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        ranks = range(self.spec.ranks) if rank == _abi.ALL_RANKS else (rank,)
        owned: Optional[set] = None
        while True:
            left = WAIT_SLICE if end is None else min(WAIT_SLICE, end - time.monotonic())
            with self.lock:
                answer = call(nanoseconds(max(left, 0)))
                is_late = end is not None and time.monotonic() >= end
                if answer != -errno.ETIMEDOUT or is_late:
                    check(answer)
                    return
            now = {one for one in ranks if self._is_owned(lane, one)}
            if owned is not None and owned - now:
                with self.lock:
                    answer = call(nanoseconds(0))
                if answer != -errno.ETIMEDOUT:
                    check(answer)
                    return
                raise OwnerDied(errno.EOWNERDEAD, f"wait '{self.attachment.name}': lane {lane}: "
                                f"rank {min(owned - now)} ended while it was waited for")
            owned = now

    def _is_owned(self, lane: int, rank: int) -> bool:
        try:
            return self.state(lane, rank).is_owned
        except OutOfRange:  # a rank that does not hold the lane
            return False
