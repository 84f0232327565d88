"""Checks planned runs against their data, and estimates what they need, before the first starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pflbench.data import Progress
from pflbench.errors import NoData
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data, remarks
from pflbench.run.follow import Follow, check
from pflbench.run.memory_estimate import Footprint, footprint, require_possible
from pflbench.spec import RunSpec


def require_runnable(specs: Sequence[RunSpec], data_root: Path, progress: Progress | None) -> list[str]:
    """Loads all data and makes all partitions once. Returns notes for the user; raises UserError."""
    notes: dict[str, None] = {}  # in order, each once
    places = list(dict.fromkeys((spec.data, spec.partition) for spec in specs))
    distinct = {_without_seed(spec): spec for spec in specs}.values()
    for spec in sorted(distinct, key=lambda spec: places.index((spec.data, spec.partition))):  # each is loaded once
        data = load_federation_data(spec, data_root, progress)
        require_possible(spec, data)
        notes |= dict.fromkeys(remarks(spec, data))
    return list(notes)


def footprints(specs: Sequence[RunSpec], data_root: Path, how: Execution, progress: Progress | None) -> list[Footprint | None]:
    """The memory of each run; None if its data are missing, or as `footprint`."""
    needs: dict[str, Footprint | None] = {}
    for spec in specs:
        if (kind := _without_seed(spec)) not in needs:
            try:
                needs[kind] = footprint(spec, load_federation_data(spec, data_root, progress), how)
            except NoData:
                needs[kind] = None
    return [needs[_without_seed(spec)] for spec in specs]


def shortages(specs: Sequence[RunSpec], needs: Sequence[Footprint | None]) -> list[str]:
    """A sentence for each run that needs more memory than is free, equal ones once."""
    problems = [(spec, need.problem()) for spec, need in zip(specs, needs, strict=True) if need]
    told = [f"{spec.method.name} on {spec.data.label} {problem}." for spec, problem in problems if problem]
    return list(dict.fromkeys(told))


def trajectory_bytes(client: Follow, specs: Sequence[RunSpec], data_root: Path) -> int:
    """The most that a run stores of the client's models. Raises UserError for a run that lacks the client or the rounds."""
    sizes = []
    for spec in specs:
        check(client, spec)
        model = load_federation_data(spec, data_root).model(spec)
        sizes.append(client.bytes(sum(parameter.numel() for parameter in model.parameters()), spec.train.floats))
    return max(sizes)


def _without_seed(spec: RunSpec) -> str:
    return spec.model_copy(update={"seed": 0}).key
