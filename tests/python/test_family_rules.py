# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in caches of the field, family by family, and does not here. The numbers
are those of docs/pitfalls.md."""

import gc
import math
import os
import subprocess
import sys
import weakref
from pathlib import Path

import kvwheel
import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(os.environ["KVW_SOURCE"]) / "examples/python"))

import video  # noqa: E402
from kvwheel.families import ImageCache, LinearCache, TextCache, VideoCache, rebase  # noqa: E402

FRAME, HEADS, DIM = 4, 2, 12


def rows(n, value=0.0, batch=1):
    return torch.full((batch, n, HEADS, DIM), float(value))


def make_video(client, name, **options):
    geometry = {"layers": 2, "batch": 1, "heads": HEADS, "head_dim": DIM, "frame_rows": FRAME,
                "window": 6, "chunk": 3, "sink": 1, "text_rows": 8, **options}
    return VideoCache(**geometry, client=client, name=name)


def write(cache, frames, value, commit=True, layers=2):
    position = cache.begin(frames)
    n = (len(frames) if isinstance(frames, range) else frames) * FRAME
    for layer in range(layers):
        cache[layer].store(rows(n, value), rows(n, value))
    if commit:
        cache.commit()
    return position


def values(cache, layer=0):
    """The number that each frame shows in a layer."""
    k, _ = cache[layer].get()
    return k[0, ::FRAME, 0, 0].int().tolist()


# Video.

def test_positions_come_after_eviction_and_before_writing(client, name):
    """SD1, T29: one rule for queries and for new and old keys."""
    with make_video(client, name, positions="window") as cache:
        at = []
        for chunk in range(8):
            at.append(write(cache, 3, chunk, commit=False) // FRAME)
            positions = cache[0].positions
            assert (positions == torch.arange(len(positions))).all()
            assert at[-1] * FRAME == len(positions) - 3 * FRAME
            cache.commit()
        assert at == [0] + [3] * 7
        assert positions[FRAME - 1] - positions[0] == FRAME - 1  # T23: the sink stays at 0


def test_a_chunk_that_does_not_fit_beside_the_sink_is_no_cache(client, name):
    """SD2, T55: W >= S + chunk, else the sink would be overwritten."""
    with pytest.raises(kvwheel.Invalid, match="window"):
        make_video(client, name, window=3, sink=1)


def test_the_prompt_is_known_by_its_epoch_not_by_its_bytes(client, name):
    """SD5, T15, T61: zeros are K and V like others, and a new prompt finds none."""
    with make_video(client, name) as cache:
        cache.begin()
        assert cache.cross[0].get() is None
        for layer in range(2):
            cache[layer].store(rows(12), rows(12))
            cache.cross[layer].update(rows(5), rows(5))  # all zero
        assert cache.cross[0].is_filled
        cache.commit()
        cache.switch()
        assert cache.cross[0].get() is None and not cache.cross[1].is_filled
        assert len(values(cache)) == 3  # the window stays
        write(cache, 3, 1)
        with cache[0].view() as views:
            assert views[0].epoch == 1


def test_a_reset_before_anything_and_twice_is_fine(client, name):
    """SD6, T53."""
    with make_video(client, name) as cache:
        cache[0].reset()
        cache.reset_state()
        cache.reset_state()
        write(cache, 3, 7)
        assert values(cache) == [7, 7, 7]


def test_after_a_switch_the_sink_is_filled_again_by_the_next_clean_pass(client, name):
    """T01: protection is of valid rows, and what was dropped is none."""
    with make_video(client, name) as cache:
        for chunk in range(4):
            write(cache, 3, chunk)
        assert values(cache)[0] == 0
        for frames in cache.switch("drop", context=3):
            write(cache, frames, 10)
        for chunk in range(5):
            write(cache, 3, 20 + chunk)
        assert values(cache) == [10, 23, 23, 24, 24, 24]


def test_a_sink_larger_than_a_chunk_is_protected_from_its_clean_pass_on(client, name):
    """T54, SD rule R8: noise does not stay in it."""
    with make_video(client, name, window=8, sink=4) as cache:
        for chunk in range(4):
            for passing in (900, 500, chunk):  # noisy, noisy, clean
                if passing == 900:
                    cache.begin()
                for layer in range(2):
                    cache[layer].store(rows(12, passing), rows(12, passing))
            cache.commit()
        assert values(cache) == [0, 0, 0, 1, 2, 3, 3, 3]


def test_a_switch_that_cannot_be_says_why(client, name):
    with make_video(client, name) as cache:
        write(cache, 3, 0)
        with pytest.raises(ValueError, match="keep, drop, recompute"):
            cache.switch("forget", 3)
        with pytest.raises(ValueError, match="need a context"):
            cache.switch("drop")


def test_frames_run_again_have_their_old_positions(client, name):
    """T02, T60: and the epoch of the new prompt."""
    with make_video(client, name, sink=3, window=9) as cache:
        for chunk in range(5):
            write(cache, 3, chunk)
        plan = cache.switch("recompute", context=5)
        assert plan == [range(0, 3), range(10, 13), range(13, 15)] and cache.frames == 10
        at = [write(cache, frames, 9) // FRAME for frames in plan]
        assert at == [0, 10, 13] and cache.frames == 15
        with cache[1].view() as views:
            assert views[0].epoch == cache.epoch == 1
        assert (cache[0].positions[::FRAME] // FRAME).tolist() == [0, 1, 2, 10, 11, 12, 13, 14]


def test_a_video_after_another_starts_from_nothing(client, name):
    """T57: all state is the cache's, and reset_state() resets all of it."""
    with make_video(client, name, keep=3) as cache:
        for chunk in range(5):
            write(cache, 3, chunk)
        cache.keep_last()
        cache.jump(8)
        cache.evict_to_last(2)
        cache.reset_state()
        assert cache.frames == 0 and write(cache, 3, 5) == 0
        assert values(cache) == [5, 5, 5] and cache[0].positions.tolist() == list(range(12))


