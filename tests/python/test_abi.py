# SPDX-License-Identifier: Apache-2.0
"""The structs and constants of kvwheel/_abi.py are those of the headers."""

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest
from kvwheel import _abi

SOURCE = Path(os.environ["KVW_SOURCE"])
HEADERS = ["client/include/kvwheel/kvwheel.h", "kernels/include/kvwheel/kernels.h"]

# A dictionary of _abi.py, the enum it is of, and the prefix of its names.
ENUMS = [
    ("TYPES", "kvw_type", "KVW_"), ("POLICIES", "kvw_policy", "KVW_"),
    ("WINDOW_KINDS", "kvw_window_kind", "KVW_WINDOW_"),
    ("POSITIONS", "kvw_positions", "KVW_POSITIONS_"),
    ("LIFETIMES", "kvw_lifetime", "KVW_LIFETIME_"),
    ("PLACEMENTS", "kvw_placement", "KVW_PLACEMENT_"), ("PAGES", "kvw_pages", "KVW_PAGES_"),
    ("PIN_POLICIES", "kvw_pin_policy", "KVW_PIN_"),
    ("PIECE_CLASSES", "kvw_piece_class", "KVW_PIECE_"), ("NUMS", "kvw_num", "KVW_NUM_"),
    ("ROPE_LAYOUTS", "kvw_rope_layout", "KVW_ROPE_"),
    ("ATTN_MASKS", "kvw_attn_mask", "KVW_ATTN_"),
]


def structs():
    return {name: of for name, of in vars(_abi).items()
            if isinstance(of, type) and issubclass(of, ctypes.Structure)}


@pytest.fixture(scope="module")
def compiled():
    """The lines of the C program, as tuples."""
    run = subprocess.run([os.environ["KVW_ABI"]], capture_output=True, text=True, check=True)
    return [tuple(line.split()) for line in run.stdout.splitlines()]


@pytest.fixture(scope="module")
def headers():
    text = "\n".join((SOURCE / header).read_text() for header in HEADERS)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def test_structs_have_the_sizes_of_c(compiled):
    of_c = {name: int(size) for kind, name, size, *_ in compiled if kind == "struct"}

    assert of_c == {name: ctypes.sizeof(of) for name, of in structs().items()}


def test_fields_lie_where_c_has_them(compiled):
    of_c = {(line[1], line[2]): (int(line[3]), int(line[4]))
            for line in compiled if line[0] == "field"}
    of_python = {(name, field[0]): (getattr(of, field[0]).offset, getattr(of, field[0]).size)
                 for name, of in structs().items() for field in of._fields_}

    assert of_c == of_python


def test_no_field_of_the_headers_is_missing(headers):
    for name, of in structs().items():
        body = re.search(rf"struct {name} \{{(.*?)\n\}};", headers, re.S)
        assert body, f"struct {name} is not in the headers"
        fields = re.findall(r"(\w+)(?:\[[^\]]*\])?\s*;", body[1])
        assert fields == [field[0] for field in of._fields_], name


def test_constants_are_those_of_c(compiled):
    for kind, name, value, *_ in compiled:
        if kind == "constant":
            assert getattr(_abi, name.replace("KVW_", "", 1)) == int(value), name


def enumerators(headers, enum):
    body = re.search(rf"enum {enum} \{{(.*?)\}};", headers, re.S)[1]
    return {name: int(value) for name, value in re.findall(r"(\w+)\s*=\s*(\d+)", body)}


@pytest.mark.parametrize("table, enum, prefix", ENUMS)
def test_enums_are_those_of_c(headers, table, enum, prefix):
    of_c = {name.replace(prefix, "", 1).lower(): value
            for name, value in enumerators(headers, enum).items()}

    assert getattr(_abi, table) == of_c


def test_errors_are_those_of_c(headers):
    assert all(getattr(_abi, name.replace("KVW_", "", 1)) == value
               for name, value in enumerators(headers, "kvw_error").items())
