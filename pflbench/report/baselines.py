"""What readers miss beside personalized methods: Local and a fine-tuned global model, with the command that makes them, and the
majority class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError
from sqlalchemy import Engine

from pflbench import methods
from pflbench.report import labels
from pflbench.report.arrangement import Arranged, SharedSetting, row_key
from pflbench.report.needed import command
from pflbench.report.selection import Filters
from pflbench.spec import OPTION_OF, Pfllib, RunSpec, Spec
from pflbench.store import partitions
from pflbench.store.measures import COLUMNS
from pflbench.store.runs import RoundRule

LOCAL, FEDAVG, FINE_TUNED = "local", "fedavg", "fedavg-ft"
MAJORITY = "Majority class"
MAJORITY_SAID = f"{MAJORITY}: each client predicts the most frequent class of its own training data (methods.md 2.1)."
S = TypeVar("S", bound=Spec)


def is_personalized(method: str) -> bool:
    """Whether its card says so. A user's method counts: the database does not have its category."""
    category = methods.card(method).category
    return not category or category.startswith("personalized")


def of_any_method(engine: Engine, filters: Filters, rule: RoundRule) -> Arranged:
    """As `Filters.select`, with the methods that `--method` and `--run` leave out."""
    chosen = filters.matching(engine, rule)
    rows = {row_key(run) for run in chosen}
    every = replace(filters, methods=(), runs=()).matching(engine, rule)
    return filters.arranged(engine, [*chosen, *(run for run in every if row_key(run) not in rows)], rule)


def note(shown: Arranged, every: Arranged, needed: Sequence[str] = (LOCAL, FINE_TUNED)) -> list[str]:
    """At most one note: which of these baselines were not run in settings that show a personalized method, and a command.

    every: with the methods that were filtered away. FINE_TUNED stands for any method that fine-tunes the global model.
    """
    lacking: dict[tuple[str, ...], list[tuple[SharedSetting, set[int]]]] = defaultdict(list)
    for j, setting in enumerate(shown.settings):
        seeds = {run.seed for row, runs in shown.column(j) if is_personalized(row.method) for run in runs}
        there = {row.method for row, _ in every.column(same_setting(every, setting))}
        if any(methods.card(name).fine_tuned for name in there):
            there.add(FINE_TUNED)
        central = setting.spec["partition"].get("central_test")  # Local has no global model to be tested on it
        missing = tuple(name for name in needed if name not in there and not (central and name == LOCAL))
        if seeds and missing:
            lacking[missing].append((setting, seeds))
    if not lacking:
        return []
    what = (f"{_listed(names)} ({labels.some([one.title for one, _ in of], 2)})" for names, of in lacking.items())
    names, ((first, seeds), *_) = next(iter(lacking.items()))
    return [f"Not run beside the personalized methods: {'; '.join(what)}. Next: `{command_for(names, first.spec, seeds)}`."]


def same_setting(every: Arranged, setting: SharedSetting) -> int:
    """The place in `every` of a setting that has runs there."""
    return next(
        j for j, one in enumerate(every.settings) if (one.protocol, one.partition) == (setting.protocol, setting.partition)
    )


def majority(engine: Engine, setting: SharedSetting, metric: str | None = None) -> float | None:
    """Accuracy in percent if every client predicts the most frequent class of its own training data (methods.md 2.1).

    Pooled over the clients that train. None for a central test set, without the counts of test samples, and beside a metric
    that is no accuracy.
    """
    if metric in COLUMNS or setting.partition is None or setting.spec["partition"].get("central_test"):
        return None
    partition = partitions.find(engine, setting.partition)
    clients = np.arange(len(partition.train) - setting.spec["train"].get("new_clients", 0))
    correct = partition.test[clients, partition.train[clients].argmax(axis=1)]
    total = partition.test[clients].sum()
    return float(100 * correct.sum() / total) if total else None


def _listed(names: Sequence[str]) -> str:
    """'Local, FedAvg and a fine-tuned global model'."""
    *first, last = ("a fine-tuned global model" if name == FINE_TUNED else labels.method_title(name) for name in names)
    return f"{', '.join(first)} and {last}" if first else last


def command_for(names: Sequence[str], spec: dict[str, Any], seeds: Iterable[int]) -> str:
    """The `pflbench run` command that runs these methods with these seeds in the setting of a run's specification."""
    return command({"methods": tuple(names), **options(spec), **_seeds(sorted(seeds))})


def options(stored: dict[str, Any]) -> dict[str, Any]:
    """The options of `pflbench run` for a stored specification, but for method and seed: fields of `run.options.RunOptions`."""
    spec = RunSpec.model_validate(stored)
    found: dict[str, Any] = {"datasets": (spec.data.named,), "model": spec.model}
    if spec.own_model is not None and spec.own_model.path is not None:
        found["model"] = f"{spec.own_model.path}:{spec.model}"
    if isinstance(spec.partition, Pfllib):
        found["partition"] = f"pfllib:{spec.partition.path}"
    else:
        if spec.partition.scheme != "dirichlet":
            found["partition"] = spec.partition.scheme
        found |= {OPTION_OF.get(name, name): value for name, value in _shortest(spec.partition).items()}
    found |= _shortest(spec.train)
    return {name: ",".join(map(str, value)) if name == "group_sizes" else value for name, value in found.items()}


def _shortest(spec: Spec) -> dict[str, Any]:
    """The fields that have to be given for this specification."""
    given = spec.model_dump()
    for name in list(given):
        fewer = {key: value for key, value in given.items() if key != name}
        with suppress(ValidationError):
            if type(spec).model_validate(fewer) == spec:
                given = fewer
    return given


def _seeds(seeds: Sequence[int]) -> dict[str, Any]:
    """As an option; seed 0 alone is the default."""
    if list(seeds) == [0]:
        return {}
    if len(seeds) == 1:
        return {"seed": seeds[0]}
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return {"seeds": f"{seeds[0]}-{seeds[-1]}" if whole else ",".join(map(str, seeds))}
