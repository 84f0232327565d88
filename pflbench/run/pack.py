"""Runs that differ in the seed alone, made together as rows of one program: a pack.

Each keeps its own rows, checkpoints, key and status. They share the data, which a seed does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import sqlalchemy
import torch

from pflbench.engine.batched.chunks import SHARE
from pflbench.engine.packed.executor import Pack
from pflbench.engine.requests import Executor
from pflbench.errors import Diverged, Occupied, UserError
from pflbench.run.execution import Execution, exact_arithmetic, executor, find_device, initial_model, memory_errors
from pflbench.run.footprint import Footprint, footprint
from pflbench.run.loop import Progress, execute, execute_on, goes_on
from pflbench.run.record import as_begun
from pflbench.run.setting import load_setting
from pflbench.spec import RunSpec
from pflbench.store import runs
from pflbench.store.failures import patiently

Told = Progress | Diverged | Occupied
"""What a run of a pack reports. One that diverges, or is another process's, says so and is over; the others go on."""


def packing(how: Execution, asked: str | None) -> Execution:
    """The execution with what --pack says: a number, 1 for None, "auto" for what fits a CPU's memory and 1 on a GPU.

    No measurement says yet that a GPU gains by packing. Raises UserError for several runs at a time with `loop`.
    """
    place = str(find_device("auto")) if how.device == "auto" else how.device
    if asked is None or (asked == "auto" and place != "cpu"):
        return replace(how, pack=1)
    if asked != "auto" and int(asked) > 1 and how.engine_on(place) == "loop":
        chosen = "loop" if how.engine == "loop" else f"{how.engine}, which is loop on {place}"
        raise UserError(
            f"--pack {asked} is not possible with --engine {chosen}: it makes one run after another.",
            "Add --engine batched, or leave out --pack.",
        )
    return replace(how, pack=None if asked == "auto" else int(asked))


def packs(
    specs: Sequence[RunSpec],
    store: sqlalchemy.Engine,
    data_root: Path,
    how: Execution,
    *,
    force: bool = False,
    also_alike: Callable[[RunSpec], Hashable] = lambda spec: None,
) -> Iterator[list[RunSpec]]:
    """The specifications, those together that differ in the seed alone and fit. Without packing, in the order given.

    force: those that are stored are made as well; else they take no place in a pack. also_alike: what else must be equal.
    Memory is looked at when a pack is asked for.
    """
    if how.pack == 1 or how.engine_on(str(find_device(how.device))) == "loop":
        yield from ([spec] for spec in specs)
        return
    alike: dict[Hashable, list[RunSpec]] = {}
    for spec in specs:
        alike.setdefault((spec.model_copy(update={"seed": 0}).key, also_alike(spec)), []).append(spec)
    for group in alike.values():
        ahead = [spec for spec in group if force or not _over(spec, store)]
        yield from ([spec] for spec in group if spec not in ahead)
        while ahead:
            size = _size(ahead, data_root, how)
            yield ahead[:size]
            ahead = ahead[size:]


def execute_pack(
    specs: Sequence[RunSpec],
    store: sqlalchemy.Engine,
    data_root: Path,
    how: Execution = Execution(),
    *,
    force: bool = False,
) -> Generator[tuple[int, Told], None, None]:
    """As `execute`, of several runs that differ in the seed alone: what each reports, with its number among them.

    Errors other than Diverged and Occupied end all. The others are then `interrupted`, as all are after KeyboardInterrupt.
    """
    if len(specs) == 1:
        with closing(_to_the_end(execute(specs[0], store, data_root, how, force=force))) as steps:
            for told in steps:
                if isinstance(told, Occupied):
                    raise told
                yield 0, told
        return
    device = find_device(how.device)
    begun = next(
        filter(None, (goes_on(patiently(partial(runs.newest, store, spec.key)), spec, how, force) for spec in specs)), None
    )
    with (
        exact_arithmetic(device, specs[0].train.dtype, how.deterministic),
        memory_errors(how, device),
        closing(_inner(specs, data_root, device, as_begun(how, begun))) as inner,
    ):
        pack = Pack(inner, len(specs))
        works = [
            _to_the_end(execute_on(own, spec, store, data_root, how, force=force))
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


def _inner(specs: Sequence[RunSpec], data_root: Path, device: torch.device, how: Execution) -> Executor:
    setting = load_setting(specs[0], data_root)
    return executor(specs[0], setting, initial_model(specs[0], setting), device, how, len(specs))


def _over(spec: RunSpec, store: sqlalchemy.Engine) -> bool:
    found = patiently(lambda: runs.newest(store, spec.key))
    return found is not None and found.status in ("finished", "diverged")


def _size(specs: Sequence[RunSpec], data_root: Path, how: Execution) -> int:
    """How many of them make the next pack, so that all that are needed are about equally large."""
    most = how.pack or fitting(footprint(specs[0], load_setting(specs[0], data_root), how), len(specs))
    return -(-len(specs) // -(-len(specs) // most))


def fitting(one: Footprint | None, runs: int) -> int:
    """How many of so many runs fit what is free, by the footprint of one: at least 1, which is all that is known without it.

    Beyond what each run needs alone, its clients' models are copied into those of all and back.
    """
    if one is None:
        return 1
    if one.free is None:
        return runs
    each = one.models + one.batch_norm + one.programs + one.copies + max(one.copies + one.activations, one.evaluation)
    return max(1, min(runs, int((SHARE * one.free - one.data) / each)))