def test_a_reset_keeps_the_present_prompt(client, name):
    """T16: it clears the cache's state, and brings no older prompt back."""
    with make_video(client, name) as cache:
        write(cache, 3, 0)
        cache.switch()
        cache.reset_state()
        cache.begin()
        assert cache.epoch == 1 and cache.cross[0].get() is None
        for layer in range(2):
            cache[layer].store(rows(12), rows(12))
            cache.cross[layer].update(rows(2, 5), rows(2, 5))
        cache.commit()
        with cache.cross[0].view() as views:
            assert views[0].epoch == 1 and views[0].numpy("k")[0, 0, 0] == 5


def test_tensors_that_are_kept_too_long_stop_the_writer_in_words(client, name):
    """A tensor of the shared memory never shows rows of another time."""
    with make_video(client, name, sink=0, contiguous=False) as cache:
        write(cache, 3, 1)
        write(cache, 3, 2)
        kept = cache[0].get()[0]
        write(cache, 3, 3)
        before = kept.clone()
        with pytest.raises(kvwheel.Busy, match="view"):
            write(cache, 3, 4)
        assert torch.equal(kept, before)
        del kept
        write(cache, 3, 4)


def test_a_window_run_again_chunk_by_chunk_is_one_pass_with_a_block_causal_mask(client, name):
    """LongLive's re-cache, against the masked pass that it does in place of chunks."""
    model = video.Model(max_frames=64)
    with VideoCache(2, 1, video.HEADS, video.HEAD_DIM, video.FRAME, window=9, chunk=3,
                    text_rows=8, client=client, name=name) as cache:
        player = video.Player(cache, model)
        for _ in range(5):
            player.chunk()
        del player.outputs[:]
        player.switch(1, "drop", context=6)
        have = torch.cat(player.outputs, 1)

        x = torch.cat([player.clean[i] for i in range(9, 15)], 1)
        block = torch.arange(6 * video.FRAME) // (3 * video.FRAME)
        hidden = torch.where(block[None] > block[:, None], -math.inf, 0.0)
        for w in model.weights:
            q, k, v = (model.heads(torch.tanh(x) @ w[part]) for part in "qkv")
            q, k = (model.rope.rotate(part, 9 * video.FRAME) for part in (q, k))
            x = x + video.attend(q, k, v, hidden).flatten(-2) @ w["o"]
            text = [model.heads(player.text @ w[part]) for part in ("ck", "cv")]
            x = x + video.attend(model.heads(x @ w["cq"]), *text).flatten(-2) @ w["co"]
        assert (have - x).abs().max() < 1e-5


