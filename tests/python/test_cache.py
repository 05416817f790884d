# SPDX-License-Identifier: Apache-2.0
"""RollingKVCache: specs, steps, lanes, groups, modes, refusals, processes."""

import errno
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import kvwheel
import numpy as np
import pytest

SOURCE = Path(os.environ["KVW_SOURCE"])


def rows(rng, n, heads=2, elems=8):
    return rng.standard_normal((n, heads, elems), np.float32)


def numbered(first, n, heads=2, elems=8):
    """Rows whose every element is their number."""
    return np.broadcast_to(np.arange(first, first + n, dtype=np.float32)[:, None, None],
                           (n, heads, elems))


def seen(layer, **how):
    """Numbers of the rows that a layer of one lane shows."""
    with layer.get(**how) as view:
        return view.numpy("k")[:, 0, 0].astype(int).tolist()


def roll(cache, n_chunks, chunk=3, layers=2, commit=True):
    """Chunks of numbered rows in every layer."""
    for _ in range(n_chunks):
        first = cache.lane(cache.lanes[0]).rows()
        for layer in range(layers):
            cache[layer].update(numbered(first, chunk), numbered(first, chunk))
        if commit:
            cache.commit()


# Specs.

def test_every_preset_survives_the_way_through_python():
    for name in kvwheel.Spec.presets():
        spec = kvwheel.Spec.preset(name)
        assert kvwheel.Spec.of_struct(spec.to_struct()) == spec
        assert spec.check().size().total > 0


def test_a_config_gives_groups():
    path = SOURCE / "examples/generate/model/config.json"
    spec = kvwheel.Spec.config(path, type="f32", context=128)

    assert spec.groups[0].planes[0] == kvwheel.Plane("k", "f32", spec.groups[0].planes[0].elems,
                                                     spec.groups[0].planes[0].rotated)


@pytest.mark.parametrize("change, text", [
    ({"window": 5}, "self"), ({"policy": "grow"}, "roll, refuse"), ({"chunk": 0}, "self")])
def test_a_spec_that_cannot_be_is_refused_in_words(change, text):
    group = {"window": 12, "chunk": 3, "sink": 3, "planes": kvwheel.kv_planes("f32", 8), **change}
    spec = kvwheel.Spec("bad", [kvwheel.Group("self", 2, 2, **group)])

    with pytest.raises(ValueError, match=text):
        spec.check()


def test_an_unknown_preset_lists_the_names():
    with pytest.raises(kvwheel.NotFound, match="longlive-1.3b"):
        kvwheel.Spec.preset("longlife")


def test_a_creation_tells_how_far_it_is(client, name):
    told = []
    spec = kvwheel.Spec(name, [kvwheel.Group("self", 8, 8, window=4096, chunk=64,
                                             planes=kvwheel.kv_planes("f32", 64))])
    assert client.create(spec, progress=lambda done, total: told.append((done, total)))
    assert not client.create(spec)
    client.remove(name, force=True)

    assert all(done <= total for done, total in told)


def test_a_cache_says_what_it_is_made_of():
    with pytest.raises(ValueError, match="preset, config or spec"):
        kvwheel.RollingKVCache()


# Rolling.

def test_the_window_rolls_past_four_windows(make):
    cache = make()

    for chunk in range(16):
        roll(cache, 1, commit=False)
        first = 3 * chunk
        assert seen(cache[0]) == sorted({*range(min(3, first + 3)),
                                         *range(max(0, first - 6), first + 3)})
        cache.commit()


def test_passes_overwrite_and_commit_leaves_the_last(make, rng):
    cache = make()
    noise, clean = rows(rng, 3), rows(rng, 3)
    for values in (noise, noise * 2, clean):
        cache[0].update(values, values)
        cache[1].update(values, values)
    cache.commit()

    with cache[1].get() as view:
        assert (view.numpy("v") == clean).all()


def test_begin_says_positions_and_evictions_first(make):
    cache = make(positions="window")
    roll(cache, 5)
    begun = cache.begin(3)["self"]

    assert (begun.row, begun.position, list(begun.evicted)) == (15, 9, [6, 7, 8])


def test_commit_refuses_a_layer_that_is_not_written(make):
    cache = make()
    cache[0].update(numbered(0, 3), numbered(0, 3))

    with pytest.raises(kvwheel.Incomplete, match="layer 1"):
        cache.commit()


def test_commit_may_publish_fewer_rows(make):
    cache = make(window_kind="row")
    roll(cache, 2, commit=False)
    cache.commit(2)

    assert cache.lane(0).rows() == 2 and seen(cache[0]) == [0, 1]


def test_abort_forgets(make):
    cache = make()
    roll(cache, 1)
    roll(cache, 1, commit=False)
    cache.abort()

    assert seen(cache[0]) == [0, 1, 2]


