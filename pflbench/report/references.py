"""PFLlib's series beside our curves, by dataset only, since their files do not contain the protocol."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.methods import METHODS
from pflbench.report import labels, looks
from pflbench.report.looks import Look
from pflbench.report.traces import Trace
from pflbench.store.arrays import Floats
from pflbench.store.references import ResultFile, stored

_IMPORT = "`pflbench import FILE.h5` takes in PFLlib's result files."


@dataclass(frozen=True)
class ReferenceLine:
    """Mean accuracy in percent over the files of a method and goal, at their common rounds."""

    label: str
    round: Floats
    accuracy: Floats
    files: tuple[str, ...]
    look: Look

    def trace(self, last: float) -> Trace:
        """Up to the round `last`, and thin: not one of our runs."""
        seen = self.round <= last
        step = max(1, int(seen.sum()) // 6)
        marked = (step // 2, step)
        return Trace(self.round[seen], self.accuracy[seen], self.look, self.label, width=0.7, size=2.5, every=marked)


def lines(engine: Engine, datasets: Collection[str], methods: Iterable[str]) -> Mapping[str, Sequence[ReferenceLine]]:
    """By dataset, as runs are labelled. methods: only these, if any are named; by name or title.

    Raises UserError where there is no such series.
    """
    series = stored(engine)
    held = sorted({c.dataset for c in series})
    if not held:
        raise UserError("There are no reference series in this database.", _IMPORT)
    wanted = {name.casefold() for name in methods}
    found = [c for c in series if c.dataset in datasets and (not wanted or wanted & _names(c))]
    if not found:
        raise UserError(f"No such reference series on {', '.join(sorted(datasets))}.", f"There are some on: {', '.join(held)}.")
    drawn = looks.assign((curve.method, 0) for curve in found)
    made: dict[str, list[ReferenceLine]] = defaultdict(list)
    found.sort(key=lambda curve: (curve.dataset, labels.method_rank(curve.method)))  # goals stay in their order
    for (dataset, method), same in groupby(found, key=lambda curve: (curve.dataset, curve.method)):
        goals = [list(group) for _, group in groupby(same, key=lambda curve: curve.goal)]
        # In the method's colour and marker, but dashed and hollow.
        own = [replace(drawn[method, 0], fill=looks.PLUGGED, dash=1 + k) for k in range(len(goals))]
        made[dataset] += [_line(group, len(goals) > 1, look) for group, look in zip(goals, own, strict=True)]
    return made


def caption(drawn: Iterable[ReferenceLine]) -> str:
    """The caption's explanation of the dashed lines."""
    files = dict.fromkeys(file for line in drawn for file in line.files)
    return (
        f"Dashed: mean accuracy that PFLlib recorded in {', '.join(files)}, up to the last round of the runs; "
        "its protocol is not known."
    )


def _names(curve: ResultFile) -> set[str]:
    return {curve.method.casefold(), curve.algorithm.casefold(), labels.method_title(curve.method).casefold()}


def _line(curves: Sequence[ResultFile], with_goal: bool, look: Look) -> ReferenceLine:
    """The line of one method and goal. with_goal: in its label, where the method has several."""
    method = curves[0].method
    shared = reduce(np.intersect1d, (c.round for c in curves))
    accuracy = np.mean([c.accuracy[np.searchsorted(c.round, shared)] for c in curves], axis=0)
    title = labels.method_title(method) if method in METHODS else curves[0].algorithm
    label = f"PFLlib: {title}" + f" ({curves[0].goal})" * with_goal
    files = tuple(c.file for c in curves)
    return ReferenceLine(label, shared.astype(np.float64), 100 * accuracy, files, look)
