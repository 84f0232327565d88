"""The reference values of the FedALA paper (Zhang et al., AAAI 2023; arXiv:2212.01197), Tables 2 and 7.

The rule, in two steps (methods.md 2.2):

1. *Which value belongs here* is decided by method, dataset, model and partition (scheme and its parameter). A folder
   that PFLlib wrote counts by the kind and parameter that its config.json states.
2. *Whether it may be compared* is decided by everything else that moves the number: clients, join ratio, rounds, local
   epochs, batch size, learning rate, share of test data, evaluation, the hyperparameters, and that the best round
   counts. If all have the paper's values the difference is given. If not, the value is shown only on request, without
   a difference and with the list of what differs.

The number of runs is no condition: every cell shows it. Nor is float64, which is only more exact.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pflbench.report import labels
from pflbench.store.read import Select

TABLES = ("table2", "table7")

# The paper's values (methods.md 1), complete: what is not listed here is not the paper's method. They are the defaults,
# to which a test holds them; importing the methods would import torch.
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.001},
    "ditto": {"lam": 0.1, "personal_epochs": 2, "aggregation": "weighted"},
    "fedala": {
        "eta": 1.0,
        "s": 80,
        "p": 1,
        "threshold": 0.01,
        "max_init_epochs": 100,
        "min_epochs": 1,
        "adapt": True,
        "start_round": 2,
        "subset": "random",
        "drop_last": False,
        "ala_all": False,
        "skip_untrained": False,
    },
}


@dataclass(frozen=True)
class Reference:
    """One printed value, in percent; `std` is None where none is printed."""

    table: str
    dataset: str
    model: str
    partition: tuple[str, float]  # ("dirichlet", 0.1)
    clients: int
    join_ratio: float
    method: str
    mean: float
    std: float | None


@dataclass(frozen=True)
class Match:
    """A value of the paper and what sets a run's protocol apart from it, in words; nothing if they are the same."""

    reference: Reference
    differences: tuple[str, ...]


@cache
def references() -> tuple[Reference, ...]:
    """All values of Tables 2 and 7, from the CSV files beside this module."""
    return tuple(_references())


def find(spec: dict[str, Any], select: Select) -> Match | None:
    """The paper's value for a run's specification, nearest protocol first; None if the paper has none."""
    partition = _partition(spec["partition"])
    data = spec["data"]
    if partition is None or data.get("variant") or data.get("path"):
        return None
    identity = (spec["method"]["name"], data["name"], spec["model"], partition)
    found = [
        Match(reference, differences(spec, select, reference))
        for reference in references()
        if (reference.method, reference.dataset, reference.model, reference.partition) == identity
    ]
    return min(found, key=lambda match: len(match.differences), default=None)


def differences(spec: dict[str, Any], select: Select, reference: Reference) -> tuple[str, ...]:
    """What of a run's protocol is not the paper's: ('rounds 20 instead of 2000',)."""
    partition, train = spec["partition"], spec["train"]
    items: list[tuple[str, Any, Any]] = [
        ("clients", partition["clients"], reference.clients),
        ("join ratio", train["join_ratio"], reference.join_ratio),
        ("rounds", train["rounds"], 2000),
        ("local epochs", train["local_epochs"], 1),
        ("batch size", train["batch_size"], 10),
        ("lr", train["lr"], _lr(reference)),
        ("evaluation interval", train["eval_every"], 1),
        ("BN buffers", train["bn_buffers"], "local"),
        ("result", str(select), "best"),
    ]
    if reference.join_ratio < 1:
        items.append(("evaluated clients", train["evaluate"], "participants"))
    if train["drop_last"] == "never":
        items.append(("last partial batch", "kept", "dropped"))
    if partition["scheme"] != "pfllib":
        items += [
            ("test share", partition["test_share"], 0.25),
            ("partition seed", partition["seed"], 1),
            ("fewest samples", partition.get("least") or 40, 40),
            ("balanced classes", partition.get("balanced", False), False),
        ]
    mine, theirs = spec["method"]["hyperparameters"], HYPERPARAMETERS.get(reference.method, {})
    items += [(name, mine.get(name, "absent"), theirs.get(name, "absent")) for name in sorted({*mine, *theirs})]
    return tuple(f"{name} {_text(ours)} instead of {_text(paper)}" for name, ours, paper in items if ours != paper)


def _references() -> Iterator[Reference]:
    methods, datasets, models = (
        {title: name for name, title in d.items()} for d in (labels.METHODS, labels.DATASETS, labels.MODELS)
    )
    for table in TABLES:
        with files(__package__).joinpath(f"paper/{table}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                setting = dict(item.split("=") for item in row["setting"].split(";"))
                practical = setting["scenario"] == "practical"
                yield Reference(
                    table=f"Table {table.removeprefix('table')}",
                    dataset=datasets[row["dataset"]],
                    model=models[row["backbone"]],
                    partition=("dirichlet", float(setting["beta"]))
                    if practical
                    else ("pathological", float(setting["classes_per_client"])),
                    clients=int(setting["clients"]),
                    join_ratio=float(setting["rho"]),
                    method=methods[row["method"]],
                    mean=float(row["mean"]),
                    std=float(row["std"]) if row["std"] else None,
                )


def _partition(spec: dict[str, Any]) -> tuple[str, float] | None:
    kind = spec["kind"] if spec["scheme"] == "pfllib" else spec["scheme"]
    parameter = {"dirichlet": spec.get("beta"), "pathological": spec.get("classes_per_client")}.get(kind)
    return None if parameter is None else (kind, float(parameter))


def _lr(reference: Reference) -> float:
    return 0.005 if reference.model == "cnn" and reference.dataset != "mnist" else 0.1


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
