# SPDX-License-Identifier: Apache-2.0
"""Every family: the same model code over its in-process cache and over kvwheel, by tensors
and by pieces, three windows and more; and the same calls from C, bit for bit: rows, rotations,
attention, sums and what linear attention makes of them.

The models and the in-process caches, which are plain references of what the families'
public implementations do, are those of examples/python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(os.environ["KVW_SOURCE"]) / "examples/python"))

import glm_image  # noqa: E402
import inprocess  # noqa: E402
import sana  # noqa: E402
import text  # noqa: E402
import video  # noqa: E402
from kvwheel import families  # noqa: E402
from trace import Trace  # noqa: E402

BOUND = 1e-5


def chunks(n, frames=3):
    return [("chunk", frames)] * n


def video_case(ops, contiguous=True, batch=1, **geometry):
    """A table row of video: what is played, and the cache's geometry (frames)."""
    geometry = {"window": 9, "chunk": 3, "sink": 3, **geometry}
    geometry.update(layers=2, batch=batch, heads=video.HEADS, head_dim=video.HEAD_DIM,
                    frame_rows=video.FRAME, text_rows=8)

    def play(is_kvwheel, pieces, client, name):
        cache = (families.VideoCache(**geometry, contiguous=contiguous, client=client, name=name)
                 if is_kvwheel else inprocess.VideoCache(**geometry))
        player = video.Player(cache, video.Model(max_frames=96), batch, pieces)
        for op, *arguments in ops:
            if op in ("chunk", "switch", "interpolate", "krea_block"):
                getattr(player, op)(*arguments)
            else:
                player.call(op, *arguments)
        return player.outputs, cache
    return play


def linear_case(ops, batch=1, blocks=3, at=None):
    """A table row of SANA. at: over kvwheel, each chunk is at that frame, and sums are
    re-based to it; the in-process cache's model stays at absolute frames."""
    geometry = dict(layers=2, batch=batch, heads=sana.HEADS, head_dim=sana.HEAD_DIM,
                    tail_elems=sana.TAIL, blocks=blocks)

    def play(is_kvwheel, pieces, client, name):
        cache = (families.LinearCache(**geometry, client=client, name=name) if is_kvwheel
                 else inprocess.LinearCache(**geometry))
        player = sana.Player(cache, sana.Model(), batch, pieces=pieces,
                             at=at if is_kvwheel else None)
        for op, *arguments in ops:
            getattr(player, op)(*arguments)
        return player.outputs, cache
    return play


def image_case(samples, batch, lanes=None):
    def play(is_kvwheel, pieces, client, name):
        cache = (families.ImageCache(2, lanes or len(samples), glm_image.HEADS,
                                     glm_image.HEAD_DIM, rows=40, client=client, name=name)
                 if is_kvwheel else inprocess.ImageCache(2))
        outputs = []
        for _ in range(2):  # a second request finds nothing of the first
            outputs += glm_image.generate(cache, glm_image.Model(), samples, batch,
                                          pieces=pieces)
        return outputs, cache
    return play


def text_case(layers, tokens=60, chunk=8, sink=0, is_streaming=False, batch=1, drafts=0,
              **model):
    def play(is_kvwheel, pieces, client, name):
        positions = "window" if is_streaming else "absolute"
        cache = (families.TextCache(families.TextCache.spec(
            name, layers, text.HEADS, text.HEAD_DIM, context=256, chunk=chunk, sink=sink,
            positions=positions, lanes=batch), client)
                 if is_kvwheel else inprocess.TextCache(layers, sink, is_streaming))
        prompt = (torch.arange(20 * batch) * 7 % text.VOCABULARY).reshape(batch, 20)
        one = text.Model(layers, is_streaming=is_streaming, **model)
        return text.generate(cache, one, prompt, tokens, chunk, pieces, drafts), cache
    return play


RECACHE = [*chunks(5), ("switch", 1, "{}", 6), *chunks(5), ("switch", 2, "{}", 5), *chunks(4)]


def recache(sink):
    return [tuple(sink if part == "{}" else part for part in op) for op in RECACHE]


