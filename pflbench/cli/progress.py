"""What is shown on stderr while something runs: a Rich bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from pflbench.cli.console import message, stderr

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


def _display(*more: TextColumn) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        *more,
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=stderr())


def _beginning(step: Step) -> str:
    return f"resumed after round {step.round}" if step.kind == "resumed" else f"started, {step.rounds} rounds"


def _figures(step: Step) -> str:
    accuracy = "" if step.accuracy is None else f"accuracy {100 * step.accuracy:.2f} %  "
    best = "" if step.best is None else f"best {100 * step.best:.2f} %  "
    return Text(f"{accuracy}{best}{step.seconds:.3g} s/round").plain