def test_truncate_evict_and_keep(make):
    cache = make(keep=3, slack=2)
    roll(cache, 5)
    cache.keep(9, 3)
    cache.evict(12)
    assert seen(cache[0]) == [0, 1, 2, 9, 10, 11, 12, 13, 14]
    roll(cache, 4)
    assert seen(cache[0]) == [0, 1, 2, 9, 10, 11, *range(18, 27)]
    low = cache.lane(0).lowest()
    cache.truncate(low)
    assert cache.lane(0).rows() == low
    with pytest.raises(kvwheel.OutOfRange, match=str(low)):
        cache.truncate(low - 1)


def test_reset_of_a_layer_a_group_and_all(make):
    cache = make()
    roll(cache, 2)
    cache[0].reset()
    assert seen(cache[0]) == [] and len(seen(cache[1])) == 6
    cache.reset("self", epoch=7)
    state = cache.lane(0).state().groups["self"]
    assert (state.rows, state.generation, state.epoch) == (0, 2, 7)
    roll(cache, 1)
    cache.reset_state()
    assert cache.lane(0).rows() == 0


def test_reset_before_the_first_update_is_fine(make):
    cache = make()
    cache[0].reset()
    cache.reset_state()
    roll(cache, 1)

    assert seen(cache[0]) == [0, 1, 2]


def test_a_chunk_longer_than_the_spec_says_is_refused(make):
    cache = make()

    with pytest.raises(kvwheel.Invalid, match="1 to 3"):
        cache[0].update(numbered(0, 4), numbered(0, 4))
    assert cache.lane(0).state().groups["self"].open == 0