def test_positions_and_the_prompt_are_those_that_a_killed_process_left(client, name):
    """After a switch and a jump: for whoever goes on, and for readers."""
    program = f"""if True:
        import os, signal, sys, torch
        sys.path[:0] = {sys.path!r}
        from test_family_rules import make_video, write
        cache = make_video(None, {name!r}, sink=3, window=9)
        for chunk in range(5):
            write(cache, 3, chunk)
        for frames in cache.switch("keep", context=5):
            write(cache, frames, 9)
        cache.jump(8)
        write(cache, 3, 10)
        cache.jump(2)
        print("done", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"done\n"
    reader = kvwheel.RollingKVCache.attach(name, client=client)
    process.kill()
    process.communicate()

    want = [0, 1, 2, 13, 14, 23, 24, 25]
    with reader["positions", 0].get() as at, reader["self", 1].get() as view:
        assert (at.rows == view.rows).all() and view.epoch == 1
        assert (at.numpy("position")[::FRAME, 0, 0] // FRAME).tolist() == [0, 1, 2, 12, 13, 14,
                                                                           23, 24, 25]
    with make_video(client, name, sink=3, window=9) as cache:
        assert (cache.epoch, cache.frames) == (1, 28)
        assert cache.begin(1) == 28 * FRAME
        for layer in range(2):
            cache[layer].store(rows(FRAME, 11), rows(FRAME, 11))
        assert (cache[0].positions[::FRAME] // FRAME).tolist() == [*want, 28]
        cache.commit()
    reader.close()


def test_what_is_kept_goes_by_its_frame_after_a_jump_too(client, name):
    with make_video(client, name, keep=3, sink=1) as cache:
        for chunk in range(3):
            write(cache, 3, chunk)
            cache.jump(5)
        cache.keep_last()  # frames 16, 17 and 18
        for chunk in range(3, 6):
            write(cache, 3, chunk)
        assert values(cache) == [0, 2, 2, 2, 4, 4, 5, 5, 5]
        with pytest.raises(ValueError, match="frame 6 is not in the window"):
            cache.drop_kept(6)
        cache.drop_kept(16)
        assert values(cache) == [0, 4, 4, 5, 5, 5]
        cache.evict_to_last(2)
        assert values(cache) == [0, 5, 5]
        with cache.shared["positions", 0].get() as at, cache.shared["self", 0].get() as view:
            assert (at.rows == view.rows).all()


def test_two_ranks_with_half_the_heads_are_one(client, name):
    generator = torch.Generator().manual_seed(8)
    caches = [make_video(client, f"{name}-one", layers=1)]
    with kvwheel.connect() as own:
        caches += [make_video(one, f"{name}-two", layers=1, rank=rank, ranks=2)
                   for rank, one in enumerate((client, own))]
        for _ in range(7):
            q, k, v = (torch.randn(1, 12, HEADS, DIM, generator=generator) for _ in range(3))
            parts = []
            for cache, heads in zip(caches, (slice(0, 2), slice(0, 1), slice(1, 2))):
                cache.begin()
                cache[0].store(k[:, :, heads], v[:, :, heads])
                if not cache.cross[0].is_filled:
                    cache.cross[0].store(k[:, :5, heads], v[:, :5, heads])
                parts.append(cache[0].attend(q[:, :, heads]))
                cache.commit()
            assert torch.equal(parts[0], torch.cat(parts[1:], 2))
        for cache in caches:
            cache.close()


# Linear attention.

def test_sums_are_of_the_chunk_and_the_accumulated_ones_have_another_name(client, name):
    """T20: update() stores a chunk's own, get() adds up those of the window."""
    with LinearCache(1, 1, 1, 2, 3, blocks=2, client=client, name=name) as cache:
        for chunk in range(1, 7):
            cache.begin()
            past = cache[0].get()
            window = range(max(chunk - 2, 1), chunk)
            assert past.vk[0, 0, 0, 0] == sum(window) and past.k_sum[0, 0, 0] == sum(window)
            assert past.tail is None if chunk == 1 else past.tail[0, 0] == chunk - 1
            one = torch.full((1, 1, 2, 2), float(chunk))
            cache[0].update(one, one[:, :, 0], torch.full((1, 3), float(chunk)))
            assert torch.equal(cache[0].get().vk, past.vk)  # its own are not past
            cache.commit(3)
        assert cache.frame == 18  # T59: the offset is the cache's own


