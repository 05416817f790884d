# SPDX-License-Identifier: Apache-2.0
"""docs/pitfalls.md: every row has a test that exists, or says why it has none."""

import os
import re
from pathlib import Path

SOURCE = Path(os.environ["KVW_SOURCE"])
ROW = re.compile(r"^\| ((?:SD|T)\d+) \| (.+?) \| (.+) \|$", re.M)
NUMBERS = {*(f"SD{n}" for n in range(1, 10)),
           *(f"T{n:02}" for n in range(1, 63)
             if n not in {3, 8, 18, 21, 25, 28, 33, 36, 40, 47, 52, 58})}


def rows():
    return {number: answer for number, _, answer in
            ROW.findall((SOURCE / "docs/pitfalls.md").read_text())}


def test_every_number_has_a_row():
    assert set(rows()) == NUMBERS


def test_every_row_says_how():
    for number, answer in rows().items():
        assert re.search(r"`test_|tests/|cannot occur|waits", answer), number


def test_the_tests_it_names_exist():
    here = "\n".join(path.read_text() for path in (SOURCE / "tests/python").glob("test_*.py"))
    for number, answer in rows().items():
        for test in re.findall(r"`(test_\w+)`", answer):
            assert f"def {test}(" in here, f"{number}: {test}"
        for path in re.findall(r"tests/[\w/]+\.\w+|tests/\w+", answer):
            assert (SOURCE / path).exists(), f"{number}: {path}"
