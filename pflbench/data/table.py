"""csv:PATH - own texts: a header with the columns `label`, `text` and perhaps `owner`, or no header and the label first."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten

import numpy as np

from pflbench.data import text
from pflbench.data.base import Damaged, Source
from pflbench.data.content import checksum
from pflbench.errors import UserError

_NUMBER = re.compile(r"-?\d{1,18}")


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of a CSV file. Raises UserError, naming file and line, where it is cut off or not UTF-8."""
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
        except (csv.Error, UnicodeDecodeError) as e:
            raise Damaged(f"{path}, near line {reader.line_num}: {e}.", "Expected a whole CSV file in UTF-8.") from e


def _read(path: Path) -> text.Labelled:
    labels, texts, owners = [], [], []
    owner: int | None = None
    columns: tuple[int, int] | None = None
    for i, (line, cells) in enumerate(rows(path)):
        names = [cell.strip().lower() for cell in cells]
        if i == 0 and "label" in names and "text" in names:
            columns = names.index("label"), names.index("text")
            owner = names.index("owner") if "owner" in names else None
            continue
        if len(cells) < (2 if columns is None else max(columns) + 1):
            raise UserError(f"{path}, line {line}: {len(cells)} columns.", "Expected a label and a text in every line.")
        labels.append(cells[columns[0] if columns else 0].strip())
        texts.append(cells[columns[1]] if columns else " ".join(cells[1:]))
        if owner is not None and owner < len(cells) and cells[owner].strip():
            owners.append(cells[owner].strip())
    classes = sorted(set(labels), key=_by_number)
    if len(classes) < 2:
        raise UserError(f"{path} has {len(texts)} texts of {len(classes)} classes.", "Expected two classes or more.")
    if columns is None and labels.count(labels[0]) == 1 and not _NUMBER.fullmatch(labels[0]):
        raise UserError(
            f"{path}: no other line has the label of the first, '{shorten(labels[0], 40)}': it looks like a header, or a text.",
            "Expected a header with `label` and `text`, or no header and the label first in every line.",
        )
    index = {name: i for i, name in enumerate(classes)}
    y = np.array([index[label] for label in labels], np.int64)
    # Only the partition `natural` needs owners: a line without one is no error here.
    all_owned = len(owners) == len(texts)
    return text.Labelled(texts, y, tuple(classes), owner=np.array(owners) if all_owned else None)


def _by_number(label: str) -> tuple[int, int, str]:
    """Sorts numbers by value before everything else. What is too long for a number that anybody counts with is text."""
    return (0, int(label), "") if _NUMBER.fullmatch(label) else (1, 0, label)


CSV = Source(
    "csv",
    "own texts with labels",
    content=lambda path, root, progress: checksum(path),
    load=lambda path, root, progress: text.load(root, checksum(path), lambda: _read(path), progress),
    defaults=lambda path, root: text.DEFAULTS,
)
