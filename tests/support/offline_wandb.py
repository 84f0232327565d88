"""What W&B's offline files hold. The library has no reader in Python: the records are its own, in a log as LevelDB has it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER, FIRST = 32_768, 7, 7  # bytes: a block, what is before a record in it, what is before all
WHOLE, LAST = 1, 4  # kinds of a record's part; 2 and 3 go on


def records(file: Path) -> Iterator[Record]:
    raw, at, data = file.read_bytes(), FIRST, b""
    while at + HEADER <= len(raw):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", raw, at)
        if not kind:
            return
        data += raw[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (WHOLE, LAST):
            yield Record.FromString(data)
            data = b""


def histories(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By run what was logged, in order of the files: `wandb sync` takes them so."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        name = file.stem.removeprefix("run-")
        for record in records(file):
            if record.WhichOneof("record_type") == "history":
                items = {(i.key or i.nested_key[0]): json.loads(i.value_json) for i in record.history.item}
                found.setdefault(name, []).append(items)
    return found
