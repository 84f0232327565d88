"""Workers of a Ray cluster: tasks that take runs from the database. Ray finds a place for each."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pflbench.engine import memory
from pflbench.errors import UserError
from pflbench.run.device import find_device
from pflbench.sweep.choose_executor import ITSELF
from pflbench.sweep.run_queue import RunQueue, work_alone

ANSWER = 5.0  # seconds that an address has to answer
VARIABLE = "RAY_ADDRESS"
# Variables that workers need beside the queue. Others may hold passwords, which Ray would write into its logs.
PASSED = ("PFLBENCH_DB_WAIT", "PFLBENCH_PLUGINS")


class RayTasks:
    """address: of the cluster; None: one that Ray finds, else one started on this machine, which `close` ends."""

    def __init__(self, address: str | None) -> None:
        self.lost = 0
        self._ray = _connected(address)
        self._tasks: list[Any] = []  # as Ray's references to what they will return
        self.reserve()

    def reserve(self, cores: int = 1, gpus: float = 0, bytes: int = 0, places: int | None = None, runs: int = 1) -> None:
        """Sets what each worker reserves: cores, and GPUs (a share of one if below 1).

        bytes: memory of one run with its process. places: workers at a time; None: all that fit. runs: of a worker at a time.

        Raises UserError if no node has that much.
        """
        self._cores, self._gpus, self._most = cores, gpus, places
        # Not more than a node has: Ray would wait forever.
        able = [node for node in self._nodes() if node.get("CPU", 0) >= cores and node.get("GPU", 0) >= gpus]
        most = int(max((node.get("memory", 0) for node in able), default=0))
        self._bytes = min(most, ITSELF + runs * (bytes - ITSELF) if bytes else 0)
        if not self._fitting():
            asked = f"{cores} core{'s' * (cores > 1)}" + (f" and {gpus:g} GPU" if gpus else "")
            raise UserError(f"No node of the Ray cluster has {asked} for a job.", "--cpus-per-job and --gpus-per-job say less.")

    @property
    def gpus(self) -> float:
        """Number of GPUs of all nodes."""
        return sum(node.get("GPU", 0) for node in self._nodes())

    def gpu_memory(self) -> int:
        """Free bytes of one of the cluster's GPUs."""
        found: int = self._ray.get(self._ray.remote(num_gpus=1)(_gpu_memory).remote())
        return found

    @property
    def places(self) -> int:
        return self._most or max(1, self._fitting())

    def start(self, queue: RunQueue) -> None:
        share = {"num_cpus": self._cores, "num_gpus": self._gpus, "memory": self._bytes}
        ours = {name: os.environ[name] for name in PASSED if name in os.environ}
        if not self._gpus and queue.how.device == "auto":
            queue = queue.on("cpu", self._cores)
        # `run_jobs` replaces killed workers: Ray itself would retry forever when memory runs out.
        worker = self._ray.remote(max_retries=0, max_calls=1, runtime_env={"env_vars": ours}, **share)(_worker)
        self._tasks.append(worker.remote(queue, Path.cwd(), self._cores, len(self._tasks)))

    def alive(self) -> int:
        if self._tasks:
            ended, self._tasks = self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
            for task in ended:
                self._see_end(task)
        return len(self._tasks)

    def stop(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=False)  # KeyboardInterrupt there
        if self._tasks:
            self._ray.wait(self._tasks, num_returns=len(self._tasks))

    def close(self) -> None:
        self._ray.shutdown()

    def _see_end(self, task: Any) -> None:
        from ray import exceptions

        try:
            self._ray.get(task)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            hint = "Each node needs pflbench in the same version as here."
            raise UserError(f"Ray: {str(error).strip().splitlines()[-1]}", hint) from None
        except exceptions.RayError:  # its process or node was killed
            self.lost += 1

    def _fitting(self) -> int:
        share = {"CPU": self._cores, "GPU": self._gpus, "memory": self._bytes}
        wanted = {name: asked for name, asked in share.items() if asked}
        return sum(min(int(node.get(name, 0) / asked) for name, asked in wanted.items()) for node in self._nodes())

    def _nodes(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]


def _connected(address: str | None) -> Any:
    """Connects to a cluster and returns the module `ray`. Raises UserError if that fails."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # else a thread that still waits after `close` would start another cluster
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
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, **settings)
    except Exception as error:  # Ray raises many types, also plain Exception
        raise UserError(f"Ray: {str(error).strip().splitlines()[0]}", f"--ray-address and {VARIABLE} name a cluster.") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's own handler would end the command at once
    return ray


def _answers(address: str) -> bool:
    """Whether HOST:PORT answers, since Ray would try for minutes. True for other addresses, which Ray checks."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return True
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
    except OSError:
        return False
    return True


# -- on the nodes -----------------------------------------------------------------------------------------------------------


def _worker(queue: RunQueue, folder: Path, cores: int, place: int) -> None:
    with suppress(OSError):
        os.chdir(folder)
    with suppress(KeyboardInterrupt):
        work_alone(queue, None, cores, place)


def _gpu_memory() -> int:
    return memory.free(find_device("cuda")) or 0
