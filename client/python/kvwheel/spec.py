# SPDX-License-Identifier: Apache-2.0
"""What a cache is: groups of layers, and the planes of their rows (see kvwheel.h)."""

import ctypes as c
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Dict, List, Optional, Sequence, Union

from . import _abi
from ._native import check, lib


def _number(table: Dict[str, int], what: str, name: str) -> int:
    try:
        return table[name]
    except KeyError:
        raise ValueError(f"{what}: need one of {', '.join(table)}, have {name!r}") from None


def _name(table: Dict[str, int], number: int) -> str:
    return next(name for name, value in table.items() if value == number)


def _bytes(text: str, most: int, what: str) -> bytes:
    data = text.encode()
    if not 0 < len(data) < most:
        raise ValueError(f"{what}: need a name of 1 to {most - 1} bytes, have {text!r}")
    return data


@dataclass
class Plane:
    """One tensor of a row: heads x elems of `type` (f32, bf16, f16, i8, u8, u32)."""

    name: str
    type: str
    elems: int
    rotated: bool = False  # keys are stored after rotation


@dataclass
class Group:
    """Layers that share one geometry and one policy. Lengths are in rows."""

    name: str
    layers: Union[int, Sequence[int]]  # how many, or their numbers in the model, ascending
    heads: int
    window: int  # the sink and the query's own chunk included
    chunk: int  # rows of the largest chunk
    planes: List[Plane]
    sink: int = 0
    keep: int = 0  # rows that keep() may hold beside the window
    slack: int = 1  # chunks of room beside the window (policy roll)
    policy: str = "roll"  # or refuse
    window_kind: str = "chunk"  # or row
    positions: str = "absolute"  # or window
    contiguous: bool = False  # past and current rows are one piece

    @property
    def model_layers(self) -> List[int]:
        """The numbers of its layers in the model."""
        return list(range(self.layers) if isinstance(self.layers, int) else self.layers)


def kv_planes(type: str, head_dim: int, rotated: bool = True) -> List[Plane]:
    """Planes k and v; of i8: k, k_scale, v and v_scale, a scale for each row and head."""
    if type == "i8":
        return [Plane("k", type, head_dim, rotated), Plane("k_scale", "f32", 1),
                Plane("v", type, head_dim), Plane("v_scale", "f32", 1)]
    return [Plane("k", type, head_dim, rotated), Plane("v", type, head_dim)]


@dataclass
class Bytes:
    """What a spec takes, before anything is allocated."""

    total: int
    data: int
    control: int
    groups: Dict[str, int]
    layers: Dict[str, int]  # of one layer of each group
    ranks: List[int]


