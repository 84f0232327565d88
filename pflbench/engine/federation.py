"""The federation as a method sees it: N clients with data, one model layout, and the verbs of a round."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pflbench.engine import rng
from pflbench.engine.batches import Plan, passes
from pflbench.engine.executor import ALL, Correct, Executor, Given, Step, Walked
from pflbench.engine.flat import Flat
from pflbench.engine.ledger import Ledger
from pflbench.errors import Diverged
from pflbench.spec import TrainSpec

EVALUATION_BATCH = 128  # larger ones leave the cache of a CPU core and are slower; a GPU gets those of all clients at once


@dataclass(frozen=True)
class Scores:
    """Test results of some clients: correct [c], total [c], summed cross-entropy [c]."""

    clients: np.ndarray
    correct: np.ndarray
    total: np.ndarray
    loss: np.ndarray

    def __bool__(self) -> bool:
        """Whether there was anything to test on."""
        return len(self.clients) > 0

    @property
    def accuracy(self) -> float:
        """Pooled over the clients: sum of correct / sum of total (methods.md 2.1)."""
        return float(self.correct.sum() / self.total.sum())

    @property
    def mean_loss(self) -> float:
        return float(self.loss.sum() / self.total.sum())


@dataclass(frozen=True)
class Course:
    """Whose models walk where, made by `Federation.course`."""

    executor: Executor
    clients: Tensor
    plan: Plan
    base: Tensor
    buffers: Tensor
    columns: slice

    def take(self, positions: Tensor) -> Course:
        """The course of some of its clients, by position [k] (on the host)."""
        at = positions.to(self.clients.device)
        return replace(
            self,
            clients=self.clients[at],
            plan=self.plan.take(positions.tolist()),
            base=self.base[at],
            buffers=self.buffers[at],
        )


class Federation:
    """N clients; `S` is everywhere a cohort, client ids in ascending order [c] (int64, on the device).

    Matrices have one row per client: [N, P] for all, [c, P] for a cohort. Nothing here changes between rounds except BatchNorm
    buffers, which belong to a client and one of its models (`slot`) and travel only if the protocol says so (methods.md 4.3).
    """

    def __init__(
        self,
        flat: Flat,
        executor: Executor,
        train: TrainSpec,
        train_indices: Sequence[np.ndarray],
        test_indices: Sequence[np.ndarray],
        seed: int,
    ) -> None:
        self.flat = flat
        self.executor = executor
        self.train = train
        self.seed = seed
        self.dtype = getattr(torch, train.dtype)
        self.device = executor.device
        self.train_indices = [np.asarray(i, dtype=np.int64) for i in train_indices]
        self.test_indices = [np.asarray(i, dtype=np.int64) for i in test_indices]
        self.n = torch.tensor([len(i) for i in train_indices], dtype=self.dtype, device=self.device)
        self.t = 0
        self.ledger = Ledger()
        self._initial = flat.row().to(self.device, self.dtype)
        self._initial_buffers = flat.buffer_row(self.dtype).to(self.device)
        self.buffers: dict[str, Tensor] = {}

    @property
    def size(self) -> int:
        """N."""
        return len(self.train_indices)

    def at(self, t: int) -> Federation:
        """The same federation in round t, with a new ledger."""
        now = copy.copy(self)
        now.t, now.ledger = t, Ledger()
        return now

    def initial(self) -> Tensor:
        """Theta^0, [P]: the same on server and clients."""
        return self._initial.clone()

    def everyone(self, row: Tensor) -> Tensor:
        """[N, P], every client's own copy of one row."""
        return row.expand(self.size, -1).clone()

    def nobody_left_out(self) -> Tensor:
        """All clients with training data, as a cohort."""
        return torch.from_numpy(self.candidates()).to(self.device)

    def candidates(self) -> np.ndarray:
        """Ids of the clients that can be selected: an empty client never is (methods.md 0.5)."""
        return np.flatnonzero([len(i) > 0 for i in self.train_indices])

    def cohort(self, t: int) -> Tensor:
        """S_t: int(rho * N) clients."""
        size = int(self.train.join_ratio * self.size)
        return torch.from_numpy(rng.cohort(self.seed, t, self.candidates(), size)).to(self.device)

    # -- communication ------------------------------------------------------------------------------------------------

    def send(self, w: Tensor, S: Tensor, scalars: int = 0) -> Tensor:
        """Server -> clients: one row [P] to all of the cohort, or a row for each [c, P]. Returns [c, P]; counts it."""
        rows = w.expand(len(S), -1) if w.dim() == 1 else w
        self.ledger.params_down += rows.shape[-1] * len(S)
        self.ledger.scalars_down += scalars * len(S)
        return rows

    def collect(self, rows: Tensor, S: Tensor, scalars: int = 0) -> Tensor:
        """Clients -> server: rows [c, ...], counted; raises Diverged for a non-finite upload, which is never averaged."""
        self._refuse_non_finite(rows, S, "upload")
        self.ledger.params_up += rows.shape[-1] * len(S)
        self.ledger.scalars_up += scalars * len(S)
        return rows

    def shares(self, S: Tensor) -> Tensor:
        """q_i(S) = n_i / sum of n_j over S, [c] (methods.md 0.1)."""
        return self.n[S] / self.n[S].sum()

    def mean(self, rows: Tensor, S: Tensor) -> Tensor:
        """sum_i q_i(S) rows_i, [P]."""
        return self.shares(S) @ rows

    # -- local work ---------------------------------------------------------------------------------------------------

    def batches(
        self,
        S: Tensor,
        epochs: int | None = None,
        *,
        purpose: str = "batches",
        samples: Sequence[np.ndarray] | None = None,
        shuffle: bool = True,
        drop_last: str | None = None,
    ) -> Plan:
        """Mini-batches of E epochs over each client's own (or the given) samples; they depend on seed, purpose, round, client."""
        orders, sizes = [], []
        for i, client in enumerate(S.tolist()):
            order, size = passes(
                self.train_indices[client] if samples is None else samples[i],
                self.train.local_epochs if epochs is None else epochs,
                self.train.batch_size,
                drop_last or self.train.drop_last,
                self.flat.has_batch_norm,
                rng.stream(self.seed, purpose, self.t, client) if shuffle else None,
            )
            orders.append(order)
            sizes.append(size)
        return Plan(tuple(orders), tuple(sizes))

    def subset(self, S: Tensor, percent: float, contiguous: bool = False) -> list[np.ndarray]:
        """D^{s,t}: max(1, int(s/100 * n_i)) of each client's training samples, new every round (methods.md 1.14).

        Random without replacement, or one contiguous slice of the stored order with a uniformly random start.
        """
        chosen = []
        for client in S.tolist():
            mine = self.train_indices[client]
            m = max(1, int(percent / 100 * len(mine)))
            draw = rng.stream(self.seed, "subset", self.t, client)
            if contiguous:
                start = int(draw.integers(len(mine) - m + 1))
                chosen.append(mine[start : start + m])
            else:
                chosen.append(draw.permutation(mine)[:m])
        return chosen

    def sgd(
        self,
        rows: Tensor,
        S: Tensor,
        *,
        epochs: int | None = None,
        columns: slice = ALL,
        correct: Correct | None = None,
        slot: str = "model",
        **given: Tensor | float,
    ) -> Tensor:
        """Local training: plain SGD from rows [c, P] over E epochs -> [c, P] (methods.md 0.1).

        correct(w, **given) returns the gradient of a penalty and its value. slot names which of the clients' models this is: each
        has its own BatchNorm buffers and batch order. Raises Diverged if a client ends with a non-finite parameter.
        """
        purpose = "batches" if slot == "model" else f"batches/{slot}"
        plan = self.batches(S, epochs, purpose=purpose)
        done = self.executor.sgd(rows, self._buffers(slot)[S], plan, self.train.lr, columns, correct, given)
        self._refuse_non_finite(done.rows, S, "local training")
        self._buffers(slot)[S] = done.buffers
        # A client too small for a single step has no training loss.
        stepped = torch.from_numpy(plan.steps() > 0).to(self.device)
        self.ledger.train_loss[slot] = float((self.shares(S[stepped]) * done.loss[stepped]).sum())
        return done.rows

    @contextmanager
    def course(self, S: Tensor, plan: Plan, base: Tensor, *, columns: slice = ALL, slot: str = "model") -> Iterator[Course]:
        """The way of an inner loop (`walk`): models `base` [c, P], of which only `columns` change, along the plan's batches.

        Where that is the head alone, the layers below it run once for all walks on this course. BatchNorm's new buffers are
        thrown away.
        """
        buffers = self._buffers(slot)[S]
        if columns != self.flat.head or not self.flat.has_features or not plan.steps().any():
            yield Course(self.executor, S, plan, base, buffers, columns)
            return
        executor, positions = self.executor.head(base, buffers, plan)
        try:
            yield Course(executor, S, positions, base[:, columns], buffers[:, :0], ALL)
        finally:
            executor.close()

    def walk(self, step: Step, course: Course, *, carry: Mapping[str, Tensor], given: Given) -> Walked:
        """An inner loop other than plain SGD: carry <- step(grad, **carry, **given) for every batch; see engine.executor.

        carry: tensors [c, ...]. Raises Diverged for a non-finite loss or carry.
        """
        done = course.executor.walk(step, course.base, carry, given, course.buffers, course.plan, course.columns)
        for value in (done.loss.unsqueeze(-1), *done.carry.values()):
            self._refuse_non_finite(value, course.clients, "an inner loop")
        return done

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, models: Tensor, S: Tensor, slot: str = "model") -> Scores:
        """Each client of S on its whole own test set; models is [P] (one for all) or [N, P].

        Clients without test data are left out.
        """
        with_test = np.array([len(self.test_indices[c]) > 0 for c in S.tolist()], dtype=bool)
        clients = S[torch.from_numpy(with_test).to(self.device)]
        if models.dim() == 1:
            rows = models.expand(len(clients), -1)
        elif len(clients) == self.size:
            rows = models
        else:
            rows = models[clients]
        orders = tuple(self.test_indices[c] for c in clients.tolist())
        sizes = tuple(np.diff(np.append(np.arange(0, len(o), EVALUATION_BATCH), len(o))) for o in orders)
        correct, loss = self.executor.evaluate(rows, self._buffers(slot)[clients], Plan(orders, sizes))
        total = np.array([len(o) for o in orders], dtype=np.int64)
        return Scores(clients.cpu().numpy(), correct.cpu().numpy(), total, loss.cpu().numpy())

    # -- BatchNorm buffers --------------------------------------------------------------------------------------------

    def _buffers(self, slot: str) -> Tensor:
        if slot not in self.buffers:
            self.buffers[slot] = self._initial_buffers.expand(self.size, -1).clone()
        return self.buffers[slot]

    def reset_buffers(self, S: Tensor, slots: Sequence[str]) -> None:
        """bn_buffers="reset": the cohort's shared models begin their local training with initial buffers."""
        if self.train.bn_buffers == "reset":
            for slot in slots:
                self._buffers(slot)[S] = self._initial_buffers

    def average_buffers(self, S: Tensor, slots: Sequence[str]) -> None:
        """bn_buffers="average": buffers of shared models are averaged like parameters, and counted as scalars sent."""
        if self.train.bn_buffers == "average":
            for slot in slots:
                rows = self._buffers(slot)
                rows[:] = self.mean(rows[S], S)
                self.ledger.scalars_up += rows.shape[1] * len(S)
                self.ledger.scalars_down += rows.shape[1] * len(S)

    def _refuse_non_finite(self, rows: Tensor, S: Tensor, where: str) -> None:
        # A sum has what is not finite in any of its terms, at a tenth of the cost of looking at each.
        finite = rows.flatten(1).sum(dim=1).isfinite()
        if not bool(finite.all()):
            client = int(S[~finite][0])
            raise Diverged(
                f"client {client} has a non-finite value after {where} in round {self.t}",
                "Nothing of that round was averaged. A smaller --lr usually helps.",
            )
