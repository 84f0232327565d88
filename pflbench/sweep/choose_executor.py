"""Chooses the executor of a sweep's runs: processes of this machine, a Ray cluster or a Slurm cluster."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine

from pflbench.errors import UserError, unknown
from pflbench.run.execution import Execution
from pflbench.spec import RunSpec
from pflbench.store.failures import sqlite_path
from pflbench.sweep import slurm
from pflbench.sweep.capacity import GpuShare, capacity, devices_for, needed, together_on_gpu
from pflbench.sweep.processes import Processes
from pflbench.sweep.run_jobs import Workers
from pflbench.sweep.run_queue import RunQueue

Place = Literal["local", "ray", "slurm"]
PLACES: tuple[Place, ...] = typing.get_args(Place)


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
        if self.executor not in PLACES:
            raise unknown("executor", self.executor, PLACES)
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


def executor_options(given: typing.Mapping[str, Any], before: typing.Mapping[str, Any] | None = None) -> ExecutorOptions:
    """The ExecutorOptions of the options given, which are None or empty if not given. before: options stored with the sweep,
    which hold unless another executor is given.
    """
    named = {field.name: given[field.name] for field in fields(ExecutorOptions) if given.get(field.name) not in (None, [], ())}
    kept = dict(before or {})
    if named.get("executor") not in (None, kept.get("executor", "local")):
        kept = {}
    options = {**kept, **named}
    return ExecutorOptions(**{**options, "slurm": tuple(options.get("slurm", ()))})


def at_a_time(asked: ExecutorOptions, specs: Sequence[RunSpec], data_dir: Path, how: Execution) -> int | None:
    """How many of these runs are executed at a time. None if a cluster decides."""
    if asked.jobs or len(specs) < 2:
        return max(1, min(asked.jobs or 1, len(specs)))
    return capacity(specs, data_dir, how, asked.cpus_per_job, asked.gpus_per_job) if asked.executor == "local" else None


def choose_executor(asked: ExecutorOptions, queue: RunQueue, store: Engine) -> Workers:
    """Workers for the runs of a queue: processes, or tasks of Ray. Raises UserError if there can be none."""
    if asked.executor == "local":
        places = at_a_time(asked, queue.specs, queue.data_dir, queue.how)
        return Processes(places or 1, devices_for(queue.how), asked.cpus_per_job)
    _require_shared(store, queue.how)
    return _ray(asked, queue)


def submit_to_slurm(
    asked: ExecutorOptions,
    name: str,
    specs: Sequence[RunSpec],
    store: Engine,
    data_dir: Path,
    how: Execution,
    worker: Sequence[str],
    limit: int | None = None,
) -> str:
    """Submits a Slurm job whose workers execute these runs, at most `limit`. worker: the command without its options.

    Returns the number of the job. Raises UserError if Slurm refuses it.
    """
    _require_shared(store, how)
    gpus = int(how.device.startswith("cuda") if asked.gpus_per_job is None else asked.gpus_per_job)
    cores = asked.cpus_per_job or 1
    # No file contains a password: the job gets it by its environment.
    url = store.url.render_as_string(hide_password=False)
    place = {"variables": {"PFLBENCH_DB": url}} if store.url.password else {}
    return slurm.submit(
        name,
        asked.slurm,
        [*worker, "--cpus-per-job", str(cores), *(["--limit", "1"] if limit else []), *([] if place else ["--db", url])],
        len(specs) if limit else min(len(specs), asked.jobs or len(specs)),
        at_a_time=asked.jobs,
        cores=cores,
        gpus=gpus,
        # Twice the estimate: Slurm kills jobs that exceed it.
        bytes=2 * needed(specs, data_dir, how) if how.pack == 1 and not gpus else 0,
        **place,
    )


def _ray(asked: ExecutorOptions, queue: RunQueue) -> Workers:
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
        workers.take(asked.cpus_per_job or 1, gpus, 0 if gpus else needed(*needs), asked.jobs, queue.how.pack or 1)
    except BaseException:
        workers.close()
        raise
    return workers


def _require_shared(store: Engine, how: Execution) -> None:
    """Raises UserError for a database or device that the machines of a cluster cannot share."""
    if store.dialect.name == "sqlite" and sqlite_path(store.url) is None:
        raise UserError("A cluster cannot see a database in memory.", "Give --db a file in a shared folder, or PostgreSQL.")
    if how.device.startswith("cuda:"):
        raise UserError(f"--device {how.device}: the cluster says which GPU a job has.", "Say --device cuda, or leave it out.")