@dataclass
class Spec:
    """What a cache is. Plain data; copy and change it before the cache is created."""

    name: str
    groups: List[Group] = field(default_factory=list)
    lanes: int = 1
    head_parts: int = 1
    layer_parts: int = 1
    lane_parts: int = 1
    row_parts: int = 1
    row_block: int = 0
    lifetime: str = "job"  # job, ttl, keep
    ttl_seconds: int = 0
    mode: int = 0o600
    checksums: bool = False  # of committed rows, for RollingKVCache.verify()
    placement: str = "spread"  # or follow, interleave, node, map: NUMA nodes
    nodes: Sequence[int] = ()  # of node: one; of map: one for each rank
    pages: str = "none"  # or thp, 2M: huge ones

    @property
    def ranks(self) -> int:
        """How many processes it is split over."""
        return self.head_parts * self.layer_parts * self.lane_parts * self.row_parts

    @staticmethod
    def preset(preset: str, context: int = 0) -> "Spec":
        """A spec by the name of a model; `context`: rows of full-attention layers."""
        spec = _abi.kvw_spec()
        check(lib.spec_preset(c.byref(spec), preset.encode(), context))
        return Spec.of_struct(spec)

    @staticmethod
    def presets() -> List[str]:
        """The names that preset() knows."""
        names: List[str] = []
        while (name := lib.spec_preset_name(len(names))) is not None:
            names.append(name.decode())
        return names

    @staticmethod
    def config(path: Union[str, "PathLike[str]"], type: Optional[str] = None,
               context: int = 0) -> "Spec":
        """A spec from a Hugging Face config.json, or the folder that has it."""
        spec = _abi.kvw_spec()
        number = 0 if type is None else _number(_abi.TYPES, "type", type)
        check(lib.spec_config(c.byref(spec), fspath(path).encode(), number, context))
        return Spec.of_struct(spec)

    def group(self, name: str) -> Group:
        """A group by name."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"groups are {', '.join(g.name for g in self.groups)}, not {name}")

    def size(self) -> Bytes:
        """The bytes that it takes."""
        size = _abi.kvw_spec_bytes()
        check(lib.spec_size(c.byref(self.to_struct()), c.byref(size)))
        names = [group.name for group in self.groups]
        return Bytes(size.total_bytes, size.data_bytes, size.control_bytes,
                     dict(zip(names, size.group_bytes)), dict(zip(names, size.layer_bytes)),
                     list(size.rank_bytes[: self.ranks]))

    def check(self) -> "Spec":
        """Itself, or what is wrong with it, raised."""
        check(lib.spec_check(c.byref(self.to_struct())))
        return self

    def to_struct(self) -> _abi.kvw_spec:
        """The same as a struct kvw_spec. (Used by create; not of interest otherwise.)"""
        spec = _abi.kvw_spec()
        lib.spec_init(c.byref(spec), _bytes(self.name, 64, "name of the cache"))
        if len(self.groups) > _abi.SPEC_GROUPS_MAX:
            raise ValueError(f"groups: need at most {_abi.SPEC_GROUPS_MAX}, "
                             f"have {len(self.groups)}")
        spec.n_lanes, spec.n_ranks = self.lanes, self.ranks
        for part in ("head_parts", "layer_parts", "lane_parts", "row_parts", "row_block",
                     "ttl_seconds", "mode"):
            setattr(spec, part, getattr(self, part))
        spec.has_checksums = int(self.checksums)
        spec.placement = _number(_abi.PLACEMENTS, "placement", self.placement)
        spec.pages = _number(_abi.PAGES, "pages", self.pages.lower())
        wanted = {"node": 1, "map": self.ranks}.get(self.placement, 0)
        if len(self.nodes) != wanted:
            raise ValueError(f"placement {self.placement}: need {wanted} nodes, "
                             f"have {len(self.nodes)}")
        for rank, node in enumerate(self.nodes):
            spec.node[rank] = node
        spec.lifetime = _number(_abi.LIFETIMES, "lifetime", self.lifetime)
        for number, group in enumerate(self.groups):
            _fill_group(spec, number, group)
        return spec

    @staticmethod
    def of_struct(spec: _abi.kvw_spec) -> "Spec":
        """What a struct kvw_spec says."""
        groups, at = [], 0
        for group in spec.group[: spec.n_groups]:
            layers = list(spec.model_layer[at : at + group.n_layers])
            at += group.n_layers
            planes = [Plane(plane.name.decode(), _name(_abi.TYPES, plane.type), plane.elems,
                            bool(plane.is_rotated)) for plane in group.plane[: group.n_planes]]
            groups.append(Group(
                group.name.decode(), layers, group.n_heads, group.window_rows,
                group.chunk_rows_max, planes, sink=group.sink_rows, keep=group.keep_rows,
                slack=group.slack_chunks, policy=_name(_abi.POLICIES, group.policy),
                window_kind=_name(_abi.WINDOW_KINDS, group.window_kind),
                positions=_name(_abi.POSITIONS, group.positions),
                contiguous=bool(group.is_contiguous)))
        return Spec(spec.name.decode(), groups, spec.n_lanes, spec.head_parts,
                    spec.layer_parts, spec.lane_parts, spec.row_parts, spec.row_block,
                    _name(_abi.LIFETIMES, spec.lifetime), spec.ttl_seconds, spec.mode,
                    bool(spec.has_checksums), _name(_abi.PLACEMENTS, spec.placement),
                    pages=_name(_abi.PAGES, spec.pages))


def _fill_group(spec: _abi.kvw_spec, number: int, group: Group) -> None:
    layers = group.model_layers
    if spec.n_layers + len(layers) > _abi.SPEC_LAYERS_MAX:
        raise ValueError(f"layers: need at most {_abi.SPEC_LAYERS_MAX} in all groups")
    if len(group.planes) > _abi.SPEC_PLANES_MAX:
        raise ValueError(f"group {group.name}: planes: need at most "
                         f"{_abi.SPEC_PLANES_MAX}, have {len(group.planes)}")
    to = spec.group[number]
    to.name = _bytes(group.name, 16, "name of a group")
    to.n_layers, to.n_heads = len(layers), group.heads
    to.window_rows, to.sink_rows = group.window, group.sink
    to.chunk_rows_max, to.keep_rows = group.chunk, group.keep
    to.slack_chunks = group.slack
    to.policy = _number(_abi.POLICIES, "policy", group.policy)
    to.window_kind = _number(_abi.WINDOW_KINDS, "window_kind", group.window_kind)
    to.positions = _number(_abi.POSITIONS, "positions", group.positions)
    to.is_contiguous = int(group.contiguous)
    to.n_planes = len(group.planes)
    for index, plane in enumerate(group.planes):
        to.plane[index].name = _bytes(plane.name, 16, "name of a plane")
        to.plane[index].type = _number(_abi.TYPES, "type", plane.type)
        to.plane[index].elems = plane.elems
        to.plane[index].is_rotated = int(plane.rotated)
    for index, layer in enumerate(layers):
        spec.model_layer[spec.n_layers + index] = layer
    spec.n_layers += len(layers)
    spec.n_groups = number + 1