CASES = {
    # Self-Forcing and what came of it.
    "self-forcing": video_case(chunks(10), window=7, sink=0),
    "self-forcing-in-pieces": video_case(chunks(10), window=7, sink=0, contiguous=False),
    "causal-forcing-framewise": video_case(chunks(16, 1), window=4, chunk=1, sink=0),
    "first-frame-alone": video_case([("chunk", 1), *chunks(9)], window=7, sink=1),
    "longlive": video_case(chunks(12)),
    "longlive-two-samples": video_case(chunks(12), batch=2),
    "sink-larger-than-a-chunk": video_case(chunks(10), window=10, sink=4, contiguous=False),
    "prompt-switch-sink-and-window-stay": video_case(
        [*chunks(5), ("switch", 1), *chunks(5), ("switch", 2), *chunks(2)]),
    "prompt-switch-sink-kept-window-run-again": video_case(recache("keep")),
    "prompt-switch-sink-dropped": video_case(recache("drop")),
    "prompt-switch-sink-run-again": video_case(recache("recompute")),
    "longlive-2-shots": video_case(
        [*chunks(5), ("keep_last",), ("jump", 8), *chunks(6), ("keep_last", 2), ("jump", 8),
         *chunks(6)], keep=6),
    "longlive-2-relative": video_case(
        [*chunks(5), ("keep_last",), *chunks(9)], keep=3, positions="window"),
    "infinity-rope": video_case(
        [*chunks(5), ("evict_to_last", 2), ("switch", 1), *chunks(5), ("evict_to_last", 2),
         *chunks(4)], sink=1, positions="window"),
    "infinity-rope-in-pieces": video_case(
        [*chunks(5), ("evict_to_last", 2), *chunks(6)], sink=1, positions="window",
        contiguous=False),
    "krea": video_case([("krea_block",)] * 7, window=6, sink=1),
    "krea-prompt-interpolation": video_case(
        [("krea_block",)] * 3 + [op for part in (0.25, 0.33, 0.5, 1.0) for op in (
            ("interpolate", 1, part), ("krea_block",))] + [("krea_block",)] * 2,
        window=6, sink=1),
    "second-video": video_case([*chunks(6), ("reset_state",), *chunks(6)]),
    # SANA-Video.
    "sana-ring-of-sums": linear_case([("chunk", 4), *chunks(11)]),
    "sana-running-sum": linear_case([("chunk", 4), *chunks(9)], blocks=None),
    "sana-two-samples": linear_case([*chunks(11)], batch=2, blocks=2),
    "sana-re-based-sums": linear_case([("chunk", 4), *chunks(11)], batch=2, at=7),
    "sana-re-based-running-sum": linear_case([("chunk", 4), *chunks(9)], blocks=None, at=7),
    "sana-prompt-switch": linear_case([*chunks(6), ("switch", 0.5), *chunks(6)]),
    "sana-running-prompt-switch": linear_case([*chunks(5), ("switch", 0.5), *chunks(5)],
                                              blocks=None),
    # GLM-Image.
    "glm-one-sample-serves-all": image_case([[(2, 3)]], batch=3),
    "glm-as-many-samples": image_case([[(2, 3), (4, 2)], [(2, 4), (2, 3)]], batch=2),
    "glm-a-multiple": image_case([[(2, 3), (4, 2)], [(2, 4), (2, 3)]], batch=6),
    "glm-fewer-samples-than-lanes": image_case([[(2, 3)], [(3, 2)]], batch=2, lanes=4),
    # Language models.
    "mistral": text_case([16, 16]),
    "gemma-3": text_case([16, 16, 16, 16, 16, None]),
    "gpt-oss": text_case([12, None, 12, None], sink_logits=True),
    "gemma-2-softcap": text_case([16, None], softcap=5.0, batch=2),
    "sliding-with-a-sink": text_case([16, None], sink=4),
    "streaming-llm": text_case([16, 16], chunk=1, sink=4, is_streaming=True),
    "speculation": text_case([16, None], drafts=4),
}


@pytest.fixture(scope="module")
def references():
    """Outputs of the in-process caches, by case."""
    return {}


@pytest.mark.parametrize("pieces", [False, True], ids=["tensors", "pieces"])
@pytest.mark.parametrize("case", CASES)
def test_the_model_does_not_see_a_difference(case, pieces, client, name, references,
                                             monkeypatch, tmp_path):
    play = CASES[case]
    if case not in references:
        references[case] = play(False, False, None, None)[0]
    want = references[case]
    trace = Trace(monkeypatch, tmp_path / "trace")

    with trace:
        have, cache = play(True, pieces, client, name)
        gathers = cache.shared.stats.gathers
        cache.close()

    assert len(have) == len(want) > 10
    for number, (a, b) in enumerate(zip(have, want)):
        assert (a - b).abs().max() <= BOUND, f"output {number}"
    assert not (pieces and gathers) or case.startswith("sana")
    assert trace.n_sums > 30 if case.startswith("sana") else trace.n_attends > 10 or not pieces
    run = subprocess.run([os.environ["KVW_REPLAY"], tmp_path / "trace", f"{name}-c"],
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "records are the same" in run.stdout
