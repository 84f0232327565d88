"""Trains a stored run again, in a temporary database, and compares: for `runs reproduce` and `runs verify`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sqlalchemy import URL, Engine, func, select

from pflbench import methods
from pflbench.errors import Diverged, UserError
from pflbench.run import trusted
from pflbench.run.device import checked, find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.record import as_begun
from pflbench.run.training import Progress, execute
from pflbench.spec import Pfllib, RunSpec
from pflbench.store import arrays, measures, partitions, paths, rounds, runs
from pflbench.store.database import connect, reading, to_url
from pflbench.store.exchange.merge import first_difference
from pflbench.store.partitions import PartitionRecord
from pflbench.store.runs import Run
from pflbench.store.schema import ClientRoundRow

Watch = Callable[[Iterator[Progress]], Iterator[Progress]]
"""Passes the steps of a run on, and shows them."""


@dataclass(frozen=True)
class Repeated:
    """How a stored run compares with the same run trained again.

    last: the newest round that was compared, after all before it. clients: the number of compared rows of clients. difference:
    the first one, in words; None: equal. diverged: now. changed: by name what the record says otherwise, as stored and now.
    """

    run: int
    last: int
    clients: int
    difference: str | None
    diverged: bool
    changed: dict[str, tuple[Any, Any]]


def specifications(found: Sequence[Run], database: URL, typed: Sequence[Path]) -> list[RunSpec]:
    """What the runs of a database are, with the paths of this machine.

    typed: Python files that the user has named. Raises UserError for code that was never named on this machine, for an unknown
    method, and for a run without rounds.
    """
    specs = []
    for run in found:
        spec = RunSpec.model_validate(paths.in_spec(run.spec, lambda path: paths.found(path, database)))
        trusted.require_typed(f"Run {run.id}", trusted.python_files([spec]), trusted.python_files((), typed))
        if run.last_round is None:
            raise UserError(f"Run {run.id} has no rounds that could be compared.", f"It is {run.status}.")
        specs.append(spec)
    return specs


def of_methods(typed: Sequence[Path], specs: Sequence[RunSpec]) -> list[Path]:
    """The typed files that are not of models or data."""
    others = trusted.python_files(specs)
    return [path for path in typed if ("--plugin", str(path.resolve())) not in others]


def repeat(
    store: Engine,
    run: Run,
    spec: RunSpec,
    data_root: Path,
    how: Execution,
    *,
    last: int | None = None,
    tolerance: float = 0.0,
    watch: Watch = iter,
) -> Repeated:
    """Trains `spec`, of a stored run, until round `last` (None: as far as it got) or the first difference. Writes nothing.

    Compared are the partition, what `import` compares of each round, which is all that the specification determines, and the
    measures beside accuracy where they are stored. tolerance: as in `merge.first_difference`. Raises UserError for missing data.
    """
    _require_method(run)
    both_moments = any(series.name == measures.AFTER_TRAINING for series in rounds.second_series(store, run.id))
    measured = arrays.rounds(store, [run.id], [measures.NAME]).get((run.id, measures.NAME), [])
    every = math.gcd(*measured) or 1 if measured else 0  # the last round is measured, too, and need not be a multiple
    how = replace(_as_recorded(how, run), test_after_training=both_moments, metrics_every=every)
    reached = run.last_round or 0
    # A run that diverged must do so again, in the same round.
    until = spec.train.rounds if run.status == "diverged" and last is None else min(reached, reached if last is None else last)
    if difference := _other_partition(store, run, spec, load_federation_data(spec, data_root).record):
        return Repeated(run.id, -1, 0, difference, False, {})
    with TemporaryDirectory() as folder:
        again = connect(to_url(f"{folder}/again.db"))
        try:
            compared = -1
            with suppress(Diverged), closing(execute(spec, again, data_root, how)) as steps:
                for step in watch(steps):
                    if step.kind == "round":
                        compared = step.round
                        difference = _difference(store, again, run.id, (compared, compared), tolerance)
                        if difference or compared == until < spec.train.rounds:
                            break
            if difference is None and compared < until:  # it diverged
                difference = _difference(store, again, run.id, (0, reached), tolerance)
            present = runs.find(again, 1)
            diverged, changed = present.status == "diverged", _changed(run, present, spec)
            return Repeated(run.id, compared, _client_rows(again), difference, diverged, changed)
        finally:
            again.dispose()


def drawn(run: Run, count: int, draw: Random) -> int:
    """The largest of `count` stored rounds of a run, drawn at random."""
    stored = range((run.last_round or 0) + 1)
    return max(draw.sample(stored, min(count, len(stored))))


def _difference(store: Engine, again: Engine, run: int, within: tuple[int, int], tolerance: float) -> str | None:
    with reading(store) as stored, reading(again) as new:
        found = first_difference(stored, new, run, 1, within, tolerance)
    if found is None:
        return _other_measure(store, again, run, within, tolerance)
    before, now = ("none" if value is None else value for value in (found.here, found.there))
    return f"round {found.round}, {found.what}: {before} stored, {now} now"


def _other_measure(store: Engine, again: Engine, run: int, within: tuple[int, int], tolerance: float) -> str | None:
    """The first difference between stored measures beside accuracy and those of the run that is trained again."""
    for t, stored in arrays.read(store, run, measures.NAME, range(within[0], within[1] + 1)).items():
        now = arrays.read(again, 1, measures.NAME, [t]).get(t, np.full_like(stored, np.nan))
        for row, column in np.argwhere(~np.isclose(stored, now, rtol=tolerance, atol=tolerance, equal_nan=True)):
            whose = f"client {row - 1}" if row else "all clients"
            name = measures.TITLES[measures.COLUMNS[column]]
            return f"round {t}, {name} of {whose}: {stored[row, column]} stored, {now[row, column]} now"
    return None


def _other_partition(store: Engine, run: Run, spec: RunSpec, now: PartitionRecord) -> str | None:
    """The first difference between the stored partition and the one that the specification makes."""
    if run.partition is None:
        return None
    before, indices = partitions.find(store, run.partition), partitions.read_indices(store, run.partition)
    for name, mine in (now.indices or {}).items() if indices else ():
        if not np.array_equal(indices.get(name, ()), mine):
            side, _, client = name.partition("_")
            which = "training" if side == "train" else "test"
            return f"partition, client {client}: the stored {which} samples are not those that the specification gives now"
    for name, one, other in (("training", before.train, now.train), ("test", before.test, now.test)):
        if not np.array_equal(one, other):
            return f"partition: the stored numbers of {name} samples are not those that the specification gives now"
    # The hash of own data has their path in it.
    if spec.data.path is None and not isinstance(spec.partition, Pfllib) and before.hash != now.hash:
        return f"partition: hash {before.hash[:16]} stored, {now.hash[:16]} now"
    return None


def _as_recorded(how: Execution, run: Run) -> Execution:
    """With the run's kind of device, its executor and its choices, where the command leaves them open."""
    on_gpu = "cuda" in run.environment
    if how.device == "auto" and not on_gpu:
        how = replace(how, device="cpu")
    device = find_device(how.device)
    if on_gpu == (device.type != "cpu"):
        if how.engine == "auto" and run.engine in ("loop", "batched"):
            how = replace(how, engine=run.engine)  # type: ignore[arg-type]
        how = replace(how, deterministic=how.deterministic or bool(run.environment.get("deterministic")))
    return as_begun(checked(how), run, device)


