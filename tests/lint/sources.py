# SPDX-License-Identifier: Apache-2.0
"""What the rules share: which files there are, C text without its comments, reports.

A rule is a program in this folder. It takes --root DIR (default: this checkout), prints
one "file:line: text" per finding, and exits 1 if there is any. self-test feeds each rule
samples that it must catch, and samples that it must leave alone.
"""
import argparse
import fnmatch
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NOT_OURS = {".git", ".cache", "build", "__pycache__"}

# A comment, a string or a character, whichever starts first.
LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


def arguments(doc, *extra):
    """Parse --root and the given (name, help) positional arguments."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(HERE)))
    for name, text in extra:
        parser.add_argument(name, help=text)
    options = parser.parse_args()
    options.root = os.path.abspath(options.root)
    return options


def all_files(root):
    """Paths below root that git tracks or would track; all of them without git."""
    git = ["git", "-c", "safe.directory=*", "-C", root]
    top = subprocess.run(git + ["rev-parse", "--show-toplevel"],
                         capture_output=True, text=True, check=False)
    if top.returncode == 0 and os.path.realpath(top.stdout.strip()) == os.path.realpath(root):
        listed = subprocess.run(git + ["ls-files", "-z", "-co", "--exclude-standard"],
                                capture_output=True, text=True, check=True)
        names = set(listed.stdout.split("\0")) - {""}
    else:
        names = set()
        for folder, folders, here in os.walk(root):
            folders[:] = [f for f in folders if f not in NOT_OURS]
            names |= {os.path.relpath(os.path.join(folder, n), root) for n in here}
    return sorted(n for n in names if os.path.isfile(os.path.join(root, n)))


def files(root, *patterns):
    """The files whose name, without its folder, matches one of the patterns."""
    return [path for path in all_files(root)
            if any(fnmatch.fnmatch(os.path.basename(path), p) for p in patterns)]


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    return LITERAL.sub(
        lambda m: blank(m[0]) if m[0].startswith(("//", "/*")) else m[0], text)


def code_only(text):
    """C text in which comments and the insides of literals are spaces."""
    return LITERAL.sub(lambda m: blank(m[0]), text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


class Report:
    """Findings, printed in order at the end."""

    def __init__(self):
        self.findings = []

    def add(self, path, line, text):
        self.findings.append((path, line, text))

    def finish(self):
        for path, line, text in sorted(self.findings):
            print(f"{path}:{line}: {text}")
        sys.exit(1 if self.findings else 0)
