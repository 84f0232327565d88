"""What is shown on stderr while something runs: a Rich bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Protocol

import typer
from rich.progress import BarColumn, Progress, Task, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from pflbench.cli.console import duration, error, message, stderr
from pflbench.errors import Diverged

if TYPE_CHECKING:
    from pflbench.data import Progress as DataProgress
    from pflbench.run import Progress as Step

# A log of 2,000 rounds should still be readable.
SECONDS_BETWEEN_LINES = 5.0


class View(Protocol):
    def show(self, step: Step) -> None: ...


class Quiet:
    def show(self, step: Step) -> None:
        pass


class Lines:
    """The first and the last round of a run, and between them at most one line every few seconds."""

    def __init__(self, name: str) -> None:
        self._name, self._last, self._first = name, 0.0, True

    def show(self, step: Step) -> None:
        if step.kind in ("started", "resumed"):
            message(f"{self._name}: run {step.run_id} {_beginning(step)}")
        elif step.kind == "round":
            now = time.monotonic()
            if self._first or step.round == step.rounds or now - self._last >= SECONDS_BETWEEN_LINES:
                self._first, self._last = False, now
                message(f"{self._name}: round {step.round}/{step.rounds}  {_figures(step)}")


class Bar:
    """One bar of a Rich progress display."""

    def __init__(self, display: Progress, name: str) -> None:
        self._display, self._task = display, display.add_task(name, total=None, figures="")

    def show(self, step: Step) -> None:
        note = _beginning(step) if step.kind in ("started", "resumed") else _figures(step)
        self._display.update(self._task, total=step.rounds, completed=step.round, figures=note)

    def close(self) -> None:
        self._display.stop_task(self._task)


class Series:
    """How far several runs are together. weights: the share of the time that each is expected to take, in any unit."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights, self._begun, self._number, self._within = list(weights), time.monotonic(), -1, 0.0

    def begin(self) -> None:
        """The next run."""
        self._number, self._within = self._number + 1, 0.0

    def reach(self, share: float) -> None:
        """So much of the run under way is done, from 0 to 1."""
        self._within = share

    @property
    def done(self) -> float:
        """Of 1."""
        reached = sum(self._weights[: self._number]) + self._within * self._weights[self._number]
        return reached / (sum(self._weights) or 1)

    @property
    def title(self) -> str:
        return f"run {self._number + 1} of {len(self._weights)}"

    @property
    def left(self) -> str:
        """By the time that it has taken so far."""
        if self.done == 0:
            return ""
        return f"{duration((time.monotonic() - self._begun) * (1 - self.done) / self.done)} left"


class SeriesBar(Bar):
    """The bar of a run, and above it that of its series."""

    def __init__(self, display: Progress, name: str, series: Series) -> None:
        self._series, self._whole, self._from = series, display.add_task(series.title, total=1, figures="", left=""), 0
        super().__init__(display, name)

    def show(self, step: Step) -> None:
        super().show(step)
        if step.kind in ("started", "resumed"):
            self._from = step.round
        self._series.reach((step.round - self._from) / max(1, step.rounds - self._from))
        self._display.update(self._whole, completed=self._series.done, left=self._series.left)


@contextmanager
def series_view(name: str, quiet: bool, series: Series) -> Iterator[View]:
    """As `run_view`, for the next run of a series."""
    series.begin()
    if quiet:
        yield Quiet()
    elif not sys.stderr.isatty():
        left = f", about {series.left}" if series.left else ""
        message(f"{series.title.capitalize()}{left}")
        yield Lines(name)
    else:
        with _display(TextColumn("{task.fields[figures]}"), transient=True) as display:
            yield SeriesBar(display, name, series)


@contextmanager
def run_view(name: str, quiet: bool) -> Iterator[View]:
    """Shows the progress of one run as long as the context lasts."""
    if quiet:
        yield Quiet()
    elif not sys.stderr.isatty():
        yield Lines(name)
    else:
        with _display(TextColumn("{task.fields[figures]}")) as display:
            bar = Bar(display, name)
            try:
                yield bar
            finally:
                bar.close()


def follow(name: str, steps: Generator[Step], shown: AbstractContextManager[View]) -> bool:
    """Shows a run's progress to its end. False if it diverged, which is reported here: other runs go on.

    Ctrl-C ends the command, with what the run keeps.
    """
    step: Step | None = None
    try:
        with shown as view, closing(steps):
            for step in steps:
                view.show(step)
                if step.note:
                    message(f"{name}: {step.note}")
    except Diverged as diverged:
        error(diverged.message, diverged.hint)
        return False
    except KeyboardInterrupt:
        kept = "Nothing had begun." if step is None else f"Run {step.run_id} keeps its rounds up to {step.round}."
        message(f"Interrupted. {kept} The same command goes on from there.")
        raise typer.Exit(130) from None
    if step is not None and step.kind == "exists":
        message(f"{name}: run {step.run_id} is finished already; --force runs it anew.")
    return True


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
    return Progress(*columns, console=stderr(), transient=transient)


def _beginning(step: Step) -> str:
    return f"resumed after round {step.round}" if step.kind == "resumed" else f"started, {step.rounds} rounds"


def _figures(step: Step) -> str:
    accuracy = "" if step.accuracy is None else f"accuracy {100 * step.accuracy:.2f} %  "
    best = "" if step.best is None else f"best {100 * step.best:.2f} %  "
    return Text(f"{accuracy}{best}{step.seconds:.3g} s/round").plain