@pytest.mark.parametrize("shape", [(3, 2, 7), (3, 1, 8), (2, 3, 2, 8), (3, 16)])
def test_a_shape_that_does_not_fit_is_refused_in_words(make, shape):
    cache = make()

    with pytest.raises(ValueError, match=r"need \["):
        cache[0].update(np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def test_rows_may_have_any_strides(make, rng):
    cache = make(layers=1)
    wide = rng.standard_normal((2, 3, 16), np.float32)  # heads first, every other element
    k, v = wide[:, ::-1, ::2].transpose(1, 0, 2), wide[:, :, 8:].transpose(1, 0, 2)
    cache[0].update(k, v)

    with cache[0].get() as view:
        assert (view.numpy("k") == k).all() and (view.numpy("v") == v).all()


def test_rows_written_in_place_are_the_same(make, rng):
    cache = make(layers=1)
    roll(cache, 3, layers=1)
    values = rows(rng, 3)
    slots = cache[0].slots(3)
    for plane in ("k", "v"):
        at = 0
        for run in slots[plane]:
            run.numpy()[:] = values[at : at + run.shape[0]]
            at += run.shape[0]
    slots.written()
    cache.commit()

    with cache[0].get() as view:
        assert (view.numpy("v")[-3:] == values).all()


@pytest.mark.parametrize("type", ["bf16", "f16"])
def test_rows_of_f32_are_converted_and_counted(make, rng, type):
    torch = pytest.importorskip("torch")
    cache = make(layers=1, type=type)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[type]
    values = torch.from_numpy(rows(rng, 3))
    cache[0].update(values, values.to(dtype))

    with cache[0].get() as view:
        assert (view.tensor("k") == values.to(dtype)).all()
        assert (view.tensor("v") == values.to(dtype)).all()
    assert cache.stats.conversions == 2 and cache.stats.conversion_bytes == 2 * 3 * 2 * 8 * 2


def test_rows_that_change_behind_the_caches_back_are_found(client, name, rng):
    spec = kvwheel.Spec(name, [kvwheel.Group("self", 1, 2, window=12, chunk=3,
                                             planes=kvwheel.kv_planes("f32", 8))],
                        checksums=True)
    with kvwheel.RollingKVCache(spec=spec, client=client) as cache:
        assert cache.spec.checksums
        slots = cache[0].slots(3)
        for plane in ("k", "v"):
            slots[plane][0].numpy()[:] = rows(rng, 3)
        slots.written()
        cache.commit()
        assert cache.verify() == []
        slots["v"][0].numpy()[1, 0, 0] += 1
        damages = cache.verify()
        assert len(damages) == 1 and "row" in damages[0]
        del slots


# Lanes, groups, modes.

def test_lanes_are_a_batch_or_one_by_one(make, rng):
    cache = make(lanes=3, layers=1)
    batch = rng.standard_normal((3, 3, 2, 8), np.float32)
    cache[0].update(batch, -batch)
    cache.commit()
    other = rows(rng, 2)
    cache.lane(1)[0].update(other, other)
    cache.lane(1).commit()

    assert [cache.lane(i).rows() for i in range(3)] == [3, 5, 3]
    with cache[0].get() as views:
        assert views.n_rows == [3, 5, 3]
        assert (views[2].numpy("v") == -batch[2]).all()
        assert (views[1].numpy("k")[3:] == other).all()
        with pytest.raises(ValueError, match="different lengths"):
            views.numpy("k")


def test_modes_write_read_and_skip(make):
    cache = make(lanes=2, layers=1)
    both = np.stack([numbered(0, 3)] * 2)
    cache[0].update(both, both)
    cache.commit()
    cache.lane(0).set_mode("read")
    cache.lane(1).set_mode("skip")

    assert not cache[0].update(both, both)
    assert seen(cache.lane(0)[0]) == [0, 1, 2] and seen(cache.lane(1)[0]) == []
    cache.lane(1).set_mode("read")
    assert seen(cache.lane(1)[0]) == [0, 1, 2]
    with pytest.raises(ValueError, match="write, read, skip"):
        cache.set_mode("append")


def cross_spec(name):
    planes = kvwheel.kv_planes("f32", 8)
    return kvwheel.Spec(name, [
        kvwheel.Group("self", [0, 1], 2, window=12, chunk=3, planes=planes),
        kvwheel.Group("cross", [0, 1], 2, window=5, chunk=5, planes=planes, policy="refuse")])


def test_groups_that_fill_up_take_what_was_written(client, name):
    """As a video model's forward pass goes: self and cross of a layer, then the next."""
    with kvwheel.RollingKVCache(spec=cross_spec(name), client=client) as cache:
        for chunk in range(6):
            for layer in range(2):
                cache["self", layer].update(numbered(3 * chunk, 3), numbered(3 * chunk, 3))
                if chunk == 0:
                    cache["cross", layer].update(numbered(100, 4), numbered(100, 4))
                assert seen(cache["cross", layer]) == [100, 101, 102, 103]
            cache.commit()
        assert (cache.lane(0).rows("self"), cache.lane(0).rows("cross")) == (18, 4)
        cache.reset("cross", epoch=1)
        assert seen(cache["cross", 0]) == [] and len(seen(cache["self", 0])) == 12


def test_text_and_image_have_groups_of_their_own(client, name):
    planes = kvwheel.kv_planes("f32", 8)
    spec = kvwheel.Spec(name, [
        kvwheel.Group(group, [0], 2, window=5, chunk=5, planes=planes, policy="refuse")
        for group in ("text", "image")])
    with kvwheel.RollingKVCache(spec=spec, client=client) as cache:
        for first, group in enumerate(("text", "image")):
            cache[group, 0].update(numbered(first, 2), numbered(first, 2))
        cache.commit()
        cache.reset("text")
        assert seen(cache["text", 0]) == [] and seen(cache["image", 0]) == [1, 2]


def test_rows_carry_no_gradient(make):
    torch = pytest.importorskip("torch")
    cache = make(layers=1)
    k = torch.ones(3, 2, 8, requires_grad=True)
    cache[0].update(k * 2, k)

    with cache[0].get() as view:
        assert not view.tensor("k").requires_grad


def test_a_group_that_fills_up_may_be_written_alone(client, name):
    with kvwheel.RollingKVCache(spec=cross_spec(name), client=client) as cache:
        for layer in range(2):
            cache["cross", layer].update(numbered(0, 5), numbered(0, 5))
        with pytest.raises(ValueError, match="names all groups"):
            cache["self", 0].update(numbered(0, 3), numbered(0, 3))
        cache.commit()
        assert seen(cache["cross", 1]) == [0, 1, 2, 3, 4]
        with pytest.raises(kvwheel.Full, match="cross"):
            cache["cross", 0].update(numbered(0, 1), numbered(0, 1))


def test_two_ranks_of_heads_write_what_one_would(client, make, rng):
    cache = make(parts=2)
    other = kvwheel.RollingKVCache(name=cache.name, rank=1, client=client)
    reader = kvwheel.RollingKVCache.attach(cache.name, client=client)
    values = rows(rng, 3)
    for part, heads in ((cache, slice(0, 1)), (other, slice(1, 2))):
        for layer in range(2):
            part[layer].update(values[:, heads], values[:, heads])
        part.commit()

    reader.lane(0).wait_step(1, timeout=10)
    with reader[1].get() as view:
        assert (view.numpy("k") == values).all() and view.step == 1
    with pytest.raises(kvwheel.Denied):
        reader.begin(3)
    other.close()
    reader.close()


def test_ranks_and_readers_see_each_others_staged_rows(client, make, rng):
    cache = make(parts=2)
    with kvwheel.connect() as own:
        other = kvwheel.RollingKVCache(name=cache.name, rank=1, client=own)
        reader = kvwheel.RollingKVCache.attach(cache.name, client=own)
        values = rows(rng, 3)
        for count, factor in enumerate((1, 2, 3), 1):
            cache[0].update(values[:, :1] * factor, values[:, :1])
            other[0].update(values[:, 1:] * factor, values[:, 1:])
            cache[0].wait_written(count, timeout=10)
            for view in (cache[0].cut(staged=True, pinned=False), reader[0].get(staged=True)):
                with view:
                    assert (view.numpy("k") == values * factor).all()
            for part in (cache, other):
                part[0].have_read(count)
            other[0].wait_read(count, timeout=10)
        view = cache[0].cut(staged=True)
        other[0].update(values[:, 1:], values[:, 1:])
        with pytest.raises(kvwheel.Overrun):
            view.release()
        reader.close()
        other.close()


# Waiting, processes, ends.

def test_a_wait_that_nobody_ends_says_who_is_late(make):
    cache = make()

    with pytest.raises(kvwheel.TimedOut, match="step"):
        cache.lane(0).wait_step(1, timeout=0.05)


def test_a_rank_that_ends_between_two_slices_of_a_wait_is_noticed(make, monkeypatch):
    """The library says so of one that ends in a slice; python waits in many."""
    cache, answers = make(), iter([True, False])
    monkeypatch.setattr(type(cache._core), "_is_owned", lambda *_: next(answers))

    with pytest.raises(kvwheel.OwnerDied, match="rank 0 ended"):
        cache._core.wait(0, 0, 5, lambda _: -errno.ETIMEDOUT)


def test_a_wait_in_another_thread_ends_with_the_commit(make):
    cache = make()
    with kvwheel.connect() as client:
        reader = kvwheel.RollingKVCache.attach(cache.name, client=client)
        done = []
        thread = threading.Thread(
            target=lambda: (reader.lane(0).wait_rows(3, timeout=20), done.append(True)))
        thread.start()
        roll(cache, 1)
        thread.join(20)
        assert done == [True]
        reader.close()


def test_a_fork_must_connect_for_itself(make):
    cache = make()
    pid = os.fork()
    if pid == 0:
        try:
            cache[0].update(numbered(0, 3), numbered(0, 3))
            os._exit(1)
        except kvwheel.Forked:
            os._exit(0)
        finally:
            os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    roll(cache, 1)
    assert seen(cache[0]) == [0, 1, 2]


def test_a_cache_goes_with_the_program_that_forgets_it(client, name):
    cache = kvwheel.RollingKVCache(spec=cross_spec(name))  # a connection of its own
    layer = cache[0]
    del cache, layer

    with pytest.raises(kvwheel.NotFound):
        kvwheel.RollingKVCache.attach(name, client=client)


def test_another_python_without_numpy_gets_a_clear_message():
    program = textwrap.dedent("""
        import sys
        sys.modules["numpy"] = None  # as if there were none
        import kvwheel
    """)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert run.returncode == 1
    assert "needs numpy" in run.stderr and sys.executable in run.stderr
    assert "python3-numpy" in run.stderr and "/usr/bin/python3" in run.stderr


def test_a_missing_library_says_where_it_was_looked_for(monkeypatch):
    from kvwheel import _native
    monkeypatch.setenv("KVWHEEL_LIBRARY_DIR", "/somewhere")
    monkeypatch.setitem(_native._LIBRARIES, "nothing", "nothing")

    with pytest.raises(ImportError, match="libnothing.so.0 was not found: not in /somewhere, "):
        _native._load("nothing")


def test_types_are_importable_everywhere():
    assert (Path(kvwheel.__file__).parent / "py.typed").exists()
    assert all(getattr(kvwheel, name).__doc__ for name in kvwheel.__all__
               if callable(getattr(kvwheel, name)))


@pytest.mark.parametrize("order", ["cache, view, array", "array, view, cache"])
def test_garbage_that_goes_in_one_circle_is_harmless(name, order):
    """Finalizers of a circle run in any order; also at the end of the interpreter."""
    program = textwrap.dedent(f"""
        import kvwheel, numpy as np
        spec = kvwheel.Spec("{name}", [kvwheel.Group("self", 1, 1, window=4, chunk=2,
                                                     planes=kvwheel.kv_planes("f32", 8))])
        for how in ("collected", "at the end"):
            cache = kvwheel.RollingKVCache(spec=spec)
            cache[0].update(*np.ones((2, 2, 1, 8), np.float32))
            view = cache[0].get()
            array = view["k"][0].numpy()
            class Circle: pass
            circle = Circle()
            circle.all = (circle, {order})
            if how == "collected":
                del circle, cache, view, array
                import gc
                gc.collect()
        print("done")
    """)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
