"""The values that papers print: the CSV files beside this one, as they stand."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FEDALA = "FedALA (Zhang et al., AAAI 2023, arXiv:2212.01197)"
ELASTIC = "Elastic Aggregation (Chen et al., CVPR 2023), poster"


@dataclass(frozen=True)
class Value:
    """One printed value as it stands in its file. `setting` holds what the file says as key=value; std None: none printed."""

    source: str
    table: str  # "table2"; "text": in running text
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
    return Value(
        source=ELASTIC if row["table"] == "elastic" else FEDALA,
        table=row["table"],
        setting=dict(item.split("=", 1) for item in row["setting"].split(";")),
        dataset=row["dataset"],
        backbone=row["backbone"],
        method=row["method"],
        metric=row["metric"],
        mean=_number(row["mean"]),
        std=_number(row["std"]),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
