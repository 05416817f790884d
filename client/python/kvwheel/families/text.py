# SPDX-License-Identifier: Apache-2.0
"""Language models: sliding and full layers, sinks, rollback. See TextCache."""

from typing import Any, Dict, List, Optional

import torch

from ..client import Client
from ..core import Begun
from ..spec import Group, Spec, kv_planes
from .base import Container, KVLayer, batched


class TextLayer(KVLayer):
    """One layer, sliding or full."""

    def mask(self, n_queries: int) -> torch.Tensor:
        """[queries, rows]: which rows of get() each of the newest queries sees: the sink,
        kept rows, and the window that ends at itself."""
        with batched(self._shared.get()) as views:
            view = views[0]
            rows = torch.from_numpy(view.rows)
            kinds = torch.from_numpy(view.kinds)
            at = torch.arange(view.end_row - n_queries, view.end_row)[:, None]
            seen = (rows < view.sink) | (rows > at - (view.window - view.sink))
            return ((rows <= at) & seen) | (kinds == 2)


class TextCache(Container):
    """K and V of a language model whose layers may slide, or hold the whole context.

        begun = cache.begin(n)                  # positions of the n tokens
        k, v = cache[layer].update(k, v)        # and cache[layer].mask(n)
        cache.commit()                          # or commit(accepted), for speculation

    spec: Spec.preset(), Spec.config(), or TextCache.spec(). Lanes are the batch; where the
    spec splits heads over ranks, tensors have this rank's.
    Where positions are those in the window (StreamingLLM), keys are stored raw, and rotated
    when they are read: at cache[layer].positions, or by attend(rope=...).
    """

    def __init__(self, spec: Spec, client: Optional[Client] = None, rank: int = 0) -> None:
        super().__init__(spec, client, rank)

    @staticmethod
    def spec(name: str, layers: List[Optional[int]], heads: int, head_dim: int, context: int,
             chunk: int, sink: int = 0, type: str = "f32", positions: str = "absolute",
             slack: int = 1, lanes: int = 1, ranks: int = 1) -> Spec:
        """layers: the window of each, None for full attention (it holds `context` rows)."""
        groups = []
        for window in sorted({window or 0 for window in layers}, reverse=True):
            numbers = [i for i, of in enumerate(layers) if (of or 0) == window]
            planes = kv_planes(type, head_dim, rotated=positions == "absolute")
            groups.append(Group(
                f"local{window}" if window else "global", numbers, heads, planes=planes,
                window=window or context, chunk=chunk, sink=sink if window else 0,
                slack=slack if window else 1, policy="roll" if window else "refuse",
                window_kind="row", positions=positions if window else "absolute"))
        return Spec(name, groups, lanes=lanes, head_parts=ranks)

    def _new_layer(self, number: int) -> TextLayer:
        return TextLayer(self.shared[number])

    @property
    def rows(self) -> int:
        """Tokens committed."""
        return self._state(self.shared.spec.groups[0].name).rows

    def begin(self, n: int) -> Dict[str, Begun]:
        """Open a chunk of n tokens in every group; their positions, group by group."""
        return self.shared.begin({group.name: n for group in self.shared.spec.groups})

    def commit(self, n: Optional[int] = None) -> None:
        """Publish the first n tokens of the chunk (default: all); the rest is forgotten."""
        self.shared.commit(n if n is None else
                           {group.name: n for group in self.shared.spec.groups})

    def rollback(self, rows: int) -> None:
        """Go back to `rows` tokens. How far that can be, is lowest()."""
        self.shared.truncate({group.name: rows for group in self.shared.spec.groups})

    def lowest(self) -> int:
        """The least that rollback() can go back to."""
        lane: Any = self.shared.lane(self.shared.lanes[0])
        return max(lane.lowest(group.name) for group in self.shared.spec.groups)
