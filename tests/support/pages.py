"""Figures for a page, and what is asked of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from sqlalchemy import Engine

from pflbench.report import figures
from pflbench.report.figures import run as run_figures
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive
from pflbench.store.runs import RoundRule, RunScope, results

PAGES = ((1.0, 1.0, 1.0), to_rgb("#14171a"))  # light and dark


def pages(name: str, engine: Engine, **filters: Any) -> tuple[Interactive, ...]:
    """The figures of this name."""
    return figures.pages(name, engine, Filters(**filters))


def only(name: str, engine: Engine, **filters: Any) -> Interactive:
    (made,) = pages(name, engine, **filters)
    return made


def of_run(engine: Engine, run_id: int) -> tuple[Interactive, ...]:
    """The figures on the page of a run."""
    (run,) = results(engine, RunScope(frozenset([run_id])), RoundRule("best"))
    return run_figures.pages(engine, run)


def traces(of: Interactive, name: str) -> list[dict[str, Any]]:
    return [trace for trace in of.spec["data"] if trace.get("name") == name]


def luminance(colour: tuple[float, ...]) -> float:
    """Relative luminance of sRGB (WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(colour: str, page: tuple[float, ...]) -> float:
    a, b = sorted((luminance(to_rgb(colour)), luminance(page)))
    return (b + 0.05) / (a + 0.05)
