"""The outlook of a goal: finished and missing runs, the time left, and obstacles such as missing data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from pflbench import data, models
from pflbench.errors import UserError
from pflbench.report import labels
from pflbench.reproduce.goal import Goal, Wanted
from pflbench.reproduce.progress import RunProgress, Tally, progress_of
from pflbench.run.plan import warnings
from pflbench.spec import RunSpec


@dataclass(frozen=True)
class Outlook:
    """lacking: dataset -> why it cannot be read, with the command that gets it."""

    goal: Goal
    progress: tuple[RunProgress, ...]
    lacking: dict[str, UserError]

    @property
    def ahead(self) -> list[RunProgress]:
        """Unfinished runs whose data are here."""
        return [one for one in self.progress if one.rounds_left and one.wanted.spec.data.label not in self.lacking]

    @property
    def seconds(self) -> float:
        """The time of all runs ahead that have an estimate."""
        return Tally.of(self.ahead).seconds

    @property
    def unknown(self) -> dict[str, int]:
        """Reason why a run has no estimate of time -> number of runs."""
        return dict(Counter(one.basis for one in self.ahead if one.seconds is None))

    @property
    def runs(self) -> list[int]:
        """Numbers of the stored runs, also of those that the result only mentions, as diverged ones."""
        return [one.run for one in self.progress if one.run is not None]

    @property
    def tabled(self) -> list[int]:
        """Those of `runs` that the table shows."""
        return [one.run for one in self.progress if one.run is not None and one.wanted.tabled]

    @property
    def weights(self) -> list[float]:
        """Expected time of each run ahead: in seconds, or in rounds if the seconds of one are not known."""
        seconds = [one.seconds for one in self.ahead if one.seconds is not None]
        return seconds if len(seconds) == len(self.ahead) else [float(one.rounds_left) for one in self.ahead]

    def parts(self) -> dict[str, Tally]:
        """The progress of each setting, in the order of the table."""
        by_setting: dict[str, list[RunProgress]] = {}
        for one in self.progress:
            # Runs without data are not trained, so they take no time.
            there = one.wanted.spec.data.label not in self.lacking
            by_setting.setdefault(_setting(one.wanted.spec), []).append(one if there else replace(one, seconds=0.0))
        return {setting: Tally.of(same) for setting, same in by_setting.items()}

    def remarks(self) -> list[str]:
        """Remarks about some of the runs, and obstacles, a line each."""
        said = warnings([one.wanted.spec for one in self.ahead])
        for one in self.progress:
            if one.state == "interrupted":
                reached = f"after round {one.round} of {one.wanted.spec.train.rounds}"
                said.append(f"Interrupted, and goes on: run {one.run}, {one.wanted.name}, {reached}.")
            if one.state == "diverged":
                said.append(f"Diverged, and stays so: run {one.run}, {one.wanted.name}. Anew: {one.wanted.command} --force")
            if one.anew:
                said.append(f"Run anew, since what there is did not keep {one.wanted.keeps.array}: {one.wanted.name}.")
        said += [f"Left out, since the model of this scale has too few blocks: {label}." for label in self.goal.left_out]
        said += [
            f"pflbench does not have the dataset {name}: {labels.counted(n, 'cell')} {'are' if n != 1 else 'is'} skipped."
            for name, n in self.goal.foreign.items()
        ]
        for name, reason in self.lacking.items():
            runs = sum(one.rounds_left > 0 and one.wanted.spec.data.label == name for one in self.progress)
            skipped = (
                "It is left out."
                if self.goal.untrained
                else f"{labels.counted(runs, 'run')} {'are' if runs != 1 else 'is'} skipped."
            )
            said.append(f"{reason.message} {skipped} {reason.hint}")
        return said

    def require_something(self) -> None:
        """Raises UserError if there is no finished run and none can be trained."""
        if self.ahead or any(one.state == "there" for one in self.progress):
            return
        if self.goal.untrained and any(cell.place.data not in self.lacking for cell in self.goal.cells):
            return
        name = self.goal.name
        for reason in self.lacking.values():
            raise UserError(f"Nothing of '{name}' can be run here. {reason.message}", reason.hint)
        if diverged := [one for one in self.progress if one.state == "diverged"]:
            raise UserError(f"All {len(diverged)} runs of '{name}' diverged.", "`pflbench runs list` names them.")
        lacking = f"pflbench does not have the dataset {', '.join(self.goal.foreign)}" if self.goal.foreign else "no line is left"
        raise UserError(f"Nothing of '{name}' can be run: {lacking}.", "Choose others with --method and --dataset.")

    def document(self) -> dict[str, Any]:
        """The outlook as JSON types; times in seconds, None if not known."""
        return {
            "name": self.goal.name,
            "scale": self.goal.scale.name,
            "keeps": self.goal.scale.sentence,
            "seconds": self.seconds,
            "unknown": self.unknown,
            "lacking": {name: {"message": error.message, "hint": error.hint} for name, error in self.lacking.items()},
            "foreign": self.goal.foreign,
            "left_out": self.goal.left_out,
            "runs": [_record(one) for one in self.progress],
        }


def look(goal: Goal, wanted: Sequence[Wanted], engine: Engine | None, data_dir: Path, progress: data.Progress | None) -> Outlook:
    """The outlook of a goal. engine: None if there is no database yet. Only the data of unfinished runs are read."""
    each = progress_of(engine, wanted)
    ahead = [one.wanted.spec for one in each if one.rounds_left]
    read = [one.spec for one in goal.planned(data_dir)] if goal.untrained else ahead
    return Outlook(goal, tuple(each), lacking(read, data_dir, progress))


def lacking(specs: Sequence[RunSpec], data_dir: Path, progress: data.Progress | None = None) -> dict[str, UserError]:
    """The datasets of the runs that cannot be read, with the reason."""
    found = {}
    for label, source in {spec.data.label: spec.data for spec in specs}.items():
        try:
            data.load(source, data_dir, progress)
        except UserError as error:
            found[label] = error
    return found


def _setting(spec: RunSpec) -> str:
    train, partition = spec.train, spec.partition
    joining = f", join ratio {train.join_ratio:g}" if train.join_ratio < 1 else ""
    epochs = f", {train.local_epochs} local epochs" if train.local_epochs > 1 else ""
    where = f"{labels.label_title(spec.data.label)}, {partition.label}, {models.title(spec.model)}"
    return f"{where}, {partition.clients} clients{joining}{epochs}, {train.rounds} round{'s' * (train.rounds > 1)}"


def _record(one: RunProgress) -> dict[str, Any]:
    spec = one.wanted.spec
    return {
        "key": spec.key,
        "method": spec.method.name,
        "dataset": spec.data.label,
        "setting": _setting(spec),
        "seed": spec.seed,
        "state": one.state,
        "run": one.run,
        "round": one.round,
        "rounds": spec.train.rounds,
        "anew": one.anew,
        "seconds": one.seconds,
        "basis": one.basis,
        "command": one.wanted.command,
    }
