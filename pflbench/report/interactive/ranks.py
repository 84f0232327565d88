"""The methods at their average rank over the settings that all of them have."""

from __future__ import annotations

import numpy as np
from sqlalchemy import Engine

from pflbench.report import ranks, web
from pflbench.report.chosen import Filters, protocol
from pflbench.report.ranks import Ranks
from pflbench.report.statistics import LEVEL
from pflbench.report.web import Interactive, Json

ROW, AROUND = 30, 100  # pixels in height: for a method, beside them


def figures(engine: Engine, filters: Filters) -> list[Interactive]:
    """One figure. Raises UserError for fewer than three rows or two settings that all of them have."""
    table = ranks.build(
        engine, methods=filters.methods, datasets=filters.datasets, partitions=filters.partitions, status=filters.status
    )
    order = np.argsort(table.average, kind="stable").tolist()
    count = len(order)
    names = [web.text(table.rows[i].label) for i in order]
    y = web.axis("", range=[count - 0.4, -0.6], tickmode="array", tickvals=list(range(count)), ticktext=names)
    layout = web.layout(web.axis("Average rank (1 is best)"), y, height=AROUND + ROW * count)
    runs = [run for row in table.runs for run in row]
    data = [_points(table, order)]
    return [web.make("ranks", "Average ranks", _caption(table), data, layout, notes=table.notes, runs=runs)]


def _points(table: Ranks, order: list[int]) -> Json:
    rows = [table.rows[i] for i in order]
    bars = {"type": "constant", "value": table.critical / 2, "thickness": 2, "width": 0, "color": web.GREY}
    best = order[0]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": web.numbers(table.average[i] for i in order),
        "y": list(range(len(order))),
        "marker": {"color": [web.colour(row) for row in rows], "symbol": [web.point_symbol(row) for row in rows], "size": 11},
        # Where Friedman's test finds no difference, there is none to read off.
        **({"error_x": bars} if table.rejected else {}),
        "customdata": [
            [
                web.text(table.rows[i].label),
                *web.numbers([table.accuracy[i].mean(), table.nemenyi[i, best]]),
                web.of_runs(table.runs[i]),
            ]
            for i in order
        ],
        "hovertemplate": (
            "<b>%{customdata[0]}</b>: rank %{x:.2f}<br>mean over settings %{customdata[1]:.2f} %"
            f"<br>p (Nemenyi) against {web.text(table.rows[best].label)}: %{{customdata[2]:.3g}}"
            "<br>%{customdata[3]}<extra></extra>"
        ),
    }


def _caption(table: Ranks) -> str:
    settings = "; ".join(setting.title for setting in table.settings)
    bars = (
        " Bars: half the critical difference to each side, so that methods whose bars do not meet differ by Nemenyi's test at "
        f"{LEVEL:g}."
    )
    ranked = f"Average ranks of {len(table.rows)} methods over {len(table.settings)} settings: {settings}."
    return f"{ranked}{bars if table.rejected else ''} {protocol(table.settings)}"
