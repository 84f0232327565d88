"""What a page has to leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pflbench.report.papermap import Part, sources


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
