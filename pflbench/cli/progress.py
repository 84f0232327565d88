"""Progress on stderr: Rich bars on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from pflbench.cli.console import error, message, stderr
from pflbench.errors import Diverged, Occupied

if TYPE_CHECKING:
    from pflbench.data import Progress as DataProgress
    from pflbench.run.training import Progress as Step
    from pflbench.spec import RunSpec
    from pflbench.store.sweeps import SweepState
    from pflbench.sweep.run_queue import Follow, RunQueue, Steps

# A log of 2,000 rounds should still be readable.
SECONDS_BETWEEN_LINES = 5.0
Show = Callable[[int, "Step"], None]
"""Shows a step of a run, by the run's number in its pack."""


@contextmanager
def run_view(names: Sequence[str], quiet: bool) -> Iterator[Show]:
    """Shows every round of a run in this process, or of the runs of a pack."""
    if quiet:
        yield lambda number, step: None
    elif not sys.stderr.isatty():
        yield _lines(names)
    else:
        with _display(TextColumn("{task.fields[figures]}")) as display:
            tasks = [display.add_task(name, total=None, figures="") for name in names]

            def show(number: int, step: Step) -> None:
                figures = _beginning(step) if step.kind in ("started", "resumed") else _figures(step)
                display.update(tasks[number], total=step.rounds, completed=step.round, figures=figures)

            try:
                yield show
            finally:
                for task in tasks:
                    display.stop_task(task)


def _lines(names: Sequence[str]) -> Show:
    """Prints the first and the last round of each run, and others at most every few seconds."""
    last = dict.fromkeys(range(len(names)), float("-inf"))

    def show(number: int, step: Step) -> None:
        if step.kind in ("started", "resumed"):
            message(f"{names[number]}: run {step.run_id} {_beginning(step)}")
        elif step.kind == "round":
            now = time.monotonic()
            if step.round == step.rounds or now - last[number] >= SECONDS_BETWEEN_LINES:
                last[number] = now
                message(f"{names[number]}: round {step.round}/{step.rounds}  {_figures(step)}")

    return show


@contextmanager
def sweep_view(queue: RunQueue, quiet: bool) -> Iterator[Callable[[SweepState], None]]:
    """A callback that shows the runs of a queue: a bar for all, and one for each run that trains.

    The warnings of a run are printed when it ends, equal ones once.
    """
    names = dict(zip((spec.key for spec in queue.specs), named(queue.specs), strict=True))
    ended, told = set[str](), set[str]()

    def tell(state: SweepState) -> None:
        from pflbench.sweep.run_queue import news

        for key in state.keys("finished", "diverged", "failed"):
            if key in ended:
                continue
            ended.add(key)
            for text in news(state.runs[key]):
                if text not in told:
                    told.add(text)
                    message(f"{names[key]}: {text}")
            if not quiet and not sys.stderr.isatty():
                message(f"{len(ended)}/{len(names)}  {names[key]}: {state.states[key]}")

    if quiet or not sys.stderr.isatty():
        yield tell
        return
    with _display(TextColumn("{task.fields[figures]}"), transient=True) as display:
        bars = _SweepBars(display, names, {spec.key: spec.train.rounds for spec in queue.specs})

        def look(state: SweepState) -> None:
            tell(state)
            bars.show(state)

        yield look


class _SweepBars:
    """A bar for all rounds of a sweep, and one for each run that trains."""

    def __init__(self, display: Progress, names: Mapping[str, str], rounds: Mapping[str, int]) -> None:
        self._display, self._names, self._rounds = display, names, rounds
        self._whole = display.add_task("sweep", total=sum(rounds.values()), figures="")
        self._tasks: dict[str, TaskID] = {}

    def show(self, state: SweepState) -> None:
        reached = {key: (run and run.last_round) or 0 for key, run in state.runs.items()}
        over, under_way = state.keys("finished", "diverged", "failed"), state.keys("running")
        for key in self._tasks.keys() - set(under_way):
            self._display.remove_task(self._tasks.pop(key))
        for key in under_way:
            if key not in self._tasks:
                self._tasks[key] = self._display.add_task(self._names[key], total=self._rounds[key], figures="")
            self._display.update(self._tasks[key], completed=reached[key])
        failed = f", {state.counts['failed']} failed" if state.counts["failed"] else ""
        done = sum(self._rounds[key] if key in set(over) else reached[key] for key in reached)
        self._display.update(self._whole, completed=done, figures=f"{len(over)}/{len(self._rounds)} runs{failed}")


