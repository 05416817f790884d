# SPDX-License-Identifier: Apache-2.0
"""Block-causal linear attention with a convolution's tail (SANA-Video): see LinearCache."""

import os
from typing import Any, Iterator, NamedTuple, Optional, Tuple, Union

import torch

from ..client import Client
from ..layer import Layer
from ..linear import linear_attention, linear_sums
from ..rope import Rope
from ..spec import Group, Plane, Spec
from .base import Container, batched, type_of


class Past(NamedTuple):
    """What the chunks before leave to a layer."""

    vk: torch.Tensor  # [batch, heads, value channels, key channels], sum of v x rotated k
    k_sum: torch.Tensor  # [batch, heads, key channels], sum of k, not rotated
    tail: Optional[torch.Tensor]  # last frame that entered the convolution; None: no past


class LinearLayer:
    """One layer: the sums of the chunks in the window, and the tail of the last one."""

    def __init__(self, container: "LinearCache", state: Layer, tail: Layer) -> None:
        self._state, self._tail = state, tail
        self._dim, self._is_running = container.head_dim, container.is_running
        self._heads = container.shared.heads("state")

    def get(self) -> Past:
        """The past of the chunk that is open, as sums (zeros before the first chunk). The
        sums are added up in f32 from the oldest on; the tail is a copy too."""
        with batched(self._state.get(staged=True)) as views:
            parts = [self._sum(view) for view in views]
        with batched(self._tail.get(staged=False)) as views:
            tail = None
            if all(view.n_rows for view in views):
                tail = torch.stack([view["tail"][-1].torch()[-1, 0].clone() for view in views])
        return Past(torch.stack([vk for vk, _ in parts]),
                    torch.stack([k_sum for _, k_sum in parts]), tail)

    def attend(self, q: torch.Tensor, rotated_q: torch.Tensor, vk: torch.Tensor,
               k_sum: torch.Tensor, eps: float = 1e-8) -> torch.Tensor:
        """Linear attention of relu'd queries, [batch, rows, heads, elems], to the past, whose
        sums are read where they lie, and to the chunk's own sums."""
        with batched(self._state.get(staged=True)) as views:
            return torch.stack([
                linear_attention(q[i], [*self._states(view), (vk[i], k_sum[i])], rotated_q[i],
                                 eps) for i, view in enumerate(views)])

    def _states(self, view: Any) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        """The sums of each committed row, the oldest first: the memory itself."""
        for piece in view.pieces:
            if piece.kind != "current":  # the chunk's own, written or not, are not past
                yield from zip(piece["vk"].torch().unflatten(-1, (self._dim, self._dim)),
                               piece["k_sum"].torch())

    def _sum(self, view: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        vk = torch.zeros(self._heads, self._dim, self._dim)
        k_sum = torch.zeros(self._heads, self._dim)
        for row in self._states(view):
            vk += row[0]
            k_sum += row[1]
        return vk, k_sum

    def update(self, vk: torch.Tensor, k_sum: torch.Tensor, tail: torch.Tensor) -> None:
        """Store the chunk's own sums and its last frame: in the clean pass; a pass that
        stores again overwrites."""
        batch = len(vk)
        if self._is_running:
            past = self.get()
            vk, k_sum = vk + past.vk, k_sum + past.k_sum
        self._store(self._state, vk.reshape(batch, 1, self._heads, -1),
                    k_sum.reshape(batch, 1, self._heads, -1))
        self._store(self._tail, tail.reshape(batch, 1, 1, -1))

    def _store(self, layer: Layer, *planes: torch.Tensor) -> None:
        layer.update(*([plane[0] for plane in planes] if len(layer.lanes) == 1 else planes))

    def reset(self) -> None:
        """Forget this layer's past."""
        self._state.reset()
        self._tail.reset()


class LinearCache(Container):
    """Sums of linear attention, a row for each chunk, and one frame of convolution tail.

        frame = cache.begin()                  # absolute number of the chunk's first frame
        past = cache[layer].get()              # in every pass; nothing is written
        cache[layer].update(vk, k_sum, tail)   # in the clean pass
        cache.commit(frames)

    blocks: how many chunks before a query's own count; None: all, as one running sum.
    tail_elems: elements of a frame that enters the temporal convolution.
    rank, ranks: heads are split over so many processes; sums are of this rank's, and so are
    the tail_elems of its tail.
    The number of frames so far is committed with the chunk and outlives the process.
    """

    group = "state"

    def __init__(self, layers: int, batch: int, heads: int, head_dim: int, tail_elems: int,
                 blocks: Optional[int], dtype: Union[str, torch.dtype] = torch.float32,
                 name: Optional[str] = None, client: Optional[Client] = None, rank: int = 0,
                 ranks: int = 1) -> None:
        self.head_dim, self.is_running = head_dim, blocks is None
        window = 2 if blocks is None else blocks + 1
        super().__init__(Spec(name or f"linear-{os.getpid()}-{id(self):x}", [
            Group("state", layers, heads, window=window, chunk=1, planes=[
                Plane("vk", "f32", head_dim ** 2, True), Plane("k_sum", "f32", head_dim)]),
            Group("tail", layers, ranks, window=1, chunk=1,
                  planes=[Plane("tail", type_of(dtype), tail_elems)]),
            Group("frames", 1, ranks, window=1, chunk=1, planes=[Plane("end", "u32", 1)]),
        ], lanes=batch, head_parts=ranks), client, rank)

    def _new_layer(self, number: int) -> LinearLayer:
        return LinearLayer(self, self._shared_layer("state", number),
                           self._shared_layer("tail", number))

    @property
    def frame(self) -> int:
        """Frames committed so far: the absolute number of the next one."""
        with batched(self._shared_layer("frames", 0).get(staged=False)) as views:
            return int(views[0].numpy("end")[-1, 0, 0]) if views[0].n_rows else 0

    def begin(self) -> int:
        """Open the next chunk; the absolute number of its first frame, to rotate with."""
        self.shared.begin({"state": 1, "tail": 1, "frames": 1})
        return self.frame

    def commit(self, frames: int = 0) -> None:  # type: ignore[override]
        """Publish the clean pass; `frames`: how many the chunk had."""
        layer = self._shared_layer("frames", 0)
        end = torch.tensor([[[self.frame + frames]]], dtype=torch.int32)
        layer.update(end if len(layer.lanes) == 1 else
                     end.expand(len(layer.lanes), 1, 1, 1))
        self.shared.commit()

    def rewind(self) -> int:
        """Take the last chunk back, to run it again under a new prompt; older sums stay.
        Returns the number of its first frame."""
        rows = {name: self._state(name).rows - 1 for name in ("state", "tail", "frames")}
        self.shared.truncate(rows)
        return self.frame


def rebase(vk: torch.Tensor, rope: Rope, delta: int) -> torch.Tensor:
    """Sums as if all keys had been rotated delta positions later (earlier: < 0): every row
    of vk is rotated; exact but for rounding. k_sum is not rotated and needs nothing."""
    shape = vk.shape  # [..., value channels, key channels]
    flat = vk.reshape(-1, 1, shape[-1])
    return rope.shift(flat, delta).reshape(shape)


def sums(k: torch.Tensor, rotated_k: torch.Tensor, v: torch.Tensor
         ) -> Tuple[torch.Tensor, torch.Tensor]:
    """A chunk's own vk and k_sum from relu'd keys, [batch, rows, heads, elems], in f32."""
    parts = [linear_sums(*of) for of in zip(k, v, rotated_k)]
    return torch.stack([vk for vk, _ in parts]), torch.stack([k_sum for _, k_sum in parts])
