"""Workers of a Ray cluster: a task for each job. Ray finds a place for it; what a node takes with it is made again elsewhere."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from pflbench.engine import memory
from pflbench.errors import UserError
from pflbench.run.execution import find_device
from pflbench.sweep.jobs import Job, RunOutcome, State, make_away
from pflbench.sweep.room import ITSELF

TRIES = 4  # of a job whose worker is killed
LOST = f"Its worker was killed {TRIES} times, with its node or by the system when memory runs out."
MOST = 1024  # tasks at a time: each has a thread here that waits for it
LOOK = 2.0  # seconds between two looks at the nodes
ANSWER = 5.0  # seconds in which an address should answer
VARIABLE = "RAY_ADDRESS"
# What a job does not say itself. Others may hold passwords, and Ray writes these into its logs.
TOLD = ("PFLBENCH_DB_WAIT", "PFLBENCH_PLUGINS")


class RayTasks:
    """address: of the cluster; None: the one that Ray finds, or else one that is started here and ends with `close`."""

    def __init__(self, address: str | None) -> None:
        self._ray = _connected(address)
        self._watchers = ThreadPoolExecutor(MOST)
        self._tasks: set[Any] = set()  # under way, as Ray's references to what they will give
        self._lock = threading.Lock()
        self._stopped = False
        self._looked = float("-inf")
        self._found: list[Mapping[str, float]] = []
        self.take()

    def take(self, cores: int = 1, gpus: float = 0, bytes: int = 0, places: int | None = None) -> None:
        """What each job takes: cores, a share of a GPU.

        bytes: memory of a job of one run, with its process. places: jobs at a time; None: all that fit.

        Raises UserError where no node has so much.
        """
        self._cores, self._gpus, self._bytes, self._most = cores, gpus, bytes, places
        if not self._fitting():
            asked = f"{cores} core{'s' * (cores > 1)}" + (f" and {gpus:g} GPU" if gpus else "")
            raise UserError(f"No node of the Ray cluster has {asked} for a job.", "--cpus-per-job and --gpus-per-job say less.")

    @property
    def gpus(self) -> float:
        """Of all nodes."""
        return sum(node.get("GPU", 0) for node in self._nodes())

    def gpu_memory(self) -> int:
        """Free bytes of one of the cluster's GPUs."""
        found: int = self._ray.get(self._ray.remote(num_gpus=1)(_gpu_memory).remote())
        return found

    @property
    def places(self) -> int:
        return min(MOST, self._most or max(1, self._fitting()))

    def submit(self, job: Job) -> Future[list[RunOutcome]]:
        return self._watchers.submit(self._watched, job)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            under_way = list(self._tasks)
        for task in under_way:
            self._ray.cancel(task, force=False)  # KeyboardInterrupt there

    def close(self) -> None:
        self._watchers.shutdown(wait=False, cancel_futures=True)
        self._ray.shutdown()

    def _watched(self, job: Job) -> list[RunOutcome]:
        from ray import exceptions

        killed = (exceptions.NodeDiedError, exceptions.WorkerCrashedError, exceptions.OutOfMemoryError)
        for tried in range(TRIES):
            task = self._begun(job, again=tried > 0)
            if task is None:
                return _all(job, "interrupted")
            try:
                outcomes: list[RunOutcome] = self._ray.get(task)
                return outcomes
            except exceptions.TaskCancelledError:
                return _all(job, "interrupted")
            except killed:
                continue
            except exceptions.RayError as error:
                if "No module named 'pflbench'" in str(error):
                    raise UserError(
                        "The nodes of the Ray cluster cannot import pflbench.", "Install it there, in the same version as here."
                    ) from None
                return _all(job, "failed", f"Ray: {str(error).strip().splitlines()[-1]}")
            finally:
                self._tasks.discard(task)
        return _all(job, "failed", LOST)

    def _begun(self, job: Job, again: bool) -> Any:
        share = {"num_cpus": self._cores, "num_gpus": self._gpus, "memory": self._memory(len(job.specs))}
        ours = {name: os.environ[name] for name in TOLD if name in os.environ}
        if not self._gpus and job.how.device == "auto":
            job = replace(job, how=replace(job.how, device="cpu"))
        make = self._ray.remote(_made).options(max_retries=0, runtime_env={"env_vars": ours}, **share)
        with self._lock:
            if self._stopped:
                return None
            task = make.remote(job, Path.cwd(), self._cores, again)
            self._tasks.add(task)
            return task

    def _fitting(self) -> int:
        """Jobs of one run that all nodes together have room for."""
        share = {"CPU": self._cores, "GPU": self._gpus, "memory": self._memory(1)}
        wanted = {name: asked for name, asked in share.items() if asked}
        return sum(min(int(node.get(name, 0) / asked) for name, asked in wanted.items()) for node in self._nodes())

    def _memory(self, runs: int) -> int:
        """Bytes for a job of so many runs, which share a process. Never more than a node has: Ray would wait for one for ever."""
        able = (node for node in self._nodes() if node.get("CPU", 0) >= self._cores and node.get("GPU", 0) >= self._gpus)
        most = int(max((node.get("memory", 0) for node in able), default=0))
        return min(most, ITSELF + runs * (self._bytes - ITSELF) if self._bytes else 0)

    def _nodes(self) -> list[Mapping[str, float]]:
        """What each node has that is alive now."""
        if time.monotonic() > self._looked + LOOK:
            self._found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._looked = time.monotonic()
        return self._found


def _connected(address: str | None) -> Any:
    """The module, connected to a cluster. Raises UserError where that is not possible."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # else a thread that still waits after `close` would start a cluster of its own
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError("--executor ray needs Ray.", 'pip install "pflbench[ray]"') from None
    named = address or os.environ.get(VARIABLE)
    if named and not _answers(named):
        raise UserError(f"No Ray cluster answers at {named}.", f"--ray-address and {VARIABLE} name one: HOST:PORT of its head.")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not named:
        settings["include_dashboard"] = False
    told = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, **settings)
    except Exception as error:  # Ray has many, some without a name of their own
        raise UserError(
            f"Ray: {str(error).strip().splitlines()[0]}", f"--ray-address and {VARIABLE} name a cluster that is there."
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, told)  # Ray has one of its own, which would end the command at once
    return ray


def _answers(address: str) -> bool:
    """Ray itself would try for minutes. What is no HOST:PORT is left to it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return True
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
    except OSError:
        return False
    return True


def _all(job: Job, state: State, message: str = "") -> list[RunOutcome]:
    return [RunOutcome(spec.key, state, message) for spec in job.specs]


# -- on the nodes -----------------------------------------------------------------------------------------------------------


def _made(job: Job, folder: Path, cores: int, again: bool) -> list[RunOutcome]:
    return make_away(job, folder, cores, again=again)


def _gpu_memory() -> int:
    return memory.free(find_device("cuda")) or 0
