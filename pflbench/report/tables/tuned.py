"""`table tuned`: what each study has found, on fresh seeds; and the notes of other tables about tuned rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import labels
from pflbench.report.selection import Filters
from pflbench.report.tables.cell import value
from pflbench.report.tables.grid import CellText, Column, Grid
from pflbench.store import studies
from pflbench.store.locks import OVER
from pflbench.store.runs import Result, RoundRule
from pflbench.store.studies import Scores, StoredStudy, Trial, words


@dataclass(frozen=True)
class TunedMethod:
    """A method in a study. trials, rounds: spent in the search. validation, default, test: by fresh seed, in percent."""

    study: str
    method: str
    title: str
    trials: int
    rounds: int
    winner: Mapping[str, Any]
    validation: tuple[float, ...]
    default: tuple[float, ...]
    test: tuple[float, ...]
    runs: tuple[int, ...]


@dataclass(frozen=True)
class TunedTable:
    """studies: those that the rows are of."""

    rows: tuple[TunedMethod, ...]
    studies: tuple[StoredStudy, ...]
    notes: tuple[str, ...]

    def grid(self) -> Grid:
        several = len(self.studies) > 1
        columns = {
            ("trials",): [str(row.trials) for row in self.rows],
            ("rounds",): [str(row.rounds) for row in self.rows],
            ("best hyperparameters",): [_setting(row.winner) for row in self.rows],
            ("best", "validation %"): [_mean(row.validation) for row in self.rows],
            ("best", "test %"): [_mean(row.test) for row in self.rows],
            ("default", "test %"): [_mean(row.default) for row in self.rows],
        }
        names = tuple(f"{row.study}: {row.title}" if several else row.title for row in self.rows)
        entries = {
            head: tuple(
                CellText(text, runs=row.runs if head[-1] == "test %" else ()) for text, row in zip(texts, self.rows, strict=True)
            )
            for head, texts in columns.items()
        }
        return Grid(
            "Tuned hyperparameters",
            names,
            tuple(Column(head, texts) for head, texts in entries.items()),
            self.notes,
            tuple({**vars(row), "winner": dict(row.winner)} for row in self.rows),
            {"studies": {study.name: study.budget for study in self.studies}},
        )


def build(engine: Engine, filters: Filters = Filters(), *, study: str | None = None) -> TunedTable:
    """A row for each method of each study, or of one, whose runs on fresh seeds pass the filters.

    Raises UserError for an unknown study, and NothingYet if there is none, or none whose search is over.
    """
    every = [studies.find(engine, study)] if study else studies.listed(engine)
    if not every:
        raise NothingYet("There is no study in this database.", "Make one: pflbench tune NAME -m ditto --val-share 0.1")
    ended = [run for run in filters.matching(engine, RoundRule("val")) if run.status in OVER]
    passing = {run.key: run for run in sorted(ended, key=lambda run: run.status == "finished")}  # the attempt that has the score
    rows: list[TunedMethod] = []
    notes: list[str] = []
    shown: list[StoredStudy] = []
    for one in every:
        scores = studies.scores(engine, one.keys)
        found = [_row(one, method, again, scores, passing) for method, again in one.again.items()]
        mine = [row for row in found if row is not None]
        rows += mine
        if any(trial.score(scores) is None for again in one.again.values() for trial in again) or not one.again:
            over = sum(trial.score(scores) is not None for trials in one.trials.values() for trial in trials)
            notes.append(f"The study {one.name} is not over ({labels.counted(over, 'trial')} so far): repeat its command.")
        if mine:
            shown.append(one)
            notes += _notes(one, mine)
    if not rows:
        raise NothingYet(" ".join(notes) or "No study has such runs.", "`pflbench sweep list` shows all studies.")
    notes.append("Test accuracy of the round with the best validation accuracy; mean ± population std over the fresh seeds.")
    if len({tuple(one.budget.values()) for one in shown}) > 1:
        notes.append("The studies have different budgets: their methods do not compare.")
    return TunedTable(tuple(rows), tuple(shown), tuple(notes))


def tuning_notes(engine: Engine, rows: Mapping[str, Collection[int]]) -> list[str]:
    """Which rows of a table are tuned by which study, and whether their budgets differ. rows: label -> numbers of its runs."""
    found = studies.tuned(engine, [run for runs in rows.values() for run in runs])
    if not found:
        return []
    by_row = {
        label: {name: budget for run in runs for name, budget in found.get(run, {}).items()} for label, runs in rows.items()
    }
    by_row = {label: own for label, own in by_row.items() if rows[label]}
    budgets = {name: words(budget) for own in by_row.values() for name, budget in own.items()}
    notes = [
        f"Tuned: {', '.join(label for label, own in by_row.items() if name in own)} by study {name} ({budget})."
        for name, budget in budgets.items()
    ]
    if not set.intersection(*({words(budget) for budget in own.values()} for own in by_row.values())):
        without = [label for label, own in by_row.items() if not own]
        which = f"; not tuned: {labels.some(without)}" if without else ""
        notes.append(f"Rows with different budgets of tuning stand beside each other{which}.")
    return notes


def _row(
    study: StoredStudy, method: str, again: Sequence[Trial], scores: Scores, passing: Mapping[str, Result]
) -> TunedMethod | None:
    """None if its runs on fresh seeds are not over or do not pass the filters."""
    if any(trial.score(scores) is None for trial in again) or not all(key in passing for trial in again for key in trial.keys):
        return None
    winner = study.winner(method, scores)
    trials = study.trials[method]
    default, best = ([passing[key] for key in trial.keys] for trial in (again[0], winner))
    return TunedMethod(
        study.name,
        method,
        labels.method_title(method, best[0].title),
        len(trials),
        sum(trial.rounds for trial in trials),
        {name.removeprefix(f"{method}."): value for name, value in winner.values.items()},
        tuple(100 * scores[key] for key in winner.keys),
        _tests(default),
        _tests(best),
        tuple(run.id for run in best),
    )


def _tests(found: Sequence[Result]) -> tuple[float, ...]:
    """In percent; 0 for a run that diverged or failed, as in the search."""
    return tuple(100 * (run.value or 0.0) if run.status == "finished" else 0.0 for run in found)


def _notes(study: StoredStudy, rows: Sequence[TunedMethod]) -> list[str]:
    asked = study.definition
    seeds = ", ".join(map(str, asked["seeds"]))
    which = "the best setting" if asked["best"] == 1 else f"the {asked['best']} best settings"
    notes = [
        f"Study {study.name}: each method had up to {words(study.budget)} ({asked['sampler']}, seed {asked['seed']}); {which} by "
        f"validation accuracy and the defaults were then run with seeds {seeds}.",
        f"Validation: {100 * asked['val_share']:g} % of each client's training samples.",
    ]
    fewer: dict[int, list[str]] = {}
    for row in rows:
        if not asked["methods"][row.method]["space"]:
            notes.append(f"{row.title} has nothing to search: its defaults are its one setting.")
        elif row.rounds < asked["rounds_in_all"]:
            fewer.setdefault(row.trials, []).append(row.title)
    notes += [
        f"{', '.join(titles)}: {labels.counted(trials, 'trial')}; there are no more settings." for trials, titles in fewer.items()
    ]
    return notes


def _setting(winner: Mapping[str, Any]) -> str:
    return ", ".join(labels.words(name, value) for name, value in winner.items()) or "default"


def _mean(values: Sequence[float]) -> str:
    return value(mean(values), float(np.std(values)) if len(values) > 1 else None)
