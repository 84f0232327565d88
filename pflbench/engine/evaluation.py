"""Tests of models, on clients' data or on samples that no client has. The functions are methods of `Federation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pflbench.engine import rng
from pflbench.engine.batches import Plan
from pflbench.engine.flat import take
from pflbench.engine.requests import Evaluate, SumByClass

if TYPE_CHECKING:
    from pflbench.engine.federation import Federation

EVALUATION_BATCH = 128  # larger ones exceed the cache of a CPU core and are slower; a GPU gets the batches of all clients at once


@dataclass(frozen=True)
class Scores:
    """Test results of some clients: correct [c], total [c], summed cross-entropy [c]."""

    clients: np.ndarray
    correct: np.ndarray
    total: np.ndarray
    loss: np.ndarray

    @classmethod
    def joined(cls, groups: Sequence[Scores]) -> Scores:
        """The results of several groups of clients, by ascending client; of a client in several, their sums."""
        clients, where = np.unique(np.concatenate([group.clients for group in groups]), return_inverse=True)
        found = []
        for name in ("correct", "total", "loss"):
            values = np.concatenate([getattr(group, name) for group in groups])
            found.append(np.zeros(len(clients), values.dtype))
            np.add.at(found[-1], where, values)
        return cls(clients, *found)

    def of(self, clients: np.ndarray) -> Scores:
        """The results of these clients, in their order; zeros for one without."""
        at = {client: k for k, client in enumerate(self.clients.tolist())}
        zeros = Scores(clients, *(np.zeros(len(clients), values.dtype) for values in (self.correct, self.total, self.loss)))
        for k, client in enumerate(clients.tolist()):
            if (found := at.get(client)) is not None:
                zeros.correct[k], zeros.total[k], zeros.loss[k] = self.correct[found], self.total[found], self.loss[found]
        return zeros

    def __bool__(self) -> bool:
        """Whether any client had test data."""
        return len(self.clients) > 0

    @property
    def accuracy(self) -> float:
        """Pooled over the clients: sum of correct / sum of total (methods.md 2.1)."""
        return float(self.correct.sum() / self.total.sum())

    @property
    def mean_loss(self) -> float:
        return float(self.loss.sum() / self.total.sum())


def evaluate(fed: Federation, models: Tensor, S: Tensor, which: str = "model") -> Scores:
    """Each client of S on its whole own test set; models is [P] (one for all) or [N, P].

    Clients without test data are left out. A module with a function `test_noise` gets noise beside its samples.
    """
    clients, request = _test(fed, models, S, which)
    found = fed.executor.do(request)
    correct, loss = torch.stack([found.correct.to(torch.float64), found.loss]).cpu().numpy()
    total = np.array([len(mine) for mine in request.plan.order], dtype=np.int64)
    return Scores(clients, correct.astype(np.int64), total, loss)


def logits(fed: Federation, models: Tensor, S: Tensor, which: str = "model") -> dict[int, np.ndarray]:
    """Of each client of S with test data, the logits of its test samples, [n_i, K]; otherwise as `evaluate`."""
    clients, request = _test(fed, models, S, which)
    if not len(clients):
        return {}
    found = fed.executor.do(replace(request, logits=True)).logits.numpy()
    return {int(c): rows[: len(fed.test_indices[c])] for c, rows in zip(clients, found, strict=True)}


def _test(fed: Federation, models: Tensor, S: Tensor, which: str) -> tuple[np.ndarray, Evaluate]:
    """The clients of S with test data, and the request that tests them."""
    clients = np.array([c for c in S.tolist() if len(fed.test_indices[c])], dtype=np.int64)
    plan = Plan.through((fed.test_indices[c] for c in clients), EVALUATION_BATCH)
    at = torch.from_numpy(clients).to(fed.device)
    buffers, shared_by = fed.buffers_of(which)[at], None
    if models.dim() == 1 and not fed.flat.buffers:
        rows, buffers, shared_by = models[None], buffers[:1], torch.tensor([len(clients)])
    else:  # with buffers, which every client has of its own, one model for all is a model for each
        rows = models.expand(len(clients), -1) if models.dim() == 1 else take(models, at)
    return clients, Evaluate(plan, rows, buffers, shared_by, per_sample=_noise(fed, plan, clients))


def _noise(fed: Federation, plan: Plan, clients: np.ndarray) -> Sequence[Callable[[], Tensor]]:
    """For each client what the module's `test_noise` draws for its test samples, the same in every test of a round."""
    draw = getattr(fed.flat.module, "test_noise", None)
    if draw is None:
        return ()

    def of_client(client: int, samples: int) -> Tensor:
        noise: Tensor = draw(rng.stream(fed.seed, "test noise", fed.t, client), samples, fed.device)
        return noise.to(fed.dtype)

    return tuple(partial(of_client, client, len(mine)) for client, mine in zip(clients.tolist(), plan.order, strict=True))