def test_the_frame_offset_outlives_the_process(client, name):
    options = dict(client=client, name=name)
    first = LinearCache(1, 1, 1, 2, 3, blocks=2, **options)
    first.shared.spec  # created with lifetime job: the second attachment keeps it
    reader = kvwheel.RollingKVCache.attach(name, client=client)
    first.begin()
    first[0].update(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2), torch.ones(1, 3))
    first.commit(11)
    first.close()
    again = LinearCache(1, 1, 1, 2, 3, blocks=2, **options)
    assert again.begin() == 11 and again[0].get().vk[0, 0, 0, 0] == 1
    again.abort()
    reader.close()
    again.close()


def test_a_batch_that_is_not_the_caches_is_refused(client, name):
    """T59: guidance that doubles the batch in some passes only."""
    with LinearCache(1, 2, 1, 2, 3, blocks=2, client=client, name=name) as cache:
        cache.begin()
        with pytest.raises(ValueError, match="lanes"):
            cache[0].update(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2), torch.ones(1, 3))


@pytest.mark.parametrize("blocks", [2, None])
def test_two_ranks_have_half_the_sums_each(client, name, blocks):
    generator = torch.Generator().manual_seed(9)
    with kvwheel.connect() as own:
        one = LinearCache(1, 1, 2, 4, 6, blocks, client=client, name=f"{name}-one")
        two = [LinearCache(1, 1, 2, 4, 3, blocks, client=of, name=f"{name}-two", rank=rank,
                           ranks=2) for rank, of in enumerate((client, own))]
        for _ in range(7):
            vk, k_sum = (torch.randn(1, 2, 4, *of, generator=generator) for of in ((4,), ()))
            tail = torch.randn(1, 6, generator=generator)
            for cache, part, of in ((one, slice(0, 2), slice(0, 6)),
                                    (two[0], slice(0, 1), slice(0, 3)),
                                    (two[1], slice(1, 2), slice(3, 6))):
                cache.begin()
                cache[0].update(vk[:, part], k_sum[:, part], tail[:, of])
                cache.commit(3)
            whole, *parts = (cache[0].get() for cache in (one, *two))
            assert torch.equal(whole.vk, torch.cat([past.vk for past in parts], 1))
            assert torch.equal(whole.k_sum, torch.cat([past.k_sum for past in parts], 1))
            assert torch.equal(whole.tail, torch.cat([past.tail for past in parts], 1))
        assert [cache.frame for cache in (one, *two)] == [21] * 3
        for cache in (one, *two):
            cache.close()


def test_rebasing_sums_is_rotating_all_keys_earlier():
    rope = kvwheel.Rope.grid((20, 2, 2), (4, 4, 4))
    generator = torch.Generator().manual_seed(5)
    k, v = (torch.randn(1, 8, HEADS, DIM, generator=generator) for _ in range(2))

    def vk(frame):
        return torch.einsum("bnhd,bnhk->bhdk", v, rope.rotate(k, frame * FRAME))

    assert (rebase(vk(9), rope, -5 * FRAME) - vk(4)).abs().max() < 1e-4
    assert (rebase(vk(4), rope, 5 * FRAME) - vk(9)).abs().max() < 1e-4


# Condition images.

def image(n, value):
    return torch.full((1, n, HEADS, 8), float(value))


def make_images(client, name, samples=3, rows=16):
    return ImageCache(1, samples, HEADS, 8, rows, client=client, name=name)


