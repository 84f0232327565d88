"""The values that papers print: the CSV files beside this one, as they stand."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Value:
    """One printed value as it stands in its file. `setting` holds what the file says as key=value; std None: none printed."""

    table: str  # "table2"; "text": in running text; "elastic": Elastic Aggregation's poster; "leaderboard": PFLlib's
    setting: dict[str, str]
    dataset: str
    backbone: str
    method: str
    metric: str
    mean: float | None  # None: a formula, which `setting` has
    std: float | None


@cache
def values() -> tuple[Value, ...]:
    """All of them, by file and line."""
    files = sorted(Path(__file__).parent.glob("*.csv"))
    return tuple(_value(row) for file in files for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def _value(row: dict[str, str]) -> Value:
    setting = dict(item.split("=", 1) for item in row.pop("setting").split(";"))
    mean, std = (float(text) if text else None for text in (row.pop("mean"), row.pop("std")))
    return Value(**row, setting=setting, mean=mean, std=std)
