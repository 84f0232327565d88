"""The papers' tables and figures, with what a page has of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pflbench.report.papermap import EXHIBITS, Exhibit, Part

# What has the paper's layout comes before what shows any runs.
_TABLES = {"accuracy": ("table2", "accuracy")}


@dataclass(frozen=True)
class Shown:
    """links: what of it is on the page, as anchor and name; whole: whether all of it is."""

    exhibit: Exhibit
    links: tuple[tuple[str, str], ...]

    @property
    def whole(self) -> bool:
        return len(self.links) == len(self.exhibit.parts)


def shown(tables: Collection[str], figures: Collection[str]) -> tuple[Shown, ...]:
    """All exhibits, on a page with these tables and figures."""
    return tuple(
        Shown(one, tuple(link for part in one.parts if (link := _link(part, tables, figures)) is not None)) for one in EXHIBITS
    )


def _link(part: Part, tables: Collection[str], figures: Collection[str]) -> tuple[str, str] | None:
    if part.kind == "plot":
        return (f"figures-{part.name}", part.name) if part.name in figures else None
    here = next((name for name in _TABLES.get(part.name, (part.name,)) if name in tables), None)
    return None if here is None else (f"table-{here}", here)
