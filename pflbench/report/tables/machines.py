"""Where the runs of a table were made, by their records: seconds of different machines or loads do not compare."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pflbench.report import labels
from pflbench.store.runs import Result

ELSEWHERE = "§"


def made_on(run: Result) -> str:
    """The machine of a run and its load, of the record: 'AMD EPYC, 2 cores, 1 run at a time'."""
    command = str(run.environment.get("command", ""))
    asked = re.search(r"(?<!\S)(?:--jobs[ =]|-j ?)(\w+)", command)
    jobs = asked[1] if asked else "auto" if re.search(r" (sweep|tune) ", command) else "1"
    packed = run.environment.get("pack", {}).get("runs", 1)
    load = labels.counted(int(jobs), "run") if jobs.isdigit() else "several runs"
    return ", ".join([
        run.device or "unknown machine",
        labels.counted(run.environment.get("cores") or 1, "core"),
        f"{load} at a time",
        *([f"{packed} seeds together"] if packed > 1 else []),
    ])  # fmt: skip


@dataclass(frozen=True)
class Machines:
    """usual: on which most runs of a setting were made. elsewhere: by (row, setting) the others of a cell, if it has any."""

    usual: tuple[str, ...]
    elsewhere: Mapping[tuple[int, int], tuple[str, ...]]

    @classmethod
    def of(cls, made: Mapping[tuple[int, int], Sequence[str]]) -> Machines:
        """made: by (row, setting), of each run `made_on`."""
        counts: dict[int, Counter[str]] = defaultdict(Counter)
        for (_, j), of_cell in made.items():
            counts[j].update(of_cell)
        usual = {j: count.most_common(1)[0][0] for j, count in counts.items()}
        others = {(i, j): tuple(dict.fromkeys(m for m in of_cell if m != usual[j])) for (i, j), of_cell in made.items()}
        return cls(tuple(dict.fromkeys(usual.values())), {place: of_cell for place, of_cell in others.items() if of_cell})

    def notes(self, rows: Sequence[str], *, marked: bool = True) -> list[str]:
        """rows: their labels. marked: whether the table marks the cells with runs made elsewhere."""
        another = f"{ELSEWHERE}: another" if marked else "Another"
        others: dict[str, dict[str, None]] = defaultdict(dict)
        for (i, _), of_cell in self.elsewhere.items():
            for made in of_cell:
                others[made][rows[i]] = None
        named = [f"{another} machine or load: {made} ({', '.join(of)})." for made, of in others.items()]
        return [f"Made on: {'; '.join(self.usual)}.", *named, "Times of different machines or loads do not compare."]
