"""The list of runs and the pages on single ones. Accuracies are in percent here."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import labels
from pflbench.report.overhead import TOLERANCE
from pflbench.site import figures
from pflbench.store import read
from pflbench.store.costs import Cost, costs
from pflbench.store.details import Detail, details
from pflbench.store.read import Result, RunInfo, Select


@dataclass(frozen=True)
class Line:
    """A run in the list. alike: the runs of its cell; now: the last accuracy of one that runs."""

    info: RunInfo
    method: str
    dataset: str
    model: str
    best: float | None
    best_round: int | None
    partition_hash: str | None
    protocol: str
    alike: tuple[int, ...]
    now: float | None

    @property
    def title(self) -> str:
        return f"Run {self.info.id}: {self.method} on {self.dataset}, {self.info.partition}, seed {self.info.seed}"


def listed(engine: Engine, results: Sequence[Result]) -> tuple[Line, ...]:
    """The runs with these results, newest first."""
    infos = {info.id: info for info in read.runs(engine)} if results else {}
    cells: dict[str, list[int]] = defaultdict(list)
    for result in results:
        cells[_cell(result)].append(result.id)
    lines = []
    for result in reversed(results):
        if (info := infos.get(result.id)) is None:  # removed in between
            continue
        lines.append(
            Line(
                info=info,
                method=labels.method_title(info.method),
                dataset=labels.label_title(info.dataset),
                model=labels.MODELS.get(info.model, info.model),
                best=None if result.value is None else 100 * result.value,
                best_round=result.round,
                partition_hash=result.partition,
                protocol=result.protocol,
                alike=tuple(cells[_cell(result)]),
                now=_now(engine, info) if info.status == "running" else None,
            )
        )
    return tuple(lines)


def pages(engine: Engine, lines: Collection[Line], chosen: Collection[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """By run, what its page shows, as plain JSON types."""
    found = details(engine, chosen)
    spent = costs(engine, chosen, TOLERANCE / 100)
    for line in lines:
        if line.info.id in found:
            yield line.info.id, _page(engine, line, found[line.info.id], spent.get(line.info.id))


def page(engine: Engine, run_id: int) -> dict[str, Any]:
    """What the page on one run shows. Raises UserError where there is no such run."""
    results = read.results(engine, Select("best"))
    lines = [line for line in listed(engine, results) if line.info.id == run_id]
    for _, content in pages(engine, lines, [run_id]):
        return content
    raise UserError(f"No run '{run_id}' in this database.", "`pflbench runs list` shows the numbers and keys of all runs.")


def _cell(result: Result) -> str:
    method = result.spec["method"]
    parts = (result.protocol, result.partition, result.method, method["version"], method["hyperparameters"])
    return json.dumps(parts, sort_keys=True)


def _now(engine: Engine, info: RunInfo) -> float | None:
    curve = read.curves(engine, [info.id], points=2).get(info.id)
    return None if curve is None else 100 * float(curve.accuracy[-1])


def _page(engine: Engine, line: Line, detail: Detail, cost: Cost | None) -> dict[str, Any]:
    return {
        "id": line.info.id,
        "title": line.title,
        "status": line.info.status,
        "message": line.info.message,
        "facts": [[name, value] for name, value in _facts(line, detail, cost) if value is not None],
        "alike": [run for run in line.alike if run != line.info.id],
        "spec": detail.spec,
        "environment": detail.environment,
        "artifacts": [asdict(kept) for kept in detail.artifacts],
        "clients": _clients(engine, line.info.id),
        "figures": [asdict(figure) for figure in figures.of_run(engine, line.info.id)],
    }


def _facts(line: Line, detail: Detail, cost: Cost | None) -> list[tuple[str, str | None]]:
    info, method = line.info, detail.spec["method"]
    best = "" if line.best is None else f", best {line.best:.2f} % after round {line.best_round}"
    now = "" if line.now is None else f", now {line.now:.2f} %"
    size = "" if detail.parameters is None else f" ({detail.parameters:,} parameters)"
    hash = f", hash {line.partition_hash[:16]}" if line.partition_hash else ""
    return [
        ("Rounds", f"{info.last_round or 0} of {info.rounds}{best}{now}"),
        ("Method", f"{line.method} ({info.method}, version {method['version']})"),
        ("Dataset", line.dataset if line.dataset == info.dataset else f"{line.dataset} ({info.dataset})"),
        ("Partition", f"{info.partition}, {info.clients} clients{hash}"),
        ("Model", line.model + size),
        ("Seed", str(info.seed)),
        ("Key", f"{info.key}, attempt {info.attempt}; protocol {line.protocol}"),
        ("Created", info.created_at),
        ("Started", detail.started_at),
        ("Finished", info.finished_at),
        ("Device", info.device and (f"{info.device}, engine {detail.engine}" if detail.engine else info.device)),
        ("Data", labels.recorded_content(detail.environment)),
        ("Commit", detail.environment.get("commit")),
        ("Command", detail.environment.get("command")),
        ("Second series", ", ".join(detail.series) or None),
        *(_costs(cost) if cost else ()),
    ]


def _costs(cost: Cost) -> list[tuple[str, str | None]]:
    sent = f"{cost.bytes / 1e6:.4g} MB" + ("" if cost.multiple is None else f", {cost.multiple:.4g} times the model")
    return [
        ("Time per round", f"{cost.seconds_round:.3g} s of training, {cost.seconds_evaluate:.3g} s of evaluation (medians)"),
        ("Communication", f"{sent} per participant and round, both ways"),
        ("Peak memory", None if cost.peak_memory is None else f"{cost.peak_memory / 1e6:,.0f} MB"),
    ]


def _clients(engine: Engine, run_id: int) -> dict[str, Any] | None:
    """After the last evaluated round: [client, test samples, accuracy]."""
    try:
        found = read.clients(engine, run_id)
    except UserError:  # none are stored
        return None
    columns = (found.client.tolist(), found.correct.tolist(), found.total.tolist())
    rows = [[i, total, 100 * correct / total if total else None] for i, correct, total in zip(*columns, strict=True)]
    return {"round": found.round, "rows": rows}
