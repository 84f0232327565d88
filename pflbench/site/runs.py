"""The list of runs, and the pages of single runs. Accuracies are in percent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from pflbench import models
from pflbench.errors import UserError
from pflbench.plain import privately
from pflbench.report import labels
from pflbench.report.arrangement import row_key
from pflbench.report.figures import run as run_figures
from pflbench.report.tables.overhead import TOLERANCE
from pflbench.store import arrays, rounds
from pflbench.store.rounds import Cost
from pflbench.store.runs import ALL, Result, RoundRule, Run, with_current_status
from pflbench.store.runs import results as stored_results

_LISTED = {"method.name", "method.version", "train.rounds", "seed", "data", "partition", "model"}  # in columns of the list itself


@dataclass(frozen=True)
class RunLine:
    """A line of the list. alike: the runs of the same cell; now: the last accuracy of a running run."""

    info: Result
    method: str
    dataset: str
    model: str
    best: float | None
    best_round: int | None
    alike: tuple[int, ...]
    now: float | None

    @property
    def title(self) -> str:
        return f"Run {self.info.id}: {self.method} on {self.dataset}, {self.info.partition_label}, seed {self.info.seed}"


def listed(engine: Engine, results: Sequence[Result]) -> tuple[RunLine, ...]:
    """The runs with these results, newest first."""
    cells: dict[tuple[str, str | None, str], list[int]] = defaultdict(list)
    for result in results:
        cells[result.protocol, result.partition, row_key(result)].append(result.id)
    return tuple(
        RunLine(
            info=run,
            method=labels.method_title(run.method, run.title),
            dataset=labels.label_title(run.dataset),
            model=models.title(run.model),
            best=None if run.value is None else 100 * run.value,
            best_round=run.round,
            alike=tuple(cells[run.protocol, run.partition, row_key(run)]),
            now=_now(engine, run) if run.status == "running" else None,
        )
        for run in (with_current_status(engine, result) for result in reversed(results))
    )


def settings(lines: Collection[RunLine]) -> dict[str, list[Any]]:
    """Hyperparameters in which runs of one method differ, and what else differs among all: name -> the value of each line."""
    flat = [labels.flat({name: part for name, part in line.info.spec.items() if name not in _LISTED}) for line in lines]
    columns = {}
    for name in sorted({name for one in flat for name in one} - _LISTED):
        values = [one.get(name) for one in flat]
        methods = [line.info.method if name.startswith("method.") else "" for line in lines]
        if len({*zip(methods, map(str, values), strict=True)}) > len({*methods}):
            columns[name] = values
    return columns


def pages(engine: Engine, lines: Collection[RunLine], chosen: Collection[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and content of each page."""
    spent = rounds.costs(engine, chosen, TOLERANCE / 100)
    for line in lines:
        if (run := line.info.id) in chosen:
            yield run, _page(engine, line, spent.get(run))


def page(engine: Engine, run_id: int) -> dict[str, Any]:
    """The content of one run's page. Raises UserError if there is no such run."""
    results = stored_results(engine, ALL, RoundRule("best"))
    lines = [line for line in listed(engine, results) if line.info.id == run_id]
    for _, content in pages(engine, lines, [run_id]):
        return content
    raise UserError(f"No run '{run_id}' in this database.", "`pflbench runs list` shows the numbers and keys of all runs.")


def _now(engine: Engine, info: Run) -> float | None:
    curve = rounds.curves(engine, [info.id], points=2).get(info.id)
    return None if curve is None else 100 * float(curve.accuracy[-1])


def _page(engine: Engine, line: RunLine, cost: Cost | None) -> dict[str, Any]:
    series = [one.name for one in rounds.second_series(engine, line.info.id)]
    return {
        "id": line.info.id,
        "title": line.title,
        "status": line.info.status,
        "message": privately(line.info.message),
        "facts": [[name, privately(value)] for name, value in _facts(line, series, cost) if value is not None],
        "alike": [run for run in line.alike if run != line.info.id],
        "spec": privately(line.info.spec),
        "environment": privately({name: value for name, value in line.info.environment.items() if name != "host"}),
        "artifacts": [
            {"name": name, "count": len(of), "first": of[0], "last": of[-1]}
            for (_, name), of in sorted(arrays.rounds(engine, [line.info.id]).items())
        ],
        "clients": _clients(engine, line.info.id),
        "figures": run_figures.pages(engine, line.info),
    }


def _facts(line: RunLine, series: Sequence[str], cost: Cost | None) -> list[tuple[str, str | None]]:
    info, method = line.info, line.info.spec["method"]
    best = "" if line.best is None else f", best {line.best:.2f} % after round {line.best_round}"
    now = "" if line.now is None else f", now {line.now:.2f} %"
    size = "" if info.parameters is None else f" ({info.parameters:,} parameters)"
    hash = f", hash {info.partition[:16]}" if info.partition else ""
    return [
        ("Rounds", f"{info.last_round or 0} of {info.rounds}{best}{now}"),
        ("Method", f"{line.method} ({info.method}, version {method['version']})"),
        ("Dataset", line.dataset if line.dataset == info.dataset else f"{line.dataset} ({info.dataset})"),
        ("Partition", f"{info.partition_label}, {info.clients} clients{hash}"),
        ("Model", line.model + size),
        ("Seed", str(info.seed)),
        ("Key", f"{info.key}, attempt {info.attempt}; protocol {info.protocol}"),
        ("Created", info.created_at),
        ("Started", info.started_at),
        ("Finished", info.finished_at),
        ("Device", info.device and (f"{info.device}, engine {info.engine}" if info.engine else info.device)),
        ("Data", labels.recorded_content(info.environment)),
        ("Commit", info.environment.get("commit")),
        ("Command", info.environment.get("command")),
        ("Second series", ", ".join(series) or None),
        *(_costs(cost) if cost else ()),
    ]


def _costs(cost: Cost) -> list[tuple[str, str | None]]:
    evaluation = "" if cost.seconds_evaluate is None else f", {cost.seconds_evaluate:.3g} s of evaluation"
    sent = f"{cost.bytes / 1e6:.4g} MB" + ("" if cost.multiple is None else f", {cost.multiple:.4g} times the model")
    return [
        ("Time per round", f"{cost.seconds_round:.3g} s of training{evaluation} (medians)"),
        ("Communication", f"{sent} per participant and round, both ways"),
        ("Peak memory", None if cost.peak_memory is None else f"{cost.peak_memory / 1e6:,.0f} MB"),
    ]


def _clients(engine: Engine, run_id: int) -> dict[str, Any] | None:
    """The last evaluated round, with rows [client, test samples, accuracy]; None if no results of clients are stored."""
    try:
        found = rounds.clients(engine, run_id)
    except UserError:
        return None
    columns = (found.client.tolist(), found.correct.tolist(), found.total.tolist())
    rows = [[i, total, 100 * correct / total if total else None] for i, correct, total in zip(*columns, strict=True)]
    return {"round": found.round, "rows": rows}
