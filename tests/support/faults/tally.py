"""What became of a fault's tries, counted by the test that makes them, and the table of all faults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PROPERTY = "reliability"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
_SHOWN = 12


@dataclass
class Tally:
    """Of one fault. asked: how many tries, None: as few as show something, 0: as many as the whole proof makes."""

    fault: str
    test: str
    asked: int | None = None
    tries: int = 0
    runs_lost: int = 0
    rows_lost: int = 0
    wrong: list[str] = field(default_factory=list)
    why_none: str = ""

    def number(self, few: int, many: int) -> int:
        """Tries of a fault that can be tried without end."""
        return few if self.asked is None else self.asked or many

    def some(self, events: Sequence[Any], few: int, many: int = 24) -> Sequence[Any]:
        """Of a fault at each of some events: all of them, or a sample that is spread over them, with the first and the last."""
        if self.number(few, 0) == 1:
            return [events[len(events) // 2]]
        wanted = min(len(events), self.number(few, many))
        return [events[round(i * (len(events) - 1) / max(1, wanted - 1))] for i in range(wanted)]

    def count(self, what: str, runs: int = 0, rows: int = 0, wrong: Iterable[str] = ()) -> None:
        """One try, and what was lost by it. wrong: whatever else should not be; what: names the try there."""
        self.tries += 1
        self.runs_lost += runs
        self.rows_lost += rows
        self.wrong += [f"{what}: {text}" for text in wrong]
        if runs or rows:
            self.wrong.append(f"{what}: {runs} runs and {rows} rows were lost")

    def told(self) -> str:
        """Empty where nothing is wrong."""
        more = [f"and {len(self.wrong) - _SHOWN} more"] if len(self.wrong) > _SHOWN else []
        return "\n".join([*self.wrong[:_SHOWN], *more])

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("asked", "wrong")}


def title(doc: str | None, parameter: str) -> str:
    """Of a fault: the first line of its test's text, with the parameter that tells it from others."""
    first = (doc or "").strip().splitlines()[0].rstrip(".")
    return f"{first}: {parameter}" if parameter else first


def table(found: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown, a row for each fault and one for all of them."""
    lines = ["| fault | tries | runs lost | rows lost | test |", "| --- | ---: | ---: | ---: | --- |"]
    for one in found:
        if one["tries"]:
            numbers = f"{one['tries']:,} | {one['runs_lost']:,} | {one['rows_lost']:,}"
        else:
            numbers = f"0: {one['why_none'] or 'not tried'} | |"
        lines.append(f"| {one['fault']} | {numbers} | `{one['test']}` |")
    total = " | ".join(f"**{sum(one[name] for one in found):,}**" for name in ("tries", "runs_lost", "rows_lost"))
    return [*lines, f"| **all** | {total} | |"]


def write(page: Path, found: list[dict[str, Any]], how: str) -> None:
    """Puts the table between its marks; the text around it stays."""
    text = page.read_text(encoding="utf-8")
    new = "\n".join([BEGIN, "", *table(found), "", how, "", END])
    page.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: new, text, flags=re.S), encoding="utf-8")
