"""The yardstick: FedAvg and Local as a good loop over clients in plain PyTorch, without any tool.

One module for all clients, into which the global model is copied; batches are slices of a permuted tensor, without a DataLoader;
images and kernels in channels-last format, which is faster on CPUs; torch.optim.SGD with foreach; the average is a running sum;
the test takes 256 samples at a time.
"""

from __future__ import annotations

import common
import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEST_BATCH = 256


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, task: common.Task, client: common.Client) -> None:
    """One local epoch."""
    size = int(task.facts["batch_size"])
    order = torch.randperm(len(client.train_y))
    if task.drops_last(len(order)):
        order = order[: len(order) // size * size]
    for index in order.split(size):
        optimizer.zero_grad()
        F.cross_entropy(model(client.train_x[index]), client.train_y[index]).backward()
        optimizer.step()


@torch.no_grad()
def correct(model: nn.Module, client: common.Client) -> int:
    """The number of right predictions on the client's test samples."""
    batches = zip(client.test_x.split(TEST_BATCH), client.test_y.split(TEST_BATCH), strict=True)
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in batches)


def channels_last(client: common.Client) -> common.Client:
    if client.train_x.dim() != 4:
        return client
    train, test = (x.contiguous(memory_format=torch.channels_last) for x in (client.train_x, client.test_x))
    return common.Client(train, client.train_y, test, client.test_y)


def arm(task: common.Task, method: str, rounds: int, seed: int, recorder: common.Recorder) -> None:
    if method not in ("fedavg", "local"):
        raise common.NotPossible("the plain loop has FedAvg and Local only")
    clients = [channels_last(client) for client in task.clients]
    total = sum(len(client.train_y) for client in clients)
    tested = sum(len(client.test_y) for client in clients)
    model = task.model()
    if clients[0].train_x.dim() == 4:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.facts["lr"], foreach=True)
    torch.manual_seed(seed)
    rows = _Rows(model, len(clients) if method == "local" else 1)
    recorder.begin()
    for _ in range(rounds):
        rows.begin_round()
        for i, client in enumerate(clients):
            rows.load(i)
            model.train()
            fit(model, optimizer, task, client)
            rows.save(i, len(client.train_y) / total)
        rows.end_round()
        with recorder.evaluating():
            model.eval()
            right = 0
            for i, client in enumerate(clients):
                rows.load(i)
                right += correct(model, client)
        recorder.end_round(100 * right / tested)


class _Rows:
    """The models: one for all clients, which becomes the weighted mean, or one for each."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self.parameters = list(model.parameters())
        self.models: list[list[Tensor]] = [[p.detach().clone() for p in self.parameters] for _ in range(count)]
        self.sum: list[Tensor] = []
        self.loaded = -1

    def begin_round(self) -> None:
        self.sum = [torch.zeros_like(p) for p in self.parameters]
        self.loaded = -1

    @torch.no_grad()
    def load(self, i: int) -> None:
        which = i % len(self.models)
        if which != self.loaded:
            torch._foreach_copy_(self.parameters, self.models[which])
            self.loaded = which

    @torch.no_grad()
    def save(self, i: int, weight: float) -> None:
        """Takes client i's trained model."""
        if len(self.models) > 1:
            torch._foreach_copy_(self.models[i], self.parameters)
        else:
            torch._foreach_add_(self.sum, self.parameters, alpha=weight)
        self.loaded = -1

    def end_round(self) -> None:
        if len(self.models) == 1:
            self.models = [self.sum]


if __name__ == "__main__":
    common.main("plain", lambda: f"torch {torch.__version__}", arm)
