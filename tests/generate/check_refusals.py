#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What cannot be done is refused with one message and a code of its own; by all ranks, which
one refusal of each kind tries."""

import json
import shutil
import struct

import harness
from harness import (IO, MODEL, PROMPT, RANKS, REFUSED_CACHE, REFUSED_MODEL, USAGE, Node,
                     check, run, together)

GO = ("--prompt", PROMPT, "--tokens", 3)
ALL = []  # to be made together


def refused(*arguments, **model):
    ALL.append(lambda: harness.refused(*arguments, **model))


def copy_model(node, name):
    folder = node.folder / name
    shutil.copytree(MODEL, folder)
    return folder


def change_config(node, name, **fields):
    folder = copy_model(node, name)
    config = json.loads((folder / "config.json").read_text())
    config.update(fields)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def change_header(node, name, change):
    """A copy of the model whose header went through change()."""
    folder = copy_model(node, name)
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    change(header)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + raw[8 + length:])
    return folder


def check_flags(node):
    refused(2, node, USAGE, "--window", *GO, "--window", 4, "--sink", 4)
    refused(1, node, USAGE, "--tokens", "--prompt", PROMPT, "--tokens", "many")
    refused(1, node, USAGE, "--dtype", *GO, "--dtype", "f64")
    refused(1, node, USAGE, "--temperature", *GO, "--temperature", 0)
    refused(1, node, USAGE, "unknown", *GO, "--no-such-flag")
    refused(1, node, USAGE, "ref; have avx9", *GO, "--kernels", "avx9")
    refused(1, node, USAGE, "--prompt")
    refused(1, node, USAGE, "one token at least", "--prompt", "")
    refused(1, node, USAGE, "below vocab_size 256", "--prompt-ids", "1,256")
    refused(1, node, USAGE, "--chunk", *GO, "--chunk", 0)
    refused(2, node, IO, "No such file", "--nll", node.folder / "missing")
    refused(1, node, IO, "--logits", *GO, "--logits", "/no/such/folder/file")
    refused(5, node, RANKS, "num_key_value_heads", *GO)
    shown = run(2, node, "--help").stdout.decode()
    check(shown.count("usage:") == 1 and "exit:" in shown, "--help, once")
    check(max(map(len, shown.splitlines())) <= 80, "--help fits a terminal")


def check_config(node):
    for name, fields, text in (
        ("rope", {"rope_scaling": {"factor": 8.0}}, "rope_scaling"),
        ("type", {"model_type": "mistral"}, "model_type"),
        ("layers", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("more-layers", {"num_hidden_layers": 5}, "model.layers.4"),
        ("inter", {"intermediate_size": 511}, "the model needs [511, 192]"),
        ("untied", {"tie_word_embeddings": False}, "lm_head.weight is missing"),
    ):
        refused(2 if name == "untied" else 1, node, REFUSED_MODEL, text, *GO,
                model=change_config(node, name, **fields))
    refused(1, node, REFUSED_MODEL, "No such file", *GO, model=node.folder / "no-model")


def check_weights(node):
    embed, norm = "model.embed_tokens.weight", "model.norm.weight"

    def lie_type(header):
        header[norm]["dtype"] = "F33"

    def lie_shape(header):
        header[embed]["shape"].reverse()

    def lie_offset(header):
        header[norm]["data_offsets"][1] += 1 << 40

    def overlap(header):
        header[norm]["data_offsets"] = header["model.layers.0.input_layernorm.weight"][
            "data_offsets"]

    def lose(header):
        header["other"] = header.pop(norm)

    for name, change, text in (
        ("dtype", lie_type, "dtype"),
        ("shape", lie_shape, "shape"),
        ("offset", lie_offset, "data_offsets"),
        ("overlap", overlap, "overlap"),
        ("lost", lose, f"{norm} is missing"),
    ):
        refused(2 if name == "lost" else 1, node, REFUSED_MODEL, text, *GO,
                model=change_header(node, name, change))

    for name, keep in (("short", 100), ("shorter", 4), ("empty", 0), ("cut", -8)):
        folder = copy_model(node, name)
        raw = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(raw[:keep])
        refused(2 if name == "cut" else 1, node, REFUSED_MODEL, "model.safetensors", *GO,
                model=folder)
    folder = copy_model(node, "length")
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 63) + raw[8:])
    refused(1, node, REFUSED_MODEL, "header length", *GO, model=folder)


def check_daemon(node):
    """A daemon that is not there, and a cache that no node can hold."""
    refused(2, node, REFUSED_CACHE, "kvwheel: connect", *GO, "--socket",
            node.folder / "nobody.sock")
    refused(2, node, REFUSED_CACHE, "init: create: quota", *GO, "--window", 1 << 30)


node = Node()
check_flags(node)
check_config(node)
check_weights(node)
check_daemon(node)
together(ALL)
print(f"{len(ALL)} refusals")
check(run(1, node, *GO).returncode == 0, "an honest run")
plain = json.loads(run(1, node, *GO, "--kernels", "ref", "--json").stdout.splitlines()[-1])
check(plain["kernels"] == "ref" and len(plain["tokens"]) == 3, f"by the references: {plain}")
