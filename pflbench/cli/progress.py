"""What is shown on stderr while something runs: a Rich bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from operator import mul
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, Progress, Task, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from pflbench.cli.console import duration, error, message, stderr
from pflbench.errors import Diverged, Occupied

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.data import Progress as DataProgress
    from pflbench.run.loop import Progress as Step
    from pflbench.spec import RunSpec
    from pflbench.sweep.conduct import Course
    from pflbench.sweep.jobs import Steps

# A log of 2,000 rounds should still be readable.
SECONDS_BETWEEN_LINES = 5.0


class View(Protocol):
    """Of the runs of a pack, by their numbers in it: most are alone in theirs."""

    def show(self, number: int, step: Step) -> None: ...


class Quiet:
    def show(self, number: int, step: Step) -> None:
        pass


class Lines:
    """The first and the last round of each run, and between them at most one line of it every few seconds."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._last = names, dict.fromkeys(range(len(names)), float("-inf"))

    def show(self, number: int, step: Step) -> None:
        name = self._names[number]
        if step.kind in ("started", "resumed"):
            message(f"{name}: run {step.run_id} {_beginning(step)}")
        elif step.kind == "round":
            now = time.monotonic()
            if step.round == step.rounds or now - self._last[number] >= SECONDS_BETWEEN_LINES:
                self._last[number] = now
                message(f"{name}: round {step.round}/{step.rounds}  {_figures(step)}")


class Bars:
    """A bar of a Rich progress display for each run."""

    def __init__(self, display: Progress, names: Sequence[str]) -> None:
        self._display = display
        self._tasks = [display.add_task(name, total=None, figures="") for name in names]

    def show(self, number: int, step: Step) -> None:
        note = _beginning(step) if step.kind in ("started", "resumed") else _figures(step)
        self._display.update(self._tasks[number], total=step.rounds, completed=step.round, figures=note)

    def close(self) -> None:
        for task in self._tasks:
            self._display.stop_task(task)


class Series:
    """How far many runs are together. weights: the share of the time that each is expected to take, in any unit."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights, self._begun, self._over = list(weights), time.monotonic(), 0
        self._shares, self._under_way = [0.0] * len(self._weights), tuple[int, ...]()

    def begin(self, *runs: int) -> None:
        """The next run, or the next ones that are made together, by their places among the weights."""
        for run in self._under_way:
            self._shares[run] = 1.0
        self._over, self._under_way = self._over + len(self._under_way), runs

    def reach(self, share: float, number: int = 0) -> None:
        """So much of a run under way is done, from 0 to 1. number: its place among those."""
        self._shares[self._under_way[number]] = share

    @property
    def done(self) -> float:
        """Of 1."""
        return float(sum(map(mul, self._shares, self._weights))) / (sum(self._weights) or 1)

    @property
    def title(self) -> str:
        first, last = self._over + 1, self._over + len(self._under_way)
        which = f"run {first}" if first == last else f"runs {first} to {last}"
        return f"{which} of {len(self._weights)}"

    @property
    def left(self) -> str:
        """By the time that it has taken so far."""
        if self.done == 0:
            return ""
        return f"{duration((time.monotonic() - self._begun) * (1 - self.done) / self.done)} left"


class SeriesBars(Bars):
    """The bars of the runs under way, and above them that of their series."""

    def __init__(self, display: Progress, names: Sequence[str], series: Series) -> None:
        self._series, self._whole = series, display.add_task(series.title, total=1, figures="", left="")
        self._from = [0] * len(names)
        super().__init__(display, names)

    def show(self, number: int, step: Step) -> None:
        super().show(number, step)
        if step.kind in ("started", "resumed"):
            self._from[number] = step.round
        begun = self._from[number]
        self._series.reach((step.round - begun) / max(1, step.rounds - begun), number)
        self._display.update(self._whole, completed=self._series.done, left=self._series.left)


@contextmanager
def series_view(names: Sequence[str], quiet: bool, series: Series) -> Iterator[View]:
    """As `run_view`, for the runs of a series that have begun."""
    if quiet:
        yield Quiet()
    elif not sys.stderr.isatty():
        left = f", about {series.left}" if series.left else ""
        message(f"{series.title.capitalize()}{left}")
        yield Lines(names)
    else:
        with _display(TextColumn("{task.fields[figures]}"), transient=True) as display:
            yield SeriesBars(display, names, series)


@contextmanager
def sweep_view(course: Course, results: sqlalchemy.Engine, quiet: bool) -> Iterator[Callable[[Course], None]]:
    """A callback that shows how a sweep stands: a bar for all of it, and one for each run under way.

    What the user should know of a run is told when it is over, of several that tell the same once.
    """
    names = dict(zip((spec.key for spec in course.ahead), named(course.ahead), strict=True))
    told: set[str] = set()

    def news(state: Course) -> None:
        for key, outcome in state.ended.items():
            for text in outcome.news:
                if text not in told:
                    told.add(text)
                    message(f"{names[key]}: {text}")

    def with_news(show: Callable[[Course], None]) -> Callable[[Course], None]:
        def look(state: Course) -> None:
            news(state)
            show(state)

        return look

    if quiet:
        yield news
    elif not sys.stderr.isatty():
        yield with_news(SweepLines(names).show)
    else:
        with _display(TextColumn("{task.fields[figures]}"), transient=True) as display:
            yield with_news(SweepBars(display, course, names, results).show)


class SweepLines:
    """A line for each run that has ended, with how many are over."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._told: set[str] = set()

    def show(self, state: Course) -> None:
        for key, outcome in state.ended.items():
            if key not in self._told:
                self._told.add(key)
                message(f"{len(self._told)}/{len(self._names)}  {self._names[key]}: {outcome.state}")