def evaluate_central(fed: Federation, model: Tensor, samples: np.ndarray, which: str = "model") -> tuple[float, float]:
    """Accuracy and mean loss of one model [P] on samples that no client holds.

    Its BatchNorm buffers are the mean of all clients', by sample count.
    """
    pieces = np.array_split(samples, -(-len(samples) // (8 * EVALUATION_BATCH)))  # for all cores to share
    buffers = fed.mean(fed.buffers_of(which), torch.arange(fed.size, device=fed.device))
    plan = Plan.through(pieces, EVALUATION_BATCH)
    found = fed.executor.do(Evaluate(plan, model[None], buffers[None], torch.tensor([len(plan)])))
    return int(found.correct.sum()) / len(samples), float(found.loss.sum()) / len(samples)


def losses(
    fed: Federation,
    models: Tensor,
    S: Tensor,
    samples: Sequence[np.ndarray],
    which: str = "model",
    shared_by: Tensor | None = None,
) -> Tensor:
    """L_i of models on each client's given samples: the mean over batches of size B of the batch's mean loss, [c].

    models: [c, P]; or [M, P] for so many clients each (shared_by, as `Evaluate` says), where S may name a client several times.
    In evaluation mode, with each client's own BatchNorm buffers; 0 for a client without samples.
    """
    if shared_by is not None and fed.flat.buffers:  # these make a model of each client's own: not all at once
        counts = shared_by.tolist()
        parts = zip(models, counts, np.cumsum([0, *counts]), strict=False)
        return torch.cat([losses(fed, one.expand(n, -1), S[a : a + n], samples[a : a + n], which) for one, n, a in parts if n])
    B = fed.protocol.batch_size
    # A mean over full batches is one over samples: only the last, partial batch weighs differently.
    pieces = [piece for mine in samples for piece in np.split(mine, [len(mine) // B * B])]
    batches = [max(-(-len(mine) // B), 1) for mine in samples]
    weights = [[B * count, max(len(mine) % B, 1) * count] for mine, count in zip(samples, batches, strict=True)]
    twice = 2 * (torch.ones(len(models), dtype=torch.int64) if shared_by is None else shared_by)
    buffers = fed.buffers_of(which)[S] if shared_by is None else models[:, :0]
    summed = fed.executor.do(Evaluate(Plan.through(pieces, EVALUATION_BATCH), models, buffers, twice)).loss
    return (summed.view(len(S), 2) / torch.tensor(weights, device=fed.device).view(len(S), 2)).sum(dim=1).to(fed.dtype)


def class_means(fed: Federation, models: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the features that models [c, P] give to each client's training samples, in evaluation mode, by class.

    Returns their means [c, K, h], the means of their squared norms [c, K] and the numbers of samples [c, K]; 0 for a class
    without samples.
    """
    plan = Plan.through((fed.train_indices[c] for c in S.tolist()), EVALUATION_BATCH)
    found = fed.executor.do(SumByClass(plan, models, fed.buffers_of("model")[S]))
    counts = fed.class_counts(S)
    at_least_one = counts.clamp(min=1)
    means = found / at_least_one.unsqueeze(-1)
    return means[..., :-1], means[..., -1], counts
