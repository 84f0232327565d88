"""Flower (https://flower.ai) on a task: its simulation engine, which is Ray, with one actor of one CPU, and its FedAvg strategy.

A client keeps one model and the task's arrays in its actor. It trains with slices of a permuted tensor, as the plain loop does:
what is measured is Flower's messages, Ray, and NumPy arrays in between. CPU seconds are those of all of Ray's processes; the peak
of memory is that of the server's process alone. Steps are counted in the actor, and are its gradients.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from torch.nn import functional as F

TEST_BATCH = 256
_held: dict[str, Any] = {}  # of an actor: the task and a model


def cpu_seconds() -> float:
    """Of this process and all that it has started."""
    import psutil

    me = psutil.Process()
    total = sum(me.cpu_times()[:4])
    for process in me.children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return float(total)


def held(folder: str) -> tuple[common.Task, torch.nn.Module]:
    if folder not in _held:
        torch.set_num_threads(1)
        task = common.Task.read(Path(folder))
        _held[folder] = task, task.model()
    task, model = _held[folder]
    return task, model


def client_app(folder: str, seed: int) -> Any:
    from flwr.client import ClientApp, NumPyClient

    class Client(NumPyClient):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            self.number = number

        def load(self, parameters: list[np.ndarray]) -> tuple[common.Task, common.Client, torch.nn.Module]:
            task, model = held(folder)
            with torch.no_grad():
                for own, given in zip(model.parameters(), parameters, strict=True):
                    own.copy_(torch.from_numpy(given))
            return task, task.clients[self.number], model

        def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
            task, mine, model = self.load(parameters)
            model.train()
            torch.manual_seed(hash((seed, config["round"], self.number)) % 2**32)
            size, order, steps = task.facts["batch_size"], torch.randperm(len(mine.train_y)), 0
            if task.drops_last(len(order)):
                order = order[: len(order) // size * size]
            optimizer = torch.optim.SGD(model.parameters(), lr=task.facts["lr"])
            for index in order.split(size):
                optimizer.zero_grad()
                F.cross_entropy(model(mine.train_x[index]), mine.train_y[index]).backward()
                optimizer.step()
                steps += 1
            return [p.detach().numpy().copy() for p in model.parameters()], len(mine.train_y), {"steps": steps}

        @torch.no_grad()
        def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
            _, mine, model = self.load(parameters)
            model.eval()
            loss, right = 0.0, 0
            for x, y in zip(mine.test_x.split(TEST_BATCH), mine.test_y.split(TEST_BATCH), strict=True):
                logits = model(x)
                loss += float(F.cross_entropy(logits, y, reduction="sum"))
                right += int((logits.argmax(1) == y).sum())
            return loss / max(1, len(mine.test_y)), len(mine.test_y), {"right": right}

    return ClientApp(client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client())


def server_app(task: common.Task, rounds: int, recorder: common.Recorder) -> Any:
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg

    class Strategy(FedAvg):  # type: ignore[misc]
        """Flower's, which tells the recorder when each half of a round is over."""

        def configure_fit(self, server_round: int, **given: Any) -> Any:
            if server_round == 1:
                recorder.begin()
            return super().configure_fit(server_round=server_round, **given)

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if failures:
                raise RuntimeError(failures[0])
            recorder.count(sum(of.metrics["steps"] for _, of in results))
            return super().aggregate_fit(server_round, results, failures)

        def configure_evaluate(self, **given: Any) -> Any:
            self.testing = recorder.evaluating()
            self.testing.__enter__()
            return super().configure_evaluate(**given)

        def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
            self.testing.__exit__(None, None, None)
            if failures:
                raise RuntimeError(failures[0])
            right, tested = (
                sum(parts) for parts in zip(*((of.metrics["right"], of.num_examples) for _, of in results), strict=True)
            )
            recorder.gradients = recorder.steps
            recorder.end_round(100 * right / tested)
            return super().aggregate_evaluate(server_round, results, failures)

    count = task.facts["clients"]
    strategy = Strategy(
        min_fit_clients=count,
        min_evaluate_clients=count,
        min_available_clients=count,
        on_fit_config_fn=lambda t: {"round": t},
        initial_parameters=ndarrays_to_parameters([p.detach().numpy() for p in task.model().parameters()]),
    )
    made = ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))
    return ServerApp(server_fn=lambda context: made)


def arm(task: common.Task, name: str, rounds: int, seed: int, recorder: common.Recorder) -> None:
    if name != "fedavg":
        raise common.NotPossible("Flower has no personalized method among its strategies; this adapter has FedAvg")
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    from flwr.simulation import run_simulation

    recorder.cpu = cpu_seconds
    folder = str(task.folder.resolve())
    backend = {
        "init_args": {"num_cpus": 1, "include_dashboard": False, "logging_level": "error"},
        "client_resources": {"num_cpus": 1},
    }
    run_simulation(server_app(task, rounds, recorder), client_app(folder, seed), task.facts["clients"], backend_config=backend)


if __name__ == "__main__":
    common.main("flower", lambda: metadata.version("flwr"), arm)