class SweepBars:
    """All rounds of a sweep as one bar, and those of the runs under way."""

    def __init__(self, display: Progress, course: Course, names: Mapping[str, str], results: sqlalchemy.Engine) -> None:
        self._display, self._names, self._results = display, names, results
        self._rounds = {spec.key: spec.train.rounds for spec in course.ahead}
        self._whole = display.add_task("sweep", total=sum(self._rounds.values()), figures="")
        self._tasks: dict[str, TaskID] = {}

    def show(self, state: Course) -> None:
        from pflbench.sweep.conduct import under_way

        reached = under_way(state, self._results)
        for key in self._tasks.keys() - reached.keys():
            self._display.remove_task(self._tasks.pop(key))
        for spec in state.under_way:
            if spec.key not in self._tasks:
                self._tasks[spec.key] = self._display.add_task(self._names[spec.key], total=spec.train.rounds, figures="")
            self._display.update(self._tasks[spec.key], completed=reached[spec.key])
        over = sum(self._rounds[key] for key in state.ended)
        failed = f", {state.count('failed')} failed" if state.count("failed") else ""
        runs = f"{len(state.ended)}/{len(self._rounds)} runs{failed}"
        self._display.update(self._whole, completed=over + sum(reached.values()), figures=runs)


def apart(specs: Sequence[RunSpec]) -> list[str]:
    """What tells each run from others of its method, dataset and partition, but the seed: "p=2"; "" where nothing does."""
    from pflbench.report import labels

    alike: dict[tuple[str, str, str], list[int]] = {}
    for place, spec in enumerate(specs):
        alike.setdefault((spec.method.name, spec.data.label, spec.partition.label), []).append(place)
    found = [""] * len(specs)
    for places in alike.values():
        flat = [labels.flat(specs[place].model_dump(mode="json", exclude={"seed"})) for place in places]
        for place, own in zip(places, labels.telling_apart(flat), strict=True):
            found[place] = ", ".join(labels.words(name, value) for name, value in own.items())
    return found


def named(specs: Sequence[RunSpec]) -> list[str]:
    """Each run in a few words."""
    return [
        f"{spec.method.name}{f' ({more})' if more else ''} {spec.data.label} {spec.partition.label} seed {spec.seed}"
        for spec, more in zip(specs, apart(specs), strict=True)
    ]


@contextmanager
def run_view(names: Sequence[str], quiet: bool) -> Iterator[View]:
    """Shows the progress of one run, or of several that are made together, as long as the context lasts."""
    if quiet:
        yield Quiet()
    elif not sys.stderr.isatty():
        yield Lines(names)
    else:
        with _display(TextColumn("{task.fields[figures]}")) as display:
            bars = Bars(display, names)
            try:
                yield bars
            finally:
                bars.close()


def followed(names: Sequence[str], steps: Steps, shown: AbstractContextManager[View]) -> Steps:
    """The steps of a job's runs, which are shown as they pass. One that diverges is reported here: others go on."""
    told: set[str] = set()
    with shown as view, closing(steps):
        for number, step in steps:
            if isinstance(step, Diverged):
                error(step.message, step.hint)
            elif not isinstance(step, Occupied):
                view.show(number, step)
                for text in step.news:
                    if text not in told:  # what a pack has met, each of its runs tells
                        told.add(text)
                        message(f"{names[number]}: {text}")
            yield number, step


@contextmanager
def data_view(quiet: bool = False) -> Iterator[DataProgress | None]:
    """A callback (what, done, total) that shows a bar for each `what`; None where no bar can be shown."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with _display() as display:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = display.add_task(what, figures="")
            display.update(tasks[what], completed=done, total=total or None)

        yield show


class _Left(TimeRemainingColumn):
    """The time left: a task's own word for it where it has one."""

    def render(self, task: Task) -> Text:
        own = task.fields.get("left")
        return super().render(task) if own is None else Text(own, style="progress.remaining")


def _display(*more: TextColumn, transient: bool = False) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        *more,
        _Left(),
    )
    # Beside a bar Rich would take what goes to stdout for its console, which is stderr.
    return Progress(*columns, console=stderr(), transient=transient, redirect_stdout=sys.stdout.isatty())


def _beginning(step: Step) -> str:
    return f"resumed after round {step.round}" if step.kind == "resumed" else f"started, {step.rounds} rounds"


def _figures(step: Step) -> str:
    accuracy = "" if step.accuracy is None else f"accuracy {100 * step.accuracy:.2f} %  "
    best = "" if step.best is None else f"best {100 * step.best:.2f} %  "
    return Text(f"{accuracy}{best}{step.seconds:.3g} s/round").plain