def apart(specs: Sequence[RunSpec]) -> list[str]:
    """How each run differs from others of its method, dataset and partition, apart from the seed: "p=2", or ""."""
    names = [(spec.method.name, spec.data.label, spec.partition.label) for spec in specs]
    return differences(names, [spec.model_dump(mode="json") for spec in specs])


def differences(names: Sequence[Hashable], specs: Sequence[Mapping[str, Any]], said: Collection[str] = ()) -> list[str]:
    """How each specification differs from others of its name, apart from the seed and the items `said`, such as train.rounds."""
    from pflbench.report import labels

    alike: dict[Hashable, list[int]] = {}
    for place, name in enumerate(names):
        alike.setdefault(name, []).append(place)
    found = [""] * len(specs)
    for places in alike.values():
        flat = [labels.flat({**specs[place], "seed": None}) for place in places]
        for place, own in zip(places, labels.telling_apart(flat), strict=True):
            found[place] = ", ".join(labels.words(name, value) for name, value in own.items() if name not in said)
    return found


def named(specs: Sequence[RunSpec]) -> list[str]:
    """A name for each run."""
    return [
        f"{spec.method.name}{f' ({more})' if more else ''} {spec.data.label} {spec.partition.label} seed {spec.seed}"
        for spec, more in zip(specs, apart(specs), strict=True)
    ]


def followed(specs: Sequence[RunSpec], quiet: bool) -> Follow:
    """Shows the rounds of runs in this process. A run that diverges is reported, and the others continue."""
    names = dict(zip((spec.key for spec in specs), named(specs), strict=True))

    def follow(pack: Sequence[RunSpec], steps: Steps) -> Steps:
        own, told = [names[spec.key] for spec in pack], set[str]()
        with run_view(own, quiet) as show, closing(steps):
            for number, step in steps:
                if isinstance(step, Diverged):
                    error(step.message, step.hint)
                elif not isinstance(step, Occupied):
                    show(number, step)
                    for text in step.news:
                        if text not in told:  # each run of a pack reports the same warnings
                            told.add(text)
                            message(f"{own[number]}: {text}")
                yield number, step

    return follow


@contextmanager
def data_view(quiet: bool = False) -> Iterator[DataProgress | None]:
    """A callback (what, done, total) that shows a bar for each `what`, or prints it once where there is no terminal."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        printed = set[str]()

        def tell(what: str, done: int, total: int) -> None:
            if what not in printed and done < total:
                printed.add(what)
                message(f"{what} ...")

        yield tell
        return
    with _display() as display:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = display.add_task(what, figures="")
            display.update(tasks[what], completed=done, total=total or None)

        yield show


def _display(*more: TextColumn, transient: bool = False) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(), *more, TimeRemainingColumn())
    # With a bar Rich would redirect stdout to its console, which is stderr.
    return Progress(*columns, console=stderr(), transient=transient, redirect_stdout=sys.stdout.isatty())


def _beginning(step: Step) -> str:
    return f"resumed after round {step.round}" if step.kind == "resumed" else f"started, {step.rounds} rounds"


def _figures(step: Step) -> str:
    accuracy = "" if step.accuracy is None else f"accuracy {100 * step.accuracy:.2f} %  "
    best = "" if step.best is None else f"best {100 * step.best:.2f} %  "
    return Text(f"{accuracy}{best}{step.seconds:.3g} s/round").plain
