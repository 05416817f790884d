# SPDX-License-Identifier: Apache-2.0
"""What the families share: the container, and the layer whose rows are K and V."""

from typing import Any, Dict, Optional, Tuple, Union

import torch

from ..attention import attention
from ..cache import RollingKVCache
from ..client import Client
from ..core import GroupState
from ..layer import Layer
from ..spec import Spec
from ..view import BatchView

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def type_of(dtype: Union[str, torch.dtype]) -> str:
    """f32, bf16 or f16."""
    return dtype if isinstance(dtype, str) else DTYPES[dtype]


class Container:
    """Layers over a RollingKVCache, all of whose lanes go in step as a batch."""

    group = "self"

    def __init__(self, spec: Spec, client: Optional[Client], rank: int = 0) -> None:
        self.shared = RollingKVCache(spec=spec, client=client, rank=rank)
        self._layers: Dict[int, Any] = {}

    def _new_layer(self, number: int) -> Any:
        return KVLayer(self._shared_layer(self.group, number))

    def _shared_layer(self, group: str, number: int) -> Layer:
        return self.shared[group, number]

    def __getitem__(self, number: int) -> Any:
        layer = self._layers.get(number)
        if layer is None:
            layer = self._layers[number] = self._new_layer(number)
        return layer

    def __len__(self) -> int:
        return len(self.shared)

    def _state(self, group: str) -> GroupState:
        return self.shared.lane(self.shared.lanes[0]).state().groups[group]

    def commit(self) -> None:
        """Publish what the passes wrote: all layers at once."""
        self.shared.commit()

    def abort(self) -> None:
        """Forget it."""
        self.shared.abort()

    def reset_state(self) -> None:
        """Start from nothing: the next video, image or text."""
        self.shared.reset_state()

    def close(self) -> None:
        """Detach from the cache. Nothing may hold tensors of it."""
        self._layers.clear()
        self.shared.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()


def batched(views: Any) -> BatchView:
    """A BatchView, of one lane too: tensors have a batch always."""
    return views if isinstance(views, BatchView) else BatchView([views])


class KVLayer:
    """One layer: update, get, reset."""

    def __init__(self, layer: Layer) -> None:
        self._shared = layer

    def update(self, k: torch.Tensor, v: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Write the chunk's K and V (again, in each pass) and return all that its queries
        see: K and V, [batch, rows, heads, elems]."""
        self.store(k, v)
        return self.get()

    def store(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """update() without the answer: before attend(), which needs no tensors."""
        if len(self._shared.lanes) == 1 and k.dim() == 4 and k.shape[0] == 1:
            k, v = k[0], v[0]
        self._shared.update(k, v)

    def get(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """What queries see: K and V."""
        views = self.view()
        return views.tensor("k"), views.tensor("v")

    def view(self) -> BatchView:
        """The same as pieces of the shared memory, for kvwheel.attention()."""
        return batched(self._shared.get())

    def attend(self, q: torch.Tensor, **how: Any) -> torch.Tensor:
        """Attention from [batch, queries, heads, elems], on the pieces where they lie; what
        else kvwheel.attention() takes, goes with it."""
        with self.view() as views:
            return attention(q, views, **how)

    @property
    def positions(self) -> torch.Tensor:
        """The position of each row that get() returns (of the first lane), int64."""
        with self.view() as views:
            return torch.from_numpy(views[0].positions)

    @property
    def kinds(self) -> torch.Tensor:
        """The class of each row: 1 sink, 2 kept, 3 past, 4 current."""
        with self.view() as views:
            kinds, row = views[0].kinds, views[0].open_row
            if row is not None:  # contiguous: past and current rows are one piece
                kinds[(views[0].rows >= row) & (kinds == 3)] = 4
            return torch.from_numpy(kinds)

    def bias(self, of: Dict[str, float]) -> torch.Tensor:
        """What to add to the scores of each row, by its class: {"past": -1.2}; f32."""
        names = ("", "sink", "kept", "past", "current")
        return torch.tensor([of.get(name, 0.0) for name in names])[self.kinds.long()]

    def reset(self) -> None:
        """Forget this layer's rows."""
        self._shared.reset()
