"""Progress on stderr: Rich bars on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from pflbench.cli.console import error, message, stderr
from pflbench.errors import Diverged, Occupied

if TYPE_CHECKING:
    from pflbench.run.training import Progress as Step
    from pflbench.spec import RunSpec
    from pflbench.store.sweeps import SweepState
    from pflbench.sweep.run_queue import Follow, RunQueue, Steps

# A log of 2,000 rounds should still be readable.
SECONDS_BETWEEN_LINES = 5.0

_ROOM_FOR_A_BAR = 110


class _Figures(ProgressColumn):
    """Accuracy and seconds per round; a narrow terminal cuts them first."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["figures"], no_wrap=True, overflow="ellipsis")


@contextmanager
def bars(quiet: bool = False, transient: bool = False) -> Iterator[Callable[..., None] | None]:
    """A callback (what, done, total, figures, visible) that shows a bar for each `what`; None where no bar can be shown."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    console = stderr()
    columns = [
        TextColumn("{task.description}"),
        *([BarColumn(bar_width=24)] if console.width >= _ROOM_FOR_A_BAR else []),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        _Figures(),
    ]
    # With a bar Rich would redirect stdout to its console, which is stderr.
    redirected = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=transient, redirect_stdout=redirected) as display:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int, figures: str = "", visible: bool = True) -> None:
            if what not in tasks:
                tasks[what] = display.add_task(what, figures="")
            display.update(tasks[what], completed=done, total=total or None, figures=figures, visible=visible)

        yield show


@contextmanager
def sweep_view(queue: RunQueue, quiet: bool) -> Iterator[Callable[[SweepState], None]]:
    """A callback that shows the runs of a queue: a bar for all, and one for each run that trains.

    The warnings of a run are printed when it ends, equal ones once.
    """
    from pflbench.store.locks import OVER
    from pflbench.sweep.run_queue import news

    names = named(queue.specs)
    rounds = {spec.key: spec.train.rounds for spec in queue.specs}
    ended, begun, warned = set[str](), set[str](), set[str]()

    with bars(quiet, transient=True) as show:

        def look(state: SweepState) -> None:
            over = state.keys(*OVER)
            for key in over:
                if key not in ended:
                    ended.add(key)
                    for text in news(state.runs[key]):
                        if text not in warned:
                            warned.add(text)
                            message(f"{names[key]}: {text}")
                    if not quiet and show is None:
                        message(f"{len(ended)}/{len(names)}  {names[key]}: {state.states[key]}")
            if show is None:
                return
            reached = {key: (run and run.last_round) or 0 for key, run in state.runs.items()}
            done = sum(rounds[key] if key in ended else reached[key] for key in reached)
            failed = f", {state.counts['failed']} failed" if state.counts["failed"] else ""
            show("sweep", done, sum(rounds.values()), f"{len(over)}/{len(rounds)} runs{failed}")
            under_way = set(state.keys("running"))
            begun.update(under_way)
            for key in begun:
                show(names[key], reached[key], rounds[key], visible=key in under_way)

        yield look


def differing_settings(specs: Sequence[RunSpec]) -> dict[str, str]:
    """By key: how a run differs from others of its method, dataset and partition, apart from the seed: "p=2", or ""."""
    names = [(spec.method.name, spec.data.label, spec.partition.label) for spec in specs]
    found = differences(names, [spec.model_dump(mode="json") for spec in specs])
    return {spec.key: text for spec, text in zip(specs, found, strict=True)}


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


def named(specs: Sequence[RunSpec]) -> dict[str, str]:
    """A name for each run, by its key."""
    more = {key: f" ({text})" if text else "" for key, text in differing_settings(specs).items()}
    return {
        spec.key: f"{spec.method.name}{more[spec.key]} {spec.data.label} {spec.partition.label} seed {spec.seed}"
        for spec in specs
    }


def followed(specs: Sequence[RunSpec], quiet: bool) -> Follow:
    """Shows the rounds of runs in this process. A run that diverges is reported, and the others continue."""
    names = named(specs)

    def follow(pack: Sequence[RunSpec], steps: Steps) -> Steps:
        own, warned, last = [names[spec.key] for spec in pack], set[str](), dict[int, float]()
        with bars(quiet) as show, closing(steps):
            for number, step in steps:
                if isinstance(step, Diverged | Occupied):
                    error(step)
                else:
                    if show:
                        if step.kind != "finished":  # the bar stays as the last round left it
                            show(own[number], step.round, step.rounds, _in_bar(step))
                    elif not quiet:
                        _print_step(own[number], number, step, last)
                    for text in step.news:
                        if text not in warned:  # each run of a pack reports the same warnings
                            warned.add(text)
                            message(f"{own[number]}: {text}")
                yield number, step

    return follow


@contextmanager
def data_view(quiet: bool = False) -> Iterator[Callable[..., None] | None]:
    """As `bars`; where no bar can be shown, each `what` is printed once."""
    printed = set[str]()

    def tell(what: str, done: int, total: int) -> None:
        if what not in printed and done < total:
            printed.add(what)
            message(f"{what} ...")

    with bars(quiet) as show:
        yield show or (None if quiet else tell)


def _print_step(name: str, number: int, step: Step, last: dict[int, float]) -> None:
    """Prints the first and the last round of a run, and others at most every few seconds. last: times by run of a pack."""
    if step.kind in ("started", "resumed"):
        message(f"{name}: run {step.run_id} {_figures(step)}")
    elif step.kind == "round":
        now = time.monotonic()
        if step.round == step.rounds or now - last.get(number, float("-inf")) >= SECONDS_BETWEEN_LINES:
            last[number] = now
            message(f"{name}: round {step.round}/{step.rounds}  {_figures(step)}")


def _in_bar(step: Step) -> str:
    """The figures of a round with fewer words, so that they fit into 80 columns."""
    return f"{step.round}/{step.rounds}  {_figures(step).removeprefix('accuracy ')}" if step.kind == "round" else _figures(step)


def _figures(step: Step) -> str:
    if step.kind in ("started", "resumed"):
        began = f"started, {step.rounds} round{'s' * (step.rounds != 1)}"
        return f"resumed after round {step.round}" if step.kind == "resumed" else began
    accuracies = {"accuracy": step.accuracy, "best": step.best}
    known = [f"{name} {100 * value:.2f} %" for name, value in accuracies.items() if value is not None]
    return "  ".join((*known, f"{step.seconds:.3g} s/round"))
