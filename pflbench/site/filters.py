"""Which runs a page is about, and what it has to leave out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from pflbench.report.papermap import Part, sources


@dataclass(frozen=True)
class Filters:
    """As for every table and figure; empty ones let everything pass."""

    methods: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()

    @property
    def given(self) -> dict[str, tuple[str, ...]]:
        """As keyword arguments, those that were given alone: not every figure has them all."""
        return {name: names for name, names in asdict(self).items() if names}

    @property
    def sentence(self) -> str:
        """What was chosen, in words; nothing where all was."""
        return "; ".join(f"{name} {', '.join(names)}" for name, names in self.given.items())


@dataclass(frozen=True)
class Missing:
    """A table or figure that the database cannot fill: why, and what would."""

    kind: Literal["table", "plot"]
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