def test_a_sample_without_images_shifts_nobody(client, name):
    """T62: the sample's number is explicit."""
    with make_images(client, name) as cache:
        cache.set_mode("write")
        cache[0].update(image(2, 1), image(2, 1))
        cache.next_sample()
        cache.next_sample()  # the second has none
        cache[0].update(image(3, 3), image(3, 3))
        cache.next_sample()
        cache.set_mode("read")
        with cache[0].view() as views:
            assert views.n_rows == [2, 0, 3]
            assert views[2].numpy("k")[0, 0, 0] == 3
        with pytest.raises(ValueError, match="equal lengths"):
            cache[0].update(torch.zeros(3, 1, HEADS, 8), torch.zeros(3, 1, HEADS, 8))


def test_samples_of_different_lengths_are_one_batch(client, name):
    """T19: ragged; against each sample alone."""
    generator = torch.Generator().manual_seed(6)
    with make_images(client, name) as cache:
        cache.set_mode("write")
        stored = []
        for n in (2, 5, 3):
            k, v = (torch.randn(1, n, HEADS, 8, generator=generator) for _ in range(2))
            cache[0].update(k, v)
            cache.next_sample()
            stored.append((k, v))
        cache.set_mode("read")
        q, k, v = (torch.randn(6, 4, HEADS, 8, generator=generator) for _ in range(3))
        out = cache[0].attend(q, k, v)
        for i in range(6):
            keys = torch.cat([stored[i // 2][0][0], k[i]])
            scores = torch.einsum("qhd,khd->hqk", q[i], keys) / math.sqrt(8)
            want = torch.einsum("hqk,khd->qhd", scores.softmax(-1),
                                torch.cat([stored[i // 2][1][0], v[i]]))
            assert (out[i] - want).abs().max() < 1e-5


def test_guidance_in_one_batch_reads_and_skips(client, name):
    """T17: the mode is of a pass and a sample."""
    with make_images(client, name, samples=2) as cache:
        cache.set_mode("write")
        for value in (1, 1):
            cache[0].update(image(2, value), image(2, value))
            cache.next_sample()
        cache.set_mode("read", sample=0)
        cache.set_mode("skip", sample=1)
        q = torch.zeros(2, 1, HEADS, 8)
        out = cache[0].attend(q, q, q)
        assert torch.allclose(out[0], torch.full((1, HEADS, 8), 2 / 3)) and (out[1] == 0).all()


def test_a_batch_that_no_rule_fits_and_a_full_sample_are_refused(client, name):
    with make_images(client, name, samples=2, rows=4) as cache:
        cache.set_mode("write")
        for _ in range(2):
            cache[0].update(image(3, 1), image(3, 1))
            cache.next_sample()
        with pytest.raises(ValueError, match="there are 2 samples"):
            cache[0].update(image(1, 1), image(1, 1))
        cache.set_mode("read")
        with pytest.raises(ValueError, match="2 samples or a multiple"):
            cache[0].update(torch.zeros(3, 1, HEADS, 8), torch.zeros(3, 1, HEADS, 8))
        cache.clear()
        cache.set_mode("write")
        cache[0].update(image(3, 1), image(3, 1))
        with pytest.raises(kvwheel.Full):
            cache[0].update(image(2, 1), image(2, 1))
        with pytest.raises(ValueError, match="write, read, skip"):
            cache.set_mode("append")


def test_a_second_request_finds_nothing_of_the_first(client, name):
    with make_images(client, name) as cache:
        cache.set_mode("write")
        cache[0].update(image(2, 1), image(2, 1))
        cache.clear()
        cache.set_mode("read")
        k, _ = cache[0].update(image(1, 5), image(1, 5))
        assert k.shape[1] == 1


# Language models.

def make_text(client, name, layers, **options):
    options = {"context": 64, "chunk": 8, **options}
    return TextCache(TextCache.spec(name, layers, HEADS, 8, **options), client)


def fill(cache, n, layers=1, chunk=1):
    for first in range(0, n, chunk):
        cache.begin(chunk)
        for layer in range(layers):
            row = torch.arange(first, first + chunk).float()[None, :, None, None]
            cache[layer].store(row.expand(1, chunk, HEADS, 8), row.expand(1, chunk, HEADS, 8))
        cache.commit()


@pytest.mark.parametrize("chunk", [1, 2, 4, 8])
def test_a_window_counts_the_query_and_any_chunking_sees_the_same(client, name, chunk):
    """T30, T32, T38: 5 windows of 8."""
    with make_text(client, name, [8]) as cache:
        fill(cache, 32, chunk=chunk)
        cache.begin(8)
        cache[0].store(torch.zeros(1, 8, HEADS, 8), torch.zeros(1, 8, HEADS, 8))
        mask = cache[0].mask(8)
        assert (mask.sum(1) == 8).all()
        with cache[0].view() as views:
            assert views[0].rows.tolist() == list(range(25, 40))
            assert [int(views[0].rows[mask[i]][0]) for i in (0, 7)] == [25, 32]
        cache.abort()


def test_layers_have_their_own_geometry_and_the_full_one_says_when_it_is_full(client, name):
    """T09, T31: and nothing changes when it does."""
    with make_text(client, name, [8, None], context=32) as cache:
        fill(cache, 32, layers=2)
        with pytest.raises(kvwheel.Full, match="need 1 rows, have 0 of 32"):
            cache.begin(1)
        assert cache.rows == 32
        with cache[1].view() as views:
            assert views.n_rows == [32]


def test_rollback_goes_back_or_says_how_far_it_can(client, name):
    """T34, T39."""
    with make_text(client, name, [8], slack=1) as cache:
        fill(cache, 40)
        low = cache.lowest()
        assert low < 40
        with pytest.raises(kvwheel.OutOfRange, match=str(low)):
            cache.rollback(low - 1)
        cache.rollback(low)
        with cache[0].view() as views:
            assert views[0].numpy("k")[:, 0, 0].tolist() == list(range(low - 8, low))


def test_the_sink_is_what_the_spec_says_and_never_more(client, name):
    """T35."""
    with make_text(client, name, [8], sink=2) as cache:
        fill(cache, 30)
        with cache[0].view() as views:
            assert views[0].rows.tolist() == [0, 1, *range(24, 30)]


def test_fresh_memory_is_never_seen(client, name):
    """T42: rows that were not written are in no view, whatever they hold."""
    with make_text(client, name, [8, None]) as cache:
        for layer in range(2):
            with cache[layer].view() as views:
                assert views.n_rows == [0]
        cache.begin(4)
        cache[0].store(torch.ones(1, 4, HEADS, 8), torch.ones(1, 4, HEADS, 8))
        with cache[1].view() as views:  # open, and not written in this layer
            assert views.n_rows == [0]
        cache.abort()


def test_the_same_rows_come_out_of_every_stride(client, name, rng):
    """T51: a tensor's stride is its own business."""
    wide = torch.from_numpy(rng.standard_normal((1, HEADS, 9, 16), np.float32))
    k = wide[:, :, 1:, ::2].transpose(1, 2)
    with make_text(client, name, [16]) as cache:
        cache.begin(8)
        assert all(torch.equal(part, k) for part in cache[0].update(k, k))
        cache.abort()


# Any family.

def use_video(client, name):
    cache = make_video(client, name)
    write(cache, 3, 1)
    cache.cross[0].get()
    return cache


def use_sums(client, name):
    cache = LinearCache(1, 1, 1, 2, 3, blocks=2, client=client, name=name)
    cache.begin()
    cache[0].update(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2), torch.ones(1, 3))
    cache.commit(3)
    return cache


def use_images(client, name):
    cache = make_images(client, name)
    cache.set_mode("write")
    cache[0].update(image(2, 1), image(2, 1))
    cache.set_mode("read")
    return cache


def use_text(client, name):
    cache = TextCache(TextCache.spec(name, [8, None], HEADS, 8, context=32, chunk=4), client)
    cache.begin(4)
    for layer in range(2):
        cache[layer].update(image(4, 1), image(4, 1))
    cache.commit()
    return cache


@pytest.mark.parametrize("use", [use_video, use_sums, use_images, use_text])
def test_a_cache_that_nobody_holds_any_more_is_detached_at_once(use, client, name):
    """No layer refers to its container: the rank is free without a collection of cycles."""
    gc.disable()
    try:
        cache = use(client, name)
        end = weakref.ref(cache.shared)
        del cache
        assert end() is None
    finally:
        gc.enable()
