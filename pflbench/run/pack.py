"""A pack: runs that differ only in the seed and train together as rows of one program.

Each keeps its own rows, checkpoints, key and status. They share the data, which do not depend on the seed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

import sqlalchemy

from pflbench.engine.packed.packed_executor import Pack
from pflbench.errors import Diverged, Occupied
from pflbench.run.arithmetic import exact_arithmetic, memory_errors
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.prepared import prepare
from pflbench.run.record import as_begun
from pflbench.run.training import Progress, attempt_for, execute, execute_on
from pflbench.spec import RunSpec

Told = Progress | Diverged | Occupied
"""Reported by a run of a pack. A run that diverges, or that another process trains, ends; the others continue."""


def execute_pack(
    specs: Sequence[RunSpec], store: sqlalchemy.Engine, data_root: Path, how: Execution = Execution(), *, force: bool = False
) -> Generator[tuple[int, Told], None, None]:
    """As `execute`, for runs that differ only in the seed: yields the index of a run with its report.

    Errors other than Diverged and Occupied end all runs; the others become `interrupted`, as all do after KeyboardInterrupt.
    """
    if len(specs) == 1:
        with closing(_to_the_end(execute(specs[0], store, data_root, how, force=force))) as steps:
            for told in steps:
                if isinstance(told, Occupied):
                    raise told
                yield 0, told
        return
    device = find_device(how.device)
    begun = next(filter(None, (attempt_for(store, spec, how, force) for spec in specs)), None)
    first = prepare(specs[0], load_federation_data(specs[0], data_root), device, as_begun(how, begun, device))
    with (
        exact_arithmetic(device, specs[0].train.dtype, how.deterministic),
        memory_errors(device),
        closing(first.executor(first.initial_model(), len(specs))) as inner,
    ):
        pack = Pack(inner, len(specs))
        works = [
            _to_the_end(execute_on(own, spec, store, data_root, how, device, force=force))
            for spec, own in zip(specs, pack.executors, strict=True)
        ]
        with closing(pack.together(works)) as all_told:
            yield from all_told


def _to_the_end(run: Generator[Progress, None, None]) -> Generator[Told, None, None]:
    try:
        with closing(run):
            yield from run
    except (Diverged, Occupied) as error:
        yield type(error)(error.message, error.hint)  # without the traceback, which keeps the run's tensors
