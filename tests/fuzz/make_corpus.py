#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Valid samples for the fuzz targets, from which their corpora come.

    make_corpus.py FOLDER
    build/fuzz/tests/fuzz_NAME -max_total_time=300 FOLDER/NAME
    build/fuzz/tests/fuzz_NAME -set_cover_merge=1 -merge_control_file=LIST EMPTY FOLDER/NAME
    make_corpus.py --pick LIST tests/fuzz/corpus/NAME

The first line writes the samples into FOLDER/NAME for each target, the second makes them
more, the third notes in LIST what each covers, the last copies up to forty that cover the
most. Files in a corpus whose name is a word were chosen by hand, most of them once a
finding; they stay.
"""
import hashlib
import json
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def messages():
    """The golden packets of tests/unit."""
    path = os.path.join(ROOT, "tests/unit/messages_golden.def")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for name, strings in re.findall(r"GOLDEN\((\w+),((?:\s*\"[0-9a-f]*\")+)\)", text):
        yield name, bytes.fromhex("".join(re.findall(r"\"([0-9a-f]*)\"", strings)))


# ------------------------------------------------------------------ geometries

def group(name, layers, first, window, chunk, sink=0, keep=0, slack=1, heads=1, policy=1,
          kind=1, positions=1, contiguous=0, planes=(("k", 2, 64), ("v", 2, 64))):
    packed = struct.pack("<QQQQIIIIIBBBB8x16s", window, sink, chunk, keep, slack, layers,
                         first, heads, len(planes), policy, kind, positions, contiguous,
                         name.encode())
    for plane, element, elems in planes:
        packed += struct.pack("<IBBxx16s", elems, element, plane == "k", plane.encode())
    return packed.ljust(272, b"\0")


def geometry(groups, layers, lanes=1, heads=1, layer_parts=1, lane_parts=1, row_parts=1,
             row_block=0):
    """As fuzz_geometry reads it: head, groups, numbers of layers."""
    ranks = heads * layer_parts * lane_parts * row_parts
    head = struct.pack("<IIIIIIIIIIxxxxxxxx", len(groups), lanes, ranks, len(layers), heads,
                       layer_parts, lane_parts, row_parts, row_block, 0)
    return head, b"".join(groups), struct.pack(f"<{len(layers)}H", *layers)


def geometries():
    yield "one", geometry([group("self", 1, 0, 8, 2)], [0])
    yield "video", geometry([group("self", 30, 0, 32760, 4680, sink=4680, heads=12),
                             group("cross", 30, 30, 512, 512, slack=0, policy=2, heads=12)],
                            list(range(30)) * 2, heads=2)
    yield "local", geometry([group("local", 5, 0, 1024, 512, kind=2, heads=4),
                             group("global", 1, 5, 8192, 512, slack=0, policy=2, kind=2,
                                   heads=4)],
                            [0, 1, 2, 3, 4, 5], lanes=2, lane_parts=2)
    yield "twice", geometry([group("self", 2, 0, 256, 16, sink=3, keep=5, contiguous=1,
                                   planes=(("k", 1, 96), ("v", 4, 12), ("s", 3, 3)))],
                            [0, 7], lanes=3, layer_parts=2)
    yield "rows", geometry([group("self", 2, 0, 256, 32, sink=8, keep=16, positions=2)],
                           [4, 5], heads=2, row_parts=4, row_block=16)
    yield "ranks", geometry([group("self", 3, 0, 64, 8, heads=5)], [0, 1, 2], lanes=64,
                            heads=8, layer_parts=4, lane_parts=2)
    yield "wide", geometry([group(f"g{i}", 1, i, 40, 4,
                                  planes=[(f"p{p}", 1 + p % 6, 1 + p) for p in range(8)])
                            for i in range(16)], [0] * 16)
    yield "large", geometry([group("self", 100, 0, 1 << 20, 4096, heads=64)],
                            list(range(100)))


# ------------------------------------------------------------------ control

def small(groups, lanes=1, heads=1, layer_parts=1, lane_parts=1, row_parts=1, row_block=1):
    """As input_geometry() reads it; a group is its bytes in order."""
    shape = len(groups) - 1 | lanes - 1 << 2 | row_block - 1 << 4
    split = heads - 1 | layer_parts - 1 << 2 | lane_parts - 1 << 3 | row_parts - 1 << 4
    return bytes([shape, split]) + b"".join(bytes(g) for g in groups)


# policy | kind | positions | contiguous, sink, chunk - 1, window beyond, keep, slack - 1
# (roll only), heads - 1, layers - 1, planes - 1, then type - 1 and elems - 1 of each
ROLL = [0, 2, 3, 8, 4, 0, 1, 1, 1, 1, 7, 1, 7]
REFUSE = [1, 0, 3, 20, 3, 1, 0, 1, 0, 15, 3, 3]
ROW = [2 | 4, 1, 7, 16, 5, 1, 1, 0, 0, 0, 3]
TWICE = [8, 1, 3, 8, 4, 0, 0, 0, 0, 0, 7]

(POKE, STORM, ATTACH, BEGIN, UPDATE, SLOTS, COMMIT, ABORT, ROUND, GET, RELEASE, CHANGE,
 RESET, LOOK, WAIT, RECOVER, OUTSIDE) = range(17)
TRUNCATE, EVICT, KEEP = range(3)
BACK = 32  # of a number: that much less than its base
STAGED, UNPINNED, CUT = 1, 2, 4


def act(action, *arguments, place=0):
    return bytes([place << 6 | action, *arguments])


def item(name, row=0, n=0):
    """Rows are relative to those committed, n to 1."""
    return [name, 0, row, n]


def rounds(n, lane=0, groups=1, rows=3, place=0):
    return act(ROUND, lane, *[rows] * groups, place=place) * n


def begin_and_write(lane=0, layers=2):
    out = act(BEGIN, lane, 1, *item(0, 0, 2))
    for layer in range(layers):
        out += act(UPDATE, lane, layer, 0, 1) + act(SLOTS, lane, layer, 1, 1)
    return out


def controls():
    looks = act(GET, 0, 0, 0) + act(GET, 0, 1, CUT, place=1) + act(LOOK, 0, 0, 0)
    ends = act(RELEASE, 0) + act(RELEASE, 1)
    yield "roll", small([ROLL]) + rounds(6) + looks + rounds(1) + ends
    yield "refuse", small([REFUSE]) + rounds(9) + looks + ends
    yield "both", (small([ROLL, REFUSE], lanes=2) + rounds(3, groups=2) +
                   rounds(3, lane=1, groups=2) + looks + ends)
    yield "row", small([ROW]) + rounds(5) + begin_and_write(layers=1) + act(
        GET, 0, 0, STAGED) + looks + act(COMMIT, 0, 0) + ends
    yield "twice", small([TWICE], heads=2) + rounds(4) + looks + rounds(2) + ends
    yield "open", small([ROLL]) + begin_and_write() + act(GET, 0, 0, STAGED) + act(
        ABORT, 0) + begin_and_write() + act(COMMIT, 0, 1, *item(0, 0, 0))
    changes = (act(CHANGE, KEEP, 0, 1, *item(0, BACK | 4, 1)) + looks +
               act(CHANGE, KEEP, 0, 1, *item(0, BACK | 4, BACK | 1)) +
               act(CHANGE, EVICT, 0, 1, *item(0, BACK | 3, 0)) +
               act(CHANGE, TRUNCATE, 0, 1, *item(0, BACK | 1, 0)) +
               act(RESET, 0, 1, 0) + act(RESET, 0, 2) + act(RESET, 0, 0))
    yield "changes", small([ROLL]) + rounds(3) + changes + ends
    yield "ranks", (small([ROLL], heads=2) + act(ATTACH, 2, 2, 0) + rounds(2) +
                    rounds(2, place=2) + act(WAIT, 0, 0, 4, 1) + looks + rounds(4) +
                    act(GET, 0, 0, CUT | 8, 3) + ends)
    yield "rows", (small([ROLL], row_parts=2, row_block=2) + act(ATTACH, 2, 2, 0) +
                   rounds(4) + rounds(4, place=2) + looks + changes + ends)
    yield "recover", (small([ROLL], heads=2, lanes=2, lane_parts=2) +
                      act(ATTACH, 2, 2, 0) + rounds(2) + act(RECOVER, 0) +
                      act(RECOVER, 0, place=2) + act(RECOVER, 0) + act(OUTSIDE, 0, 0x20) +
                      rounds(8))
    many = b"".join(act(CHANGE, KEEP, 0, 1, *item(0, BACK | back, 0))
                    for back in (6, 3, 5, 4, 2))
    yield "kept", (small([ROLL]) + rounds(4) + many + looks +
                   act(CHANGE, KEEP, 0, 1, *item(0, BACK | 5, BACK | 1)) +
                   act(CHANGE, KEEP, 0, 1, *item(0, BACK | 2, 1)) +
                   act(GET, 0, 0, UNPINNED) + act(CHANGE, TRUNCATE, 0, 1, *item(0, BACK | 1, 0)) +
                   ends + act(RELEASE, 2))
    yield "left", (small([ROLL], heads=2) + act(ATTACH, 2, 2, 0) + act(RECOVER, 0) +
                   act(RECOVER, 0, place=2) + act(RECOVER, 0) + rounds(1, place=2) +
                   rounds(1) + act(GET, 0, 0, CUT))
    yield "claimed", (small([ROLL]) + rounds(6) + act(POKE, 7, 0, 1, 0, 0x1f) +
                      act(CHANGE, TRUNCATE, 0, 1, *item(0, BACK | 6, 0)) + looks + ends)
    # Two ranks take turns at being behind, as often as they are looked at.
    turns = act(STORM, 0x82, *[7, 1, 2, 0, 1], 0x40, 12, *[7, 1, 2, 0, 1], 0x41, 12)
    yield "turns", (small([ROLL], heads=3) + rounds(6, rows=0) + turns +
                    act(BEGIN, 0, 1, *item(0, 0, 0)))
    for word in range(1, 14):
        pokes = b"".join(act(POKE, 7, 0, 2, 0, word, value) + looks + ends
                         for value in (1, 2, 0x1f, BACK | 0x1f, 0x43, 0x60))
        yield f"record{word}", (small([ROLL]) + rounds(4) +
                                act(CHANGE, KEEP, 0, 1, *item(0, BACK | 4, 1)) +
                                act(CHANGE, KEEP, 0, 1, *item(0, BACK | 2, 0)) +
                                rounds(4) + looks + ends + pokes + rounds(1))
    for word in range(12):
        poke = act(POKE, word, 0, 1, 2, 3) + looks + rounds(1) + ends
        yield f"poke{word}", small([ROLL], heads=2) + rounds(2) + poke * 3
        storm = act(STORM, 0x83, *[word, 0, 1, 2, 0x40, 3] * 3)
        yield f"storm{word}", small([ROLL], heads=2) + rounds(2) + storm + looks + rounds(2)
    for name, (head, groups, layers) in geometries():
        if name not in ("one", "rows", "wide"):
            continue
        header = struct.pack("<QHHIQQQQ16s64sQ56x", 0x6c65656877766b, 1, 0, 6448, 0, 0, 0,
                             0, b"uuid", b"fuzz", 1)
        pages = {"one": (4, 129, 1), "rows": (7, 129, 44), "wide": (8, 129, 32)}[name]
        yield "any-" + name, (b"\1" + struct.pack("<HHH", *(n - 1 for n in pages)) + header +
                              head + groups + layers)


# ------------------------------------------------------------------ adoption

def entry(kind, shape=None, state=1, pokes=(), segments=(0, 0, 0), swaps=(0, 0, 0, 0),
          meta_pokes=(), number=1):
    packed = bytes([kind]) + (shape or small([ROLL])) + bytes([number, 2, *segments])
    for changed in (bytes([state]) + bytes([len(pokes)]), *map(bytes, pokes),
                    bytes([len(meta_pokes)]), *map(bytes, meta_pokes)):
        packed += changed
    return packed + bytes([0, *swaps, 0])


def attachment(identity, cache, rank, slot):
    return bytes([3, 0x40 | identity, cache, 0x40 | rank, 0x40 | slot, 1, 6])


def adoptions():
    def load(*entries, kinds=0, answers=b""):
        return bytes([kinds, len(entries)]) + b"".join(entries) + answers
    yield "nothing", load()
    yield "one", load(entry(0))
    yield "attached", load(entry(0), attachment(1, 1, 0, 0), attachment(2, 1, 5, 0))
    yield "removed", load(entry(2), attachment(1, 1, 0, 0))
    yield "two", load(entry(0), entry(0, number=2), entry(2, number=3))
    yield "again", load(entry(0), entry(0, number=2, swaps=(0, 12, 0, 0)))
    yield "no-listener", load(entry(0), kinds=1)
    yield "no-stamp", load(entry(0), kinds=3)
    yield "no-stamp-but-empty", load(kinds=3)
    for word in range(4):
        yield f"stamp{word}", load(entry(0), kinds=4)[:1] + bytes([word, 0x60]) + load(
            entry(0))[1:]
    yield "previous", load(entry(0), bytes([5, 1, 0, 8, 0]), kinds=3)
    yield "refused", load(entry(0), bytes([5, 1, 0, 9, 0]))
    yield "dead-keeper", load(entry(2), attachment(1, 1, 0, 0), answers=b"\x01")
    yield "full-keeper", load(entry(2), answers=b"\x03\x03\x02")
    for kind in range(1, 8):
        for s in range(3):
            segments = [0, 0, 0]
            segments[s] = kind
            yield f"segment{s}-{kind}", load(entry(0, segments=segments))
    for fd in range(4):
        for other in range(7):
            swaps = [0] * fd + [1, other] + [0] * (3 - fd)
            yield f"other{fd}-{other}", load(entry(0, swaps=swaps))
    for word in range(0, 24, 2):
        yield f"control{word}", load(entry(0, pokes=[[0, word, 0x60]]))
    for word in range(8):
        yield f"meta{word}", load(entry(0, meta_pokes=[[0, word, 0x60]]))
    yield "names", load(bytes([5, 1, 0, 0, 4]) + b"abcd", bytes([5, 4, 0, 1, 2, 3, 3, 1, 49]),
                        bytes([5, 1, 5, 2, 30]) + b"4.5.6.7.18446744073709551616.8")


# ------------------------------------------------------------------ files

CONFIGS = {
    "llama": {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
              "num_hidden_layers": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
              "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
              "vocab_size": 128256, "rms_norm_eps": 1e-05, "rope_theta": 500000.0},
    "tied": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
             "num_hidden_layers": 2, "head_dim": 16, "intermediate_size": 128,
             "vocab_size": 256, "tie_word_embeddings": True, "hidden_act": "silu",
             "attention_bias": False, "sliding_window": None, "dtype": "float32",
             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "mistral": {"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32,
                "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096,
                "max_position_embeddings": 32768, "torch_dtype": "bfloat16"},
    "gemma3": {"model_type": "gemma3", "torch_dtype": "bfloat16",
               "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
                               "num_hidden_layers": 34, "sliding_window": 1024}},
    "gemma3_text": {"model_type": "gemma3_text", "head_dim": 256, "hidden_size": 1152,
                    "num_attention_heads": 4, "num_hidden_layers": 26,
                    "num_key_value_heads": 1, "sliding_window": 512,
                    "_sliding_window_pattern": 6, "torch_dtype": "float16"},
    "gpt_oss": {"model_type": "gpt_oss", "num_hidden_layers": 4, "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2},
}


def configs():
    for name, config in CONFIGS.items():
        text = json.dumps(config).encode()
        yield name, b"\x00\x40" + text
        yield name + "-typed", b"\x01\x30" + text
    yield "list", b"\0\0[]"
    yield "twice", b'\0\0{"model_type":"llama","model_type":"llama"}'
    yield "control", b'\0\0{"model_type":"\\u001b[2J\\u00e9"}'
    yield "deep", b"\0\0" + b"[" * 3000


def tensors():
    def file(header, data=b""):
        return b"\1" + json.dumps(header).encode() + b"\0" + data

    def tensor(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    two = {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 3], 0, 24),
           "b": tensor("BF16", [4], 24, 32)}
    yield "two", file(two, bytes(range(32)))
    yield "empty", file({})
    yield "scalar", file({"a": tensor("F64", [], 0, 8), "b": tensor("U8", [0, 9], 8, 8)},
                         b"12345678")
    yield "overlap", file({"a": tensor("F16", [4], 0, 8), "b": tensor("I8", [4], 4, 8)},
                          b"12345678")
    yield "hole", file({"a": tensor("F16", [4], 4, 12)}, b"123456789abc")
    yield "huge", file({"a": tensor("F32", [1 << 62, 4], 0, 8)}, b"12345678")
    text = json.dumps(two).encode()
    yield "whole", b"\0" + struct.pack("<Q", len(text)) + text + bytes(32)
    yield "length", b"\0" + struct.pack("<Q", 1 << 63) + text


# ------------------------------------------------------------------ picking

FILES_MAX = 40


def pick(list_path, folder):
    """Greedy: the file that adds most edges, then most counts of edges, small ones first."""
    with open(list_path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    n_files = int(lines[0])
    paths = lines[2:2 + n_files]
    counts = [set() for _ in paths]
    for line in lines[2 + n_files:]:
        kind, *numbers = line.split(" ")
        if kind == "FT":  # of an edge there are eight: how often it was passed
            counts[int(numbers[0])] |= {int(n) for n in numbers[1:]}
    os.makedirs(folder, exist_ok=True)
    kept = [n for n in os.listdir(folder) if not re.fullmatch("[0-9a-f]{40}", n)]
    for name in set(os.listdir(folder)) - set(kept):
        os.remove(os.path.join(folder, name))
    picked = set()
    for per_edge in (8, 1):
        covers = [{n // per_edge for n in numbers} for numbers in counts]
        seen = set().union(*(covers[i] for i in picked))
        while len(kept) + len(picked) < FILES_MAX:
            gain, _, best = max((len(cover - seen), -os.path.getsize(paths[i]), i)
                                for i, cover in enumerate(covers))
            if gain == 0:
                break
            picked.add(best)
            seen |= covers[best]
    for i in picked:
        with open(paths[i], "rb") as file:
            sample = file.read()
        with open(os.path.join(folder, hashlib.sha1(sample).hexdigest()), "wb") as file:
            file.write(sample)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--pick":
        pick(sys.argv[2], sys.argv[3])
        return
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    targets = {"message": messages(), "control": controls(), "adopt": adoptions(),
               "geometry": ((n, b"".join(parts)) for n, parts in geometries()),
               "config": configs(), "safetensors": tensors()}
    for target, samples in targets.items():
        if target == "control":
            samples = ((n, s if n.startswith("any-") else b"\0" + s) for n, s in samples)
        folder = os.path.join(sys.argv[1], target)
        os.makedirs(folder, exist_ok=True)
        for name, sample in samples:
            with open(os.path.join(folder, name), "wb") as file:
                file.write(sample)


main()