def _require_method(run: Run) -> None:
    """Raises UserError if the run's method comes from a file that this command has not named."""
    file = run.environment.get("plugin", {}).get("file")
    if file and run.method not in methods.names(with_ala=True):
        raise UserError(f"Run {run.id} has the method '{run.method}' of a file {Path(file).name}.", "Add --plugin FILE.py.")


def _changed(before: Run, now: Run, spec: RunSpec) -> dict[str, tuple[Any, Any]]:
    """What the two records say otherwise of code, versions and machine."""
    version = methods.spec(spec.method.name, spec.method.hyperparameters).version
    one, other = _facts(before, spec.method.version), _facts(now, version)
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def _facts(run: Run, version: int) -> dict[str, Any]:
    record = run.environment
    return {
        f"version of {run.method}": version,
        **{name: record.get(name) for name in ("pflbench", "commit", "python", "cuda")},
        **{name: record.get("packages", {}).get(name) for name in ("torch", "numpy")},
        "plugin": record.get("plugin", {}).get("sha256"),
        "data": record.get("data", {}).get("hash"),
        "device": run.device,
        "executor": run.engine,
    }


def _client_rows(again: Engine) -> int:
    with reading(again) as connection:
        return int(connection.scalar(select(func.count()).select_from(ClientRoundRow)) or 0)
