"""Chooses the executor of a sweep's runs: processes of this machine, a Ray cluster or a Slurm cluster; and how many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from sqlalchemy import Engine

from pflbench import environment
from pflbench.engine import devices, memory
from pflbench.errors import UserError
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import load_federation_data
from pflbench.run.memory_estimate import footprint
from pflbench.spec import RunSpec
from pflbench.store.failures import sqlite_path
from pflbench.sweep.processes import Processes
from pflbench.sweep.run_jobs import Workers
from pflbench.sweep.run_queue import RunQueue

Place = Literal["local", "ray", "slurm"]
GpuShare = float | Literal["auto"] | None
"""Share of a GPU for each job, at most 1; "auto": by the memory that runs need; None: the default."""

ITSELF = 600_000_000  # bytes of a process with PyTorch, without tensors
ON_GPU = 1_000_000_000  # bytes of a process on a GPU, without tensors: context, kernels, their workspaces


@dataclass(frozen=True)
class ExecutorOptions:
    """The options. jobs: runs at a time, None: as many as there is room for; slurm: options of sbatch, as "partition=gpu"."""

    executor: Place = "local"
    jobs: int | None = None
    cpus_per_job: int | None = None
    gpus_per_job: GpuShare = None
    ray_address: str | None = None
    slurm: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, owner in (("ray_address", "ray"), ("slurm", "slurm")):
            if getattr(self, name) and self.executor != owner:
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} means nothing to --executor {self.executor}.", f"Add --executor {owner}.")
        if self.executor == "slurm" and self.gpus_per_job not in (None, 0, 1):
            raise UserError("--gpus-per-job is 0 or 1 with Slurm.", "For a share: --slurm gres=...")

    def words(self) -> tuple[str, ...]:
        """The options that name a cluster, as typed; empty for this machine."""
        address = ("--ray-address", self.ray_address) if self.ray_address else ()
        options = tuple(word for text in self.slurm for word in ("--slurm", text))
        return () if self.executor == "local" else ("--executor", self.executor, *address, *options)

    def plain(self) -> dict[str, Any]:
        """The options as JSON types, to be stored with a sweep. `jobs` holds for one command only."""
        return {name: value for name, value in asdict(replace(self, jobs=None)).items() if value not in (None, ())}


def executor_options(given: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> ExecutorOptions:
    """The ExecutorOptions of the options given, which are None or empty if not given. before: options stored with the sweep,
    which hold unless another executor is given.
    """
    named = {field.name: given[field.name] for field in fields(ExecutorOptions) if given.get(field.name) not in (None, [], ())}
    kept = dict(before or {})
    if named.get("executor") not in (None, kept.get("executor", "local")):
        kept = {}
    options = {**kept, **named}
    return ExecutorOptions(**{**options, "slurm": tuple(options.get("slurm", ()))})


def devices_for(how: Execution) -> tuple[str, ...]:
    """The CPU, the named GPU, or all GPUs if none is named."""
    device = find_device(how.device)
    if device.type == "cpu" or ":" in how.device:
        return (str(device),)
    return tuple(f"{device.type}:{i}" for i in range(devices.of(device).device_count()))


def at_a_time(asked: ExecutorOptions, specs: Sequence[RunSpec], data_dir: Path, how: Execution) -> int | None:
    """How many of these runs are executed at a time. None if a cluster decides.

    Without --jobs: on a CPU one for each core, or for each `cpus_per_job` of them, as memory allows. On GPUs one for each, or
    several if a share below 1 is asked for: three at a time make 1.4 times as many rounds a second on an H200.
    """
    if asked.jobs or len(specs) < 2:
        return max(1, min(asked.jobs or 1, len(specs)))
    if asked.executor != "local":
        return None
    found = devices_for(how)
    if found[0] == "cpu":
        free = memory.free(torch.device("cpu"))
        most = environment.cores() // (asked.cpus_per_job or 1)
        most = most if free is None else min(most, free // needed(specs, data_dir, how))
    elif asked.gpus_per_job == "auto":
        room = memory.free(torch.device(found[0])) or 0
        most = len(found) * min(together_on_gpu(specs, data_dir, how, room), max(1, environment.cores() // len(found)))
    else:
        most = len(found) * max(1, int(1 / (asked.gpus_per_job or 1)))
    return max(1, min(len(specs), most))


def choose_executor(asked: ExecutorOptions, queue: RunQueue, store: Engine) -> Workers:
    """Workers for the runs of a queue: processes, or tasks of Ray. Raises UserError if there can be none."""
    if asked.executor == "local":
        places = at_a_time(asked, queue.specs, queue.data_dir, queue.how)
        return Processes(places or 1, devices_for(queue.how), asked.cpus_per_job)
    require_shared(store, queue.how)
    from pflbench.sweep.on_ray import RayTasks

    needs = queue.specs, queue.data_dir, queue.how
    workers = RayTasks(asked.ray_address)
    try:
        share = asked.gpus_per_job
        if queue.how.device == "cpu" or not workers.gpus:
            share = 0 if share in (None, "auto") else share
        elif share == "auto":
            share = 1 / together_on_gpu(*needs, workers.gpu_memory())
        gpus = 1.0 if share is None else float(share)
        workers.reserve(asked.cpus_per_job or 1, gpus, 0 if gpus else needed(*needs), asked.jobs, queue.how.pack or 1)
    except BaseException:
        workers.close()
        raise
    return workers


def require_shared(store: Engine, how: Execution) -> None:
    """Raises UserError for a database or device that the machines of a cluster cannot share."""
    if store.dialect.name == "sqlite" and sqlite_path(store.url) is None:
        raise UserError("A cluster cannot see a database in memory.", "Give --db a file in a shared folder, or PostgreSQL.")
    if how.device.startswith("cuda:"):
        raise UserError(f"--device {how.device}: the cluster says which GPU a job has.", "Say --device cuda, or leave it out.")


def needed(specs: Sequence[RunSpec], data_dir: Path, how: Execution) -> int:
    """Bytes of memory that the largest run needs on a CPU, with its process."""
    return ITSELF + _largest(specs, data_dir, how)


def together_on_gpu(specs: Sequence[RunSpec], data_dir: Path, how: Execution, free: int) -> int:
    """How many runs as large as the largest fit on a GPU with so many bytes free: at least 1."""
    return max(1, int(memory.SHARE * free / (ON_GPU + _largest(specs, data_dir, how))))


def _largest(specs: Sequence[RunSpec], data_dir: Path, how: Execution) -> int:
    settings = {(spec.data, spec.partition, spec.model, spec.method.name): spec for spec in specs}.values()
    needs = [footprint(spec, load_federation_data(spec, data_dir), how) for spec in settings]
    return max((need.total for need in needs if need is not None), default=0)
