"""Studies of `tune` in the database: a study is a sweep whose environment has the trials; their results are read from the runs.

Settings are judged by validation accuracy alone: nothing here reads a test accuracy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Engine, func, select

from pflbench.errors import UserError
from pflbench.store import sweeps
from pflbench.store.database import reading
from pflbench.store.locks import OVER
from pflbench.store.runs import Run, attempts, that_counts
from pflbench.store.schema import RoundRow, RunRow
from pflbench.store.write import update_run

Scores = Mapping[str, float]
"""The best validation accuracy in [0, 1] of each run that has ended, by key; 0 for one that diverged or failed."""


@dataclass(frozen=True)
class Trial:
    """A setting of a method. values: option of `run` or METHOD.NAME -> value; empty: as the command has it.

    keys: its runs; one in the search, one for each fresh seed if it is run again.
    """

    values: Mapping[str, Any]
    rounds: int
    keys: tuple[str, ...]

    def score(self, scores: Scores) -> float | None:
        """The mean over its runs; None while one is missing."""
        return mean(scores[key] for key in self.keys) if all(key in scores for key in self.keys) else None


@dataclass(frozen=True)
class StoredStudy:
    """definition: what was asked for, as `sweep.tuning.define` makes it. trials: by method, in their order.

    again: by method what is run on fresh seeds: the method's defaults, then the best settings; empty before the search is over.
    """

    name: str
    definition: Mapping[str, Any]
    trials: Mapping[str, tuple[Trial, ...]]
    again: Mapping[str, tuple[Trial, ...]]

    @property
    def budget(self) -> dict[str, Any]:
        """What each method may spend, as it is recorded with runs that use a winner."""
        return {name: self.definition[name] for name in ("sampler", "trials", "rounds", "rounds_in_all")}

    @property
    def keys(self) -> list[str]:
        """All runs."""
        every = (trial for by_method in (self.trials, self.again) for trials in by_method.values() for trial in trials)
        return list(dict.fromkeys(key for trial in every for key in trial.keys))

    def ranked(self, method: str, scores: Scores) -> list[Trial]:
        """The settings of a finished search, best first: most rounds, then best score, then earliest."""
        order = sorted(self.trials[method], key=lambda trial: (-trial.rounds, -(trial.score(scores) or 0.0)))
        return [trial for k, trial in enumerate(order) if trial.values not in [other.values for other in order[:k]]]

    def winner(self, method: str, scores: Scores) -> Trial:
        """Of the settings that were run again the one with the best mean. Raises UserError for an unfinished study."""
        if method not in self.definition["methods"]:
            known = ", ".join(self.definition["methods"])
            raise UserError(f"The study '{self.name}' has not tuned {method}.", f"It has: {known}.")
        candidates = self.again.get(method, ())[1:]
        found = [(trial.score(scores), trial) for trial in candidates]
        if not found or any(score is None for score, _ in found):
            raise UserError(f"The study '{self.name}' is not over.", "Repeat its command, `pflbench tune`, to continue it.")
        return max(found, key=lambda pair: pair[0] or 0.0)[1]

    def plain(self) -> dict[str, Any]:
        """As JSON types, without the name."""
        plain = asdict(self)
        del plain["name"]
        return plain


_STUDY_FROM_JSON = TypeAdapter(StoredStudy)


def words(budget: Mapping[str, Any]) -> str:
    """A budget in words: '12 trials of 60 rounds'."""
    if budget["sampler"] == "halving":
        return (
            f"{budget['trials']} trials by successive halving, {budget['rounds_in_all']} rounds, at most {budget['rounds']} each"
        )
    return f"{budget['trials']} trials of {budget['rounds']} rounds each"


def of_sweep(name: str, environment: Mapping[str, Any]) -> StoredStudy | None:
    """The study that a sweep with this name and environment is, if it is one."""
    plain = environment.get("study")
    return None if plain is None else _STUDY_FROM_JSON.validate_python({"name": name, **plain})


def listed(engine: Engine) -> list[StoredStudy]:
    """All studies, oldest first."""
    return [study for sweep in sweeps.listed(engine) if (study := of_sweep(sweep.name, sweep.environment))]


def find(engine: Engine, name: str) -> StoredStudy:
    """Raises UserError if there is none of that name."""
    known = {study.name: study for study in listed(engine)}
    if name not in known:
        hint = f"Studies: {', '.join(known)}." if known else "It has no studies: pflbench tune makes one."
        raise UserError(f"There is no study '{name}' in this database.", hint)
    return known[name]


def scores(engine: Engine, keys: Collection[str]) -> dict[str, float]:
    """See `Scores`. Raises UserError for a finished run without validation."""
    ended: dict[str, Run] = {}
    for key, found in attempts(engine, keys).items():
        if run := that_counts([run for run in found if run.status in OVER]):
            ended[key] = run
    query = select(RoundRow.run_id, func.max(RoundRow.val_accuracy)).group_by(RoundRow.run_id)
    query = query.where(RoundRow.run_id.in_([run.id for run in ended.values()]))
    with reading(engine) as connection:
        best = {run: accuracy for run, accuracy in connection.execute(query) if accuracy is not None}
    for run in ended.values():
        if run.status == "finished" and run.id not in best:
            raise UserError(f"Run {run.id} has no validation accuracy: no client has validation samples.", "Raise --val-share.")
    return {key: best[run.id] if run.status == "finished" else 0.0 for key, run in ended.items()}


def mark(engine: Engine, keys: Collection[str], study: StoredStudy) -> None:
    """Records with finished runs that their hyperparameters are a study's winners, and its budget."""
    for found in attempts(engine, keys).values():
        run = that_counts(found)
        if run is None or run.status != "finished":
            continue
        known = run.environment.get("studies", {})
        if known.get(study.name) != study.budget:
            update_run(engine, run.id, environment={**run.environment, "studies": {**known, study.name: study.budget}})


def tuned(engine: Engine, run_ids: Iterable[int]) -> dict[int, dict[str, Mapping[str, Any]]]:
    """By run that uses a study's winner: the budget by study."""
    query = select(RunRow.id, RunRow.environment["studies"]).where(RunRow.id.in_(list(run_ids)))
    with reading(engine) as connection:
        return {run: of for run, of in connection.execute(query) if of}


def trials_only(engine: Engine) -> dict[str, str]:
    """By key of a run that is a trial and nothing that is run again: the study."""
    every = listed(engine)
    again = {key for study in every for trials in study.again.values() for trial in trials for key in trial.keys}
    searched = {key: study.name for study in every for trials in study.trials.values() for trial in trials for key in trial.keys}
    return {key: name for key, name in searched.items() if key not in again}
