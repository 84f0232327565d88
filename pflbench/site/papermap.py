"""Which of the papers' tables and figures a page shows, and which it cannot."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pflbench.report.declared import TABLES, Kind
from pflbench.report.papermap import EXHIBITS, Exhibit, Part, sources


@dataclass(frozen=True)
class Shown:
    """A table or figure of a paper. links: its parts on the page, as anchor and name; whole: whether all parts are."""

    exhibit: Exhibit
    links: tuple[tuple[str, str], ...]

    @property
    def whole(self) -> bool:
        return len(self.links) == len(self.exhibit.parts)


@dataclass(frozen=True)
class Missing:
    """A table or figure for which the database lacks runs: why, and what to do."""

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
        """The command that trains its runs and shows it."""
        return f"pflbench reproduce {Part(self.kind, self.name).command_name}"


def shown(tables: Collection[str], figures: Collection[str]) -> tuple[Shown, ...]:
    """All tables and figures of the papers, linked to these tables and figures of the page."""
    return tuple(
        Shown(exhibit, tuple(link for part in exhibit.parts if (link := _link(part, tables, figures)) is not None))
        for exhibit in EXHIBITS
    )


def _link(part: Part, tables: Collection[str], figures: Collection[str]) -> tuple[str, str] | None:
    if part.kind == "plot":
        return (f"figures-{part.name}", part.name) if part.name in figures else None
    # The table in the paper's layout takes precedence over the table of any runs.
    found = next((name for name in (TABLES[part.name].printed, part.name) if name in tables), None)
    return None if found is None else (f"table-{found}", found)
