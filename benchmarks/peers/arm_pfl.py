"""pfl (https://github.com/apple/pfl-research) on a task: its SimulatedBackend in one process, its FederatedAveraging.

A client's dataset gives shuffled batches without the last, partial one, as pflbench does; pfl's own gives all batches in stored
order. After every round the clients' test samples are tested, pooled, 256 at a time, by pfl's own `evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEST_BATCH = 256
METHODS = ("fedavg", "fedprox")
MU = 0.001  # of FedProx, pflbench's


def model_of(task: common.Task) -> nn.Module:
    """The task's, with the loss and the metrics that pfl asks for."""
    from pfl.metrics import Weighted

    model: Any = task.model()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        model.train()
        return F.cross_entropy(model(x), y)

    @torch.no_grad()
    def metrics(x: Tensor, y: Tensor) -> dict[str, Any]:
        model.eval()
        return {"accuracy": Weighted(int((model(x).argmax(1) == y).sum()), len(y))}

    model.loss, model.metrics = loss, metrics
    return model


def federation(task: common.Task) -> Any:
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler

    class Shuffled(Dataset):  # type: ignore[misc]
        def iter(self, batch_size: int | None) -> Iterator[Any]:
            x, y = self.raw_data
            order = torch.randperm(len(y))
            if task.drops_last(len(y)):
                order = order[: len(y) // batch_size * batch_size]
            for index in order.split(batch_size):
                yield x[index], y[index]

    datasets = [Shuffled((client.train_x, client.train_y)) for client in task.clients]
    numbers = list(range(len(datasets)))
    return FederatedDataset(lambda number: datasets[number], get_user_sampler("minimize_reuse", numbers))


def arm(task: common.Task, name: str, rounds: int, seed: int, recorder: common.Recorder) -> None:
    if name not in METHODS:
        raise common.NotPossible("pfl has no personalized method; this adapter has FedAvg and FedProx")
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.algorithm.fedprox import FedProx, FedProxParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, StringMetricName
    from pfl.model.pytorch import PyTorchModel

    torch.manual_seed(seed)
    np.random.seed(seed)
    facts, module = task.facts, model_of(task)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    tested = Dataset(tuple(torch.cat([getattr(c, name) for c in task.clients]) for name in ("test_x", "test_y")))
    how = NNEvalHyperParams(local_batch_size=TEST_BATCH)

    class Test(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            recorder.steps -= 1  # the server's own step
            with recorder.evaluating():
                found = model.evaluate(tested, eval_params=how)
            recorder.end_round(100 * found[StringMetricName("accuracy")].overall_value)
            return False, Metrics()

    data = federation(task)
    protocol = {
        "central_num_iterations": rounds,
        "evaluation_frequency": rounds + 1,
        "train_cohort_size": facts["clients"],
        "val_cohort_size": 0,
    }
    parameters = NNAlgorithmParams(**protocol) if name == "fedavg" else FedProxParams(**protocol, mu=MU)
    train = NNTrainHyperParams(
        local_num_epochs=facts["local_epochs"], local_learning_rate=facts["lr"], local_batch_size=facts["batch_size"]
    )
    algorithm = FederatedAveraging() if name == "fedavg" else FedProx()
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    recorder.begin()
    algorithm.run(parameters, backend, model, train, how, callbacks=[Test()])


if __name__ == "__main__":
    common.main("pfl", lambda: metadata.version("pfl"), arm)
