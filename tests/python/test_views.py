# SPDX-License-Identifier: Apache-2.0
"""Views: shared memory, pins, DLPack, gathers; attention on pieces."""

import ctypes
import faulthandler
import gc
import math
import os
import queue
import threading

import kvwheel
import numpy as np
import pytest
from test_cache import numbered, roll, rows, seen


def maps():
    """Address ranges and permissions of the mappings of memfds of this process."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, permissions, *_ = line.split()
            if "memfd:" in line:
                first, end = (int(part, 16) for part in span.split("-"))
                yield first, end, permissions


def mapping_of(address):
    return next((permissions for first, end, permissions in maps() if first <= address < end),
                None)


def test_arrays_are_the_shared_memory(make, client):
    cache = make()
    roll(cache, 6)
    reader = kvwheel.RollingKVCache.attach(cache.name, client=client)

    with cache[0].get() as view:
        array = view["k"][-1].numpy()
        assert mapping_of(array.ctypes.data) == "rw-s"
        assert not array.flags.writeable
        assert (array[:, 0, 0] == view.rows[-len(array):]).all()
        del array
    with reader[0].get() as view:
        assert mapping_of(view["k"][0].address) == "r--s"
    reader.close()


def test_a_view_is_not_left_while_arrays_show_it(make):
    cache = make()
    roll(cache, 6)
    view = cache[0].get()
    array = view["k"][0].numpy()

    with pytest.raises(BufferError, match="1 arrays"):
        view.release()
    with pytest.raises(BufferError, match="held"):
        cache.close()
    half = array[1:]
    del array
    with pytest.raises(BufferError):
        view.release()
    del half
    view.release()
    with pytest.raises(ValueError, match="released"):
        view["k"]


@pytest.fixture
def no_gc():
    """Nothing may wait for the collector of cycles."""
    gc.disable()
    yield
    gc.enable()


def test_an_array_keeps_its_rows_after_its_view(make, no_gc):
    cache = make(options={"timeout": 0.05, "pin_policy": "answer"})
    roll(cache, 6)
    array = cache[0].get()["k"][0].numpy()  # the view itself is gone
    with pytest.raises(kvwheel.Busy):
        roll(cache, 5)
    cache.abort()
    assert (array[:, 0, 0] == np.arange(3)).all()
    del array
    roll(cache, 5)


def test_a_view_that_is_revoked_says_so(make, client, no_gc):
    cache = make(options={"pin_policy": "revoke"})
    roll(cache, 6)
    reader = kvwheel.RollingKVCache.attach(cache.name, client=client)
    first, second = reader[0].get(), reader[0].get()
    roll(cache, 6)

    with pytest.raises(kvwheel.Overrun):
        first.release()
    with pytest.warns(kvwheel.OverrunWarning, match="layer 0"):
        del second
    reader.close()


def test_an_unpinned_view_is_only_checked_at_its_end(make, client):
    cache = make()
    roll(cache, 6)
    reader = kvwheel.RollingKVCache.attach(cache.name, client=client)
    good, bad = reader[0].get(pinned=False), reader[0].get(pinned=False)
    good.release()
    roll(cache, 6)

    with pytest.raises(kvwheel.Overrun):
        bad.release()
    reader.close()


def test_arrays_may_go_in_any_thread(make, client):
    """Of numpy and by DLPack, while the writer goes on; no pin is left."""
    cache = make()
    roll(cache, 6)
    arrays = queue.Queue()

    def drop():
        while True:
            arrays.get()
            arrays.task_done()

    for _ in range(4):
        threading.Thread(target=drop, daemon=True).start()
    for _ in range(100):
        roll(cache, 1)
        view = cache[0].get()
        for piece in view:
            arrays.put(piece["k"].numpy())
            arrays.put(np.from_dlpack(piece["v"]))
        del view, piece
        arrays.join()
    roll(cache, 12)
    assert cache._core.attachment._views_held == 0


def test_an_error_inside_with_is_not_hidden(make):
    cache = make()
    roll(cache, 1)

    try:
        with cache[0].get() as view:
            array = view["k"][0].numpy()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    else:
        pytest.fail("the error is gone")
    del array, view


def test_a_view_says_its_window_its_length_and_where_it_ends(make):
    cache = make()
    roll(cache, 2)
    with cache[0].get() as view:
        assert (view.window, view.sink, view.n_rows, view.end_row) == (12, 3, 6, 6)
    roll(cache, 5)

    with cache[0].get() as view:
        assert (view.window, view.sink, view.n_rows, view.end_row) == (12, 3, 12, 21)
        assert (view.step, view.generation, view.epoch, view.window_kind) == (7, 1, 0, "chunk")


# One array.

def test_one_piece_is_a_view_and_more_are_a_gather_that_is_counted(make):
    cache = make(sink=0)
    roll(cache, 2)
    with cache[0].get() as view:
        array = view.numpy("k")
        assert mapping_of(array.ctypes.data) and cache.stats.gathers == 0
        del array
    roll(cache, 4)
    with cache[0].get() as view:
        assert len(view.pieces) == 2
        array = view.numpy("k")
        assert mapping_of(array.ctypes.data) is None
        assert (array[:, 0, 0] == view.rows).all()
    assert (cache.stats.gathers, cache.stats.gather_bytes) == (1, 12 * 2 * 8 * 4)


def test_contiguous_past_and_current_are_one_piece_for_ever(make):
    cache = make(sink=0, contiguous=True)
    for _ in range(16):
        roll(cache, 1, commit=False)
        with cache[0].get() as view:
            array = view.numpy("k")
            assert len(view.pieces) == 1
            assert (array[:, 0, 0] == view.rows).all()
            del array
        cache.commit()
    assert cache.stats.gathers == 0


def test_contiguous_keeps_sink_and_kept_rows_as_pieces_of_their_own(make):
    cache = make(contiguous=True, keep=3)
    roll(cache, 5)
    cache.keep(9, 3)
    roll(cache, 8)
    roll(cache, 1, commit=False)

    with cache[0].get() as view:
        assert [piece.kind for piece in view] == ["sink", "kept", "past"]
        assert view.open_row == 39 and view.end_row == 42


def test_a_batch_of_lanes_in_step_is_one_array(make, rng):
    cache = make(lanes=3, layers=1, sink=0, contiguous=True)
    for _ in range(9):
        batch = rng.standard_normal((3, 3, 2, 8), np.float32)
        cache[0].update(batch, batch)
        cache.commit()

    with cache[0].get() as views:
        array = views.numpy("v")
        assert array.shape == (3, 12, 2, 8) and (array[:, -3:] == batch).all()
        assert mapping_of(array.ctypes.data)
        del array
    assert cache.stats.gathers == 0


# DLPack.

@pytest.mark.parametrize("type", ["f32", "bf16", "f16"])
def test_torch_takes_pieces_where_they_lie(make, rng, type):
    torch = pytest.importorskip("torch")
    cache = make(type=type)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[type]
    values = torch.from_numpy(rows(rng, 3)).to(dtype)
    for layer in range(2):
        cache[layer].update(values, values)
    cache.commit()

    with cache[1].get() as view:
        tensor = view.tensor("v")
        assert tensor.dtype == dtype and torch.equal(tensor, values)
        assert tensor.data_ptr() == view["v"][0].address
        with pytest.raises(BufferError):
            view.release()
        del tensor
    assert cache.stats.gathers == 0


def test_a_gather_of_bf16_is_bfloat16(make):
    torch = pytest.importorskip("torch")
    cache = make(type="bf16")
    roll(cache, 7)

    with cache[0].get() as view:
        tensor = view.tensor("k")
        assert tensor.dtype == torch.bfloat16
        assert tensor[:, 0, 0].int().tolist() == view.rows.tolist()


def test_numpy_takes_dlpack_of_f32(make):
    cache = make()
    roll(cache, 1)

    with cache[0].get() as view:
        array = np.from_dlpack(view["k"][0])
        assert array.ctypes.data == view["k"][0].address
        del array


def test_a_capsule_that_nobody_takes_lets_go(make):
    cache = make()
    roll(cache, 1)

    with cache[0].get() as view:
        for version in (None, (1, 0)):
            capsule = view["k"][0].__dlpack__(max_version=version)
            with pytest.raises(BufferError):
                view.release()
            del capsule


def test_dlpack_of_version_1_says_read_only(make):
    cache = make()
    roll(cache, 1)

    with cache[0].get() as view:
        capsule = view["k"][0].__dlpack__(max_version=(1, 1))
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        words = (ctypes.c_uint64 * 4).from_address(get(capsule, b"dltensor_versioned"))
        assert words[0] & 0xFFFFFFFF == 1 and words[3] & 1 == 1  # version, flags
        del capsule
        assert view["k"][0].__dlpack_device__() == (1, 0)


def test_writing_into_a_readers_rows_is_impossible(make, client):
    """The mapping is read-only: a process that tries it dies, the rows stay."""
    torch = pytest.importorskip("torch")
    cache = make()
    roll(cache, 1)
    pid = os.fork()
    if pid == 0:
        try:
            faulthandler.disable()
            with kvwheel.connect() as own:
                view = kvwheel.RollingKVCache.attach(cache.name, client=own)[0].get()
                view.tensor("k").fill_(9)
        finally:
            os._exit(1)

    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) and torch is not None
    assert seen(cache[0]) == [0, 1, 2]


# Attention.

def oracle(q, k, v, scale=None, bias=None, sink=None, hide=None):
    """Attention in double, heads repeated for GQA. hide: [queries, rows], True: not seen."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (np.asarray(part, np.float64) for part in (q, k, v))
    k, v = (np.repeat(part, group, axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
    if bias is not None:
        scores = scores + bias
    if hide is not None:
        scores = np.where(hide, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.asarray(sink)[:, None, None] - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / total, v)


def random_window(cache, rng, n_chunks):
    """Random rows; returns all of them, by number."""
    all_k, all_v = [], []
    for _ in range(n_chunks):
        k, v = rows(rng, 3), rows(rng, 3)
        for layer in range(2):
            cache[layer].update(k, v)
        cache.commit()
        all_k.append(k)
        all_v.append(v)
    return np.concatenate(all_k), np.concatenate(all_v)


@pytest.mark.parametrize("contiguous", [False, True])
def test_attention_takes_pieces_as_they_are(make, rng, contiguous):
    cache = make(contiguous=contiguous, keep=3)
    k, v = random_window(cache, rng, 5)
    cache.keep(9, 3)
    more = random_window(cache, rng, 11)
    k, v = np.concatenate([k, more[0]]), np.concatenate([v, more[1]])
    q = rows(rng, 5, heads=4)

    with cache[1].get() as view:
        assert 9 in view.rows and len(view.pieces) >= 3
        out, lse = kvwheel.attention(q, view, lse=True)
        want = oracle(q, k[view.rows], v[view.rows])
        assert np.abs(out - want).max() < 1e-6 and lse.shape == (5, 4)
    assert cache.stats.gathers == 0


@pytest.mark.parametrize("contiguous", [False, True])
def test_bias_by_class(make, rng, contiguous):
    cache = make(contiguous=contiguous)
    k, v = random_window(cache, rng, 6)
    new_k, new_v, q = rows(rng, 3), rows(rng, 3), rows(rng, 3)
    cache[0].update(new_k, new_v)
    k, v = np.concatenate([k, new_k]), np.concatenate([v, new_v])

    with cache[0].get() as view:
        out = kvwheel.attention(q, view, bias={"past": math.log(0.3)})
        bias = np.where((view.rows >= 3) & (view.rows < 18), math.log(0.3), 0)
        assert np.abs(out - oracle(q, k[view.rows], v[view.rows], bias=bias)).max() < 1e-6


def test_each_query_of_kind_row_has_its_own_window(make, rng):
    cache = make(window_kind="row", sink=2, window=7)
    k, v = random_window(cache, rng, 7)
    new_k, new_v, q = rows(rng, 3), rows(rng, 3), rows(rng, 3, heads=4)
    cache[0].update(new_k, new_v)
    k, v = np.concatenate([k, new_k]), np.concatenate([v, new_v])
    sinks = rng.standard_normal(4, np.float32)
    at, of = np.arange(21, 24)[:, None], np.arange(24)[None]
    hide = (of > at) | ((of <= at - 5) & (of >= 2))

    with cache[0].get() as view:
        out = kvwheel.attention(q, view, sink_logits=sinks)
    assert np.abs(out - oracle(q, k, v, sink=sinks, hide=hide)).max() < 1e-6


def test_raw_keys_are_rotated_on_read(make, rng):
    cache = make(positions="window")
    k, v = random_window(cache, rng, 9)
    rope = kvwheel.Rope.line(32, 8, layout="interleaved")
    q = rows(rng, 2)

    with cache[0].get() as view:
        out = kvwheel.attention(rope.rotate(q, 10), view, rope=rope)
        keys = rope.rotate(k[view.rows], 0)  # index in the window
        want = oracle(rope.rotate(q, 10), keys, v[view.rows])
    assert np.abs(out - want).max() < 1e-6


def test_attention_to_a_view_and_to_rows_besides(make, rng):
    cache = make()
    k, v = random_window(cache, rng, 2)
    own_k, own_v, q = rows(rng, 4), rows(rng, 4), rows(rng, 4)

    with cache[0].get() as view:
        out = kvwheel.attention(q, view, also=(own_k, own_v))
    assert np.abs(out - oracle(q, np.concatenate([k, own_k]),
                               np.concatenate([v, own_v]))).max() < 1e-6
    cache.set_mode("skip")
    with cache[0].get() as view:
        out = kvwheel.attention(q, view, also=(own_k, own_v))
    assert np.abs(out - oracle(q, own_k, own_v)).max() < 1e-6


@pytest.mark.parametrize("lanes, batch", [(1, 3), (3, 3), (2, 6)])
def test_batches_broadcast_equal_or_multiple(make, rng, lanes, batch):
    cache = make(lanes=lanes, layers=1)
    k = rng.standard_normal((lanes, 3, 2, 8), np.float32)
    cache[0].update(k if lanes > 1 else k[0], k if lanes > 1 else k[0])
    q = rng.standard_normal((batch, 2, 2, 8), np.float32)

    with cache[0].get() as view:
        out = kvwheel.attention(q, view)
    for i in range(batch):
        lane = i // (batch // lanes)
        assert np.abs(out[i] - oracle(q[i], k[lane], k[lane])).max() < 1e-6


def test_a_batch_that_no_rule_fits_is_refused(make):
    cache = make(lanes=2, layers=1)
    q = np.zeros((3, 2, 2, 8), np.float32)

    with cache[0].get() as view, pytest.raises(ValueError, match="need 1, 2 or a multiple"):
        kvwheel.attention(q, view)


def test_attention_of_bf16_in_and_out(make, rng):
    torch = pytest.importorskip("torch")
    cache = make(type="bf16")
    roll(cache, 1)
    q = torch.from_numpy(rows(rng, 3)).bfloat16()

    with cache[0].get() as view:
        out = kvwheel.attention(q, view)
    assert out.dtype == torch.bfloat16 and out.shape == q.shape


def test_int8_rows_are_quantised_and_attended_to(make, rng):
    cache = make(type="i8", layers=1)
    all_k, all_v = [], []
    for _ in range(9):
        k, v = rows(rng, 3), rows(rng, 3)
        cache[0].update(k, v)
        cache.commit()
        all_k.append(k)
        all_v.append(v)
    q = rows(rng, 4, heads=4)

    with cache[0].get() as view:
        out = kvwheel.attention(q, view)
        k, v = (np.concatenate(part)[view.rows] for part in (all_k, all_v))
        back = [view.numpy(plane) * view.numpy(f"{plane}_scale") for plane in ("k", "v")]
        own = rows(rng, 4), rows(rng, 4)
        beside = kvwheel.attention(q, view, also=own)
    assert np.abs(back[0] - k).max() < 0.02 and np.abs(back[1] - v).max() < 0.02
    # Some variants take the queries as int8 as well; tests/kernels has the exact bounds.
    assert np.abs(out - oracle(q, *back)).max() < 0.03
    want = oracle(q, *(np.concatenate(part) for part in zip(back, own)))
    assert np.abs(beside - want).max() < 0.03


def test_attention_refuses_in_words(make):
    cache = make()
    roll(cache, 1)
    q = np.zeros((1, 2, 8), np.float32)

    with cache[0].get() as view:
        with pytest.raises(ValueError, match="head_dim 8"):
            kvwheel.attention(np.zeros((1, 2, 7), np.float32), view)
        with pytest.raises(ValueError, match=r"need \[2\]"):
            kvwheel.attention(q, view, sink_logits=[0.0])
        with pytest.raises(ValueError, match="2 positions in the tables"):
            kvwheel.attention(q, view, rope=kvwheel.Rope.line(2, 8))


# Linear attention.

def test_sums_and_queries_are_those_of_the_formula(rng):
    k, turned_k, q, turned_q = (rows(rng, 7) for _ in range(4))
    v = rng.standard_normal((7, 2, 6), np.float32)
    more = kvwheel.linear_sums(turned_k, v)
    vk, k_sum = kvwheel.linear_sums(k, v, turned_k)
    assert np.abs(vk - np.einsum("nhd,nhk->hdk", v, turned_k, dtype=np.float64)).max() < 1e-5
    assert np.abs(k_sum - k.sum(0, np.float64)).max() < 1e-5

    out = kvwheel.linear_attention(q, [(vk, k_sum), more], turned_q, eps=30)
    above = np.einsum("hdk,nhk->nhd", vk + more[0], turned_q, dtype=np.float64)
    below = np.einsum("hk,nhk->nh", k_sum + more[1], q, dtype=np.float64) + 30
    assert np.abs(out - above / below[..., None]).max() < 1e-5
    with pytest.raises(ValueError, match="states: need f32"):
        kvwheel.linear_attention(q, [(vk[:1], k_sum)])
    with pytest.raises(ValueError, match="rows, heads, elems"):
        kvwheel.linear_sums(k[0], v)


# Rotary tables.

def test_a_grid_rotates_by_frame_row_and_column(rng):
    rope = kvwheel.Rope.grid((4, 2, 3), (4, 2, 2))
    x = rows(rng, 24)

    turned = rope.rotate(x, 0).astype(np.float64)
    token = 2 * 6 + 1 * 3 + 2  # frame 2, row 1, column 2
    pairs = x[token].reshape(2, 4, 2).astype(np.float64)
    angles = np.array([2 * 1.0, 2 * 0.01, 1.0, 2.0])
    want = np.stack([pairs[..., 0] * np.cos(angles) - pairs[..., 1] * np.sin(angles),
                     pairs[..., 1] * np.cos(angles) + pairs[..., 0] * np.sin(angles)], -1)
    assert np.abs(turned[token] - want.reshape(2, 8)).max() < 1e-6


def test_a_shift_by_frames_is_the_rotation_at_another_frame(rng):
    rope = kvwheel.Rope.grid((6, 2, 2), (4, 2, 2))
    x = rows(rng, 4)

    assert np.abs(rope.shift(rope.rotate(x, 8), 3 * 4 - 4) - rope.rotate(x, 16)).max() < 1e-5
    assert np.abs(rope.rotate(rope.rotate(x, 8), 8, sign=-1) - x).max() < 1e-6


def test_a_shift_that_is_no_whole_frame_is_refused(rng):
    rope = kvwheel.Rope.grid((6, 2, 2), (4, 2, 2))

    with pytest.raises(ValueError, match="multiple of 4"):
        rope.shift(rows(rng, 4), 3)


@pytest.mark.parametrize("type", ["float32", "float16", "bfloat16", "float64"])
def test_any_positions_and_types_are_rotated_as_in_double(rng, type):
    torch = pytest.importorskip("torch")
    rope = kvwheel.Rope.line(40, 6, theta=100.0)
    at = np.array([0, 1, 2, 9, 9, 30, 31])
    x = torch.from_numpy(rng.standard_normal((2, 7, 3, 8), np.float32)).to(getattr(torch, type))
    turned = rope.rotate(x.transpose(2, 3).contiguous().transpose(2, 3), at)

    assert turned.dtype == x.dtype
    angles = np.outer(at, 100.0 ** (-np.arange(3) / 3))[None, :, None]
    a, b = x[..., :3].double().numpy(), x[..., 3:6].double().numpy()
    want = np.concatenate([a * np.cos(angles) - b * np.sin(angles),
                           b * np.cos(angles) + a * np.sin(angles), x[..., 6:].double()], -1)
    bound = {"float16": 2e-3, "bfloat16": 2e-2}.get(type, 1e-6)
    assert np.abs(turned.double().numpy() - want).max() < bound


def test_positions_beyond_the_tables_are_refused(rng):
    rope = kvwheel.Rope.line(8, 8)

    for position in (-1, 6):
        with pytest.raises(ValueError, match="0 to 7"):
            rope.rotate(rows(rng, 3), position)
