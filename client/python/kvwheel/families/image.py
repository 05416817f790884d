# SPDX-License-Identifier: Apache-2.0
"""K and V of condition images (GLM-Image): see ImageCache."""

import os
from typing import Any, Optional, Set, Tuple, Union

import torch

from ..attention import attention
from ..cache import RollingKVCache
from ..client import Client
from ..layer import Layer
from ..spec import Group, Spec, kv_planes
from ..view import BatchView
from .base import Container, type_of


class _Images:
    """What the container and its layers share: what is being written, and the mode. Layers
    refer to it, not to the container, so that no circle of references outlives a cache."""

    def __init__(self, shared: RollingKVCache) -> None:
        self.shared = shared
        self.forget()

    def forget(self) -> None:
        self.mode: Optional[str] = None
        self.sample, self.has_images = 0, False
        self.stored: Set[int] = set()  # layers that have the image being written

    @property
    def n_samples(self) -> int:
        return max(self.sample + (self.has_images or bool(self.stored)), 1)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if k.shape[0] != 1:
            raise ValueError(f"write: need one sample at a time, have a batch of {k.shape[0]}")
        if layer in self.stored:  # the next pass has begun
            self.end_image()
        if self.sample >= self.shared.spec.lanes:
            raise ValueError(f"write: there are {self.shared.spec.lanes} samples, and "
                             "next_sample() ended the last")
        lane = self.shared.lane(self.sample)
        if not self.stored:
            lane.begin({"ref": k.shape[1]})
        lane.set_mode("write")
        lane[layer].update(k[0], v[0])
        lane.set_mode("skip")
        self.stored.add(layer)

    def end_image(self) -> None:
        if self.stored:
            self.shared.lane(self.sample).commit()
            self.stored, self.has_images = set(), True


class ImageLayer:
    """One layer: update does what the mode says."""

    def __init__(self, images: _Images, number: int) -> None:
        self._images, self._number = images, number

    def _of(self, sample: int) -> Layer:
        return self._images.shared.lane(sample)[self._number]

    def update(self, k: torch.Tensor, v: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """What the queries of k and v, [batch, rows, heads, elems], see.

        write: their own rows alone, which are appended to the present sample's.
        read: the sample's images, and then their own rows. One sample serves any batch, N
            serve N, or a multiple of N, each batch / N in a row. Samples of different
            lengths are no tensor: use attend().
        skip, or no mode: their own rows alone."""
        if self._images.mode == "write":
            self._images.store(self._number, k, v)
        if self._images.mode != "read":
            return k, v
        with self.view() as views:
            lengths = set(views.n_rows)
            if len(lengths) > 1:
                raise ValueError(f"samples have {views.n_rows} rows: one tensor needs equal "
                                 "lengths; attend() does not")
            repeat = self._repeat(len(k), len(views))
            cached = (views.tensor(plane).repeat_interleave(repeat, 0) for plane in "kv")
            return tuple(torch.cat([rows.to(own.dtype), own], 1)  # type: ignore[return-value]
                         for rows, own in zip(cached, (k, v)))

    @staticmethod
    def _repeat(batch: int, samples: int) -> int:
        if batch % samples:
            raise ValueError(f"batch: need {samples} samples or a multiple of it, have {batch}")
        return batch // samples

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any
               ) -> torch.Tensor:
        """Attention of update()'s rows, on the images where they lie; samples may differ in
        length, and in mode: that of sample i is set_mode(mode, sample=i)."""
        if self._images.mode == "write":
            self._images.store(self._number, k, v)
        with self.view() as views:
            return attention(q, views, also=(k, v), **how)

    def view(self) -> BatchView:
        """The images of each sample, as pieces: none in modes write and skip."""
        images = self._images
        samples = [images.sample] if images.mode == "write" else range(images.n_samples)
        return BatchView([self._of(sample).get() for sample in samples])

    def get(self) -> Any:
        """K and V of the images, [samples, rows, heads, elems], of equal lengths."""
        views = BatchView([self._of(sample).get(staged=False)
                           for sample in range(self._images.n_samples)])
        return views.tensor("k"), views.tensor("v")

    def reset(self) -> None:
        """Forget this layer's images."""
        for sample in range(self._images.n_samples):
            self._of(sample).reset()


class ImageCache(Container):
    """Condition images for each sample of a batch: written once, read by every step.

        cache.set_mode("write")
        for sample in samples:
            for image in sample.images:
                ...one pass: cache[layer].update(k, v)...
            cache.next_sample()
        for step in steps:
            cache.set_mode("read"), ...the conditional pass...
            cache.set_mode("skip"), ...the unconditional one...
        cache.clear()

    rows: the most that all images of one sample have. Images of a sample follow each
    other; each pass is committed as a whole. Guidance in one batch: set_mode(mode, sample).
    rank, ranks: heads are split over so many processes.
    """

    group = "ref"

    def __init__(self, layers: int, samples: int, heads: int, head_dim: int, rows: int,
                 image_rows: Optional[int] = None,
                 dtype: Union[str, torch.dtype] = torch.float32, name: Optional[str] = None,
                 client: Optional[Client] = None, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(Spec(name or f"image-{os.getpid()}-{id(self):x}", [
            Group("ref", layers, heads, window=rows, chunk=image_rows or rows, policy="refuse",
                  planes=kv_planes(type_of(dtype), head_dim))],
            lanes=samples, head_parts=ranks), client, rank)
        self._images = _Images(self.shared)
        self.clear()

    @property
    def mode(self) -> Optional[str]:
        """As set_mode() left it; `read` also if it is each sample's own."""
        return self._images.mode

    @property
    def sample(self) -> int:
        """The number of the sample that is written next or now."""
        return self._images.sample

    @property
    def n_samples(self) -> int:
        """Samples so far: those that next_sample() ended, and the one being written."""
        return self._images.n_samples

    def _new_layer(self, number: int) -> ImageLayer:
        return ImageLayer(self._images, number)

    def set_mode(self, mode: Optional[str], sample: Optional[int] = None) -> None:
        """write, read, skip, or None; of all samples, or (read, skip) of one."""
        if mode not in (("write", "read", "skip", None) if sample is None
                        else ("read", "skip")):
            raise ValueError(f"mode: need {'write, ' if sample is None else ''}read, skip"
                             f"{' or None' if sample is None else ''}, have {mode!r}")
        self.end_image()
        if sample is None:
            self._images.mode = mode
            self.shared.set_mode("read" if mode == "read" else "skip")
        else:
            self._images.mode = "read"  # each lane knows its own
            self.shared.lane(sample).set_mode(mode)  # type: ignore[arg-type]

    def end_image(self) -> None:
        """Publish the image that was written; set_mode, next_sample and the next image's
        first update do so by themselves."""
        self._images.end_image()

    def commit(self) -> None:
        """As end_image(), which models of this family need not call."""
        self.end_image()

    def next_sample(self) -> None:
        """What is written from now on belongs to the next sample; a sample without images
        has none, and shifts nobody."""
        self.end_image()
        self._images.sample, self._images.has_images = self.sample + 1, False

    def clear(self) -> None:
        """Forget all images."""
        self.shared.reset_state()
        self.shared.set_mode("skip")
        self._images.forget()

    def reset_state(self) -> None:
        """As clear()."""
        self.clear()
