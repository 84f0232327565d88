"""What a page has of the papers' tables and figures, and what it has to leave out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pflbench.report.declared import TABLES, Kind
from pflbench.report.papermap import EXHIBITS, Exhibit, Part, sources


@dataclass(frozen=True)
class Shown:
    """links: what of it is on the page, as anchor and name; whole: whether all of it is."""

    exhibit: Exhibit
    links: tuple[tuple[str, str], ...]

    @property
    def whole(self) -> bool:
        return len(self.links) == len(self.exhibit.parts)


@dataclass(frozen=True)
class Missing:
    """A table or figure that the database cannot fill: why, and what would."""

    kind: Kind
    name: str
    title: str
    reason: str
    hint: str

    @property
    def source(self) -> str:
        return sources(self.kind, self.name)

    @property
    def command(self) -> str:
        """What makes all of its runs, and then shows it."""
        return f"pflbench reproduce {Part(self.kind, self.name).command_name}"


def shown(tables: Collection[str], figures: Collection[str]) -> tuple[Shown, ...]:
    """All exhibits, on a page with these tables and figures."""
    return tuple(
        Shown(one, tuple(link for part in one.parts if (link := _link(part, tables, figures)) is not None)) for one in EXHIBITS
    )


def _link(part: Part, tables: Collection[str], figures: Collection[str]) -> tuple[str, str] | None:
    if part.kind == "plot":
        return (f"figures-{part.name}", part.name) if part.name in figures else None
    # What has the paper's layout comes before what shows any runs.
    here = next((name for name in (TABLES[part.name].printed, part.name) if name in tables), None)
    return None if here is None else (f"table-{here}", here)
