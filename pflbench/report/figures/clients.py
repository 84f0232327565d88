"""Each client's accuracy minus that with Local or FedAvg, sorted: a panel per setting, a line per method (methods.md 2.11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import NothingYet
from pflbench.report import baselines, labels, render, selection, style, web
from pflbench.report.arrangement import Arranged, Row, busiest
from pflbench.report.looks import OTHER, Look
from pflbench.report.selection import Filters
from pflbench.report.statistics import differences
from pflbench.report.tables.clients import AGAINST, ClientRuns, base_of, clients_of
from pflbench.report.traces import Axis, Panel, Trace, lettered, run_numbers
from pflbench.report.web import Interactive
from pflbench.store.runs import RoundRule

Against = Literal["local", "fedavg"]
MARKERS = 6  # to a line
BESIDE = 0.05  # of the values, at both ends of the axis
ZERO = Look("#000000", "o", 0, 0)


@dataclass(frozen=True)
class Compared:
    """Settings with a base, the row at zero, and others beside it. tested, bases: by setting. `found` is without the bases."""

    found: Arranged
    tested: tuple[Mapping[str, ClientRuns], ...]
    bases: tuple[ClientRuns, ...]


def plot(
    engine: Engine, filters: Filters = Filters(), *, round_rule: str = "best", against: Against | None = None
) -> style.Drawing:
    """The settings chosen by dataset or partition, else the four with the most runs.

    against: the method compared with, also where `--method` or `--run` leaves it out; by default Local, or FedAvg in settings
    without Local. Raises UserError where no setting has it beside another method.
    """
    rule = selection.parse(round_rule)
    compared = compare(engine, filters, rule, against)
    found, chosen, colours = render.chosen_settings(compared.found, filters)
    zero = zero_label(compared.bases[j] for j in chosen)
    drawn = [panel(replace(compared, found=found), j, zero) for j in chosen]
    said = caption(drawn, compared, chosen, rule) + (f"{colours} The axis has the range of those in colour." if colours else "")
    return render.of_settings(found, drawn, said, first=[zero])


def page(engine: Engine, filters: Filters, most: int | None = None, *, round_rule: str = "best") -> list[Interactive]:
    """The `most` settings with the most runs, or all. Raises UserError where no setting has Local or FedAvg beside others."""
    rule = selection.parse(round_rule)
    compared = compare(engine, filters, rule)
    panels = [(j, panel(compared, j, zero_label([compared.bases[j]]))) for j in busiest(compared.found, most)]
    return [web.figure("clients", one, caption([one], compared, [j], rule), compared.found.notes) for j, one in panels]


def compare(engine: Engine, filters: Filters, rule: RoundRule, against: Against | None = None) -> Compared:
    """What there is to compare. Raises NothingYet where no setting has anything."""
    found, every = filters.select(engine, rule), baselines.of_any_method(engine, filters, rule)
    rows = {row.key: i for i, row in enumerate(found.rows)}
    kept = []
    for j, setting in enumerate(found.settings):
        tested = clients_of(engine, every, setting, rule)
        for method in AGAINST if against is None else (against,):
            base = base_of(tested, method)
            paired = [
                name for name, of in tested.items() if base and of is not base and len(differences(of.accuracy, base.accuracy))
            ]
            others = {rows[name]: tested[name].runs for name in paired if (rows.get(name), j) in found.cells}
            if base and others:
                kept.append((setting, tested, base, others))
                break
    if not kept:
        whom = " or ".join(labels.method_title(method) for method in AGAINST if against in (None, method))
        command = baselines.command_for([against or AGAINST[0]], found.settings[0].spec, {run.seed for run in found.runs})
        raise NothingYet(f"No setting has results by client of {whom} beside another method.", f"For example: {command}")
    left = len(found.settings) - len(kept)
    note = f"Left out, without a method to compare with: {labels.counted(left, 'setting')}."
    cells = {(i, j): runs for j, (*_, others) in enumerate(kept) for i, runs in others.items()}
    arranged = Arranged(tuple(one[0] for one in kept), found.rows, cells, (*found.notes, *((note,) if left else ())))
    return Compared(arranged, tuple(one[1] for one in kept), tuple(one[2] for one in kept))


def caption(drawn: Sequence[Panel], compared: Compared, columns: Sequence[int], rule: RoundRule) -> str:
    base = _named(compared.bases[j] for j in columns)
    return (
        f"Test accuracy of each client minus that with {base} under the same seed, sorted: "
        f"{lettered([panel.title for panel in drawn])}. Clients below zero are worse off than with {base}. "
        f"{selection.sentence(rule)}"
    )


def zero_label(bases: Iterable[ClientRuns]) -> str:
    """The zero line's entry in the legend."""
    return f"{_named(bases)} (zero)"


def _named(bases: Iterable[ClientRuns]) -> str:
    return " or ".join(dict.fromkeys(base.row.label for base in bases))


def panel(compared: Compared, column: int, zero: str) -> Panel:
    """The sorted differences of a setting. zero: the entry of its zero line in the legend."""
    found, tested, base = compared.found, compared.tested[column], compared.bases[column]
    cells = found.column(column)
    lines = [_line(row, tested[row.key], base, k / len(cells)) for k, (row, _) in enumerate(cells)]
    coloured = [y for trace in lines if trace.look != OTHER for y in trace.y]
    grey = any(trace.look == OTHER for trace in lines)
    line = Trace([0, 100], [0, 0], ZERO, zero, draws="lines", width=0.9)
    return Panel(
        found.settings[column].title,
        Axis("Clients, sorted (%)", limits=(0, 100)),
        Axis(f"Accuracy minus {labels.method_title(base.row.method)}'s (points)", limits=_range(coloured) if grey else None),
        [line, *lines],
        tuple(run.id for of in (base, *(tested[row.key] for row, _ in cells)) for run in of.runs),
        (found.settings[column],),
    )


def _range(values: Sequence[float]) -> tuple[float, float] | None:
    """Limits around these and zero."""
    if not any(values):
        return None
    low, high = min(0.0, *values), max(0.0, *values)
    return low - BESIDE * (high - low), high + BESIDE * (high - low)


def _line(row: Row, own: ClientRuns, base: ClientRuns, offset: float) -> Trace:
    """The pairs of a row, each in the middle of its share of the clients. offset: of the markers, so that lines stay apart."""
    d = differences(own.accuracy, base.accuracy)
    pairs = sorted(own.accuracy.keys() & base.accuracy.keys())
    order = d.argsort(kind="stable")
    step, runs = max(1, len(d) // MARKERS), run_numbers([run.id for run in own.runs])
    return Trace(
        100 * (np.arange(len(d)) + 0.5) / len(d),
        d[order],
        row.look,
        row.label,
        draws="lines" if row.look == OTHER else "lines+markers",
        every=(int(offset * step), step),
        hover=f"client %{{customdata[1]}}, seed %{{customdata[0]}}: %{{y:+.2f}} points<br>{runs}",
        data=[pairs[k] for k in order],
    )
