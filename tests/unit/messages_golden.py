#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write messages_golden.def from proto/messages.def: messages_golden.py > messages_golden.def

A second, independent coder of the wire format as PROTOCOL.md describes it. The n-th field
of a message (from 0) is 0xa1b2c300 + n (U32), 0x1122334455667700 + n (U64), its own name
(STR) or the five bytes n, n + 1, ... (BYTES); the request number is 0x0badcafe.
"""
import os
import re
import struct

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "../../proto/messages.def"), encoding="ascii") as file:
    source = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)


def block(data):
    return struct.pack("<I", len(data)) + data


print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* Made by messages_golden.py. A change here is a change of the protocol. */")
for name, number, fields in re.findall(
        r"KVW_MESSAGE\(\w+,\s*(\w+),\s*(\d+),\s*((?:\s*\w+\([^()]*\))+)\)", source):
    body = b""
    for n, (kind, field) in enumerate(re.findall(r"(\w+)\((\w+)", fields)):
        body += {"U32": lambda: struct.pack("<I", 0xa1b2c300 + n),
                 "U64": lambda: struct.pack("<Q", 0x1122334455667700 + n),
                 "STR": lambda: block(field.encode()),
                 "BYTES": lambda: block(bytes(range(n, n + 5)))}[kind]()
    packet = struct.pack("<4sIII", b"kvw1", int(number), 0x0badcafe, len(body)) + body
    lines = [packet[i:i + 32].hex() for i in range(0, len(packet), 32)]
    print(f"GOLDEN({name},", *(f'       "{line}"' for line in lines), sep="\n", end=")\n")
