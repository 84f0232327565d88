"""The federation as a method sees it: N clients with data, one model layout, and the verbs of a round."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflbench.engine import head, rng
from pflbench.engine.batches import Plan, passes
from pflbench.engine.course import Course
from pflbench.engine.flat import Flat
from pflbench.engine.ledger import Ledger, Traffic
from pflbench.engine.requests import (
    ALL,
    Argument,
    Correct,
    Evaluate,
    Executor,
    Given,
    Head,
    Objective,
    Sgd,
    Step,
    Trained,
    Walk,
    Walked,
)
from pflbench.engine.scores import Scores
from pflbench.errors import Diverged
from pflbench.spec import TrainSpec

Initialise = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(received [P'] or [c, P'], S, rest [c, P - P'] or None) -> everyone's models [N, P']: see `Federation.load`."""

EVALUATION_BATCH = 128  # larger ones leave the cache of a CPU core and are slower; a GPU gets those of all clients at once


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
        self.dtype = getattr(torch, train.floats)
        self.device = executor.device
        self.train_indices = [np.asarray(i, dtype=np.int64) for i in train_indices]
        self.test_indices = [np.asarray(i, dtype=np.int64) for i in test_indices]
        self.n = torch.tensor([len(i) for i in train_indices], dtype=self.dtype, device=self.device)
        self.t = 0
        self.observing = False
        self.followed: int | None = None  # the client whose models are kept
        self.ledger = Ledger(Traffic(len(train_indices)))
        self.uploads: list[Tensor] = []
        self._initialise: Initialise | None = None
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
        now.t, now.ledger = t, Ledger(Traffic(self.size))
        return now

    def aside(self) -> Federation:
        """The same federation in the same round, in which nothing is counted or kept: BatchNorm buffers are a copy, too."""
        now = self.at(self.t)
        now.observing, now.followed = False, None
        now.buffers = {slot: rows.clone() for slot, rows in self.buffers.items()}
        return now

    def initialising(self, by: Initialise) -> Federation:
        """The same federation in the same round, in which `load` does what is given, and `uploads` keeps what is collected."""
        now = copy.copy(self)
        now._initialise, now.uploads = by, []
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

    def rows(self, models: Tensor, S: Tensor) -> Tensor:
        """The models of S, [c, P], of one for all [P] or of one for each [N, P]."""
        return models.expand(len(S), -1) if models.dim() == 1 else models[S]

    def observe(self, name: str, value: Tensor) -> None:
        """Keeps an array that is large or dear in the rounds that were chosen for that (`run --observe-every`)."""
        if self.observing:
            self.ledger.observe(name, value)

    # -- communication ------------------------------------------------------------------------------------------------

    def send(self, w: Tensor, S: Tensor, *, models: int = 1, scalars: int = 0) -> Tensor:
        """Server -> clients, counted: one row [P] to all of the cohort, or rows. models: how many rows each client gets."""
        clients = S.cpu().numpy()
        self.ledger.traffic.params_down[clients] += models * w.shape[-1]
        self.ledger.traffic.scalars_down[clients] += scalars
        return w

    def load(self, received: Tensor, S: Tensor, *, others: Tensor | None = None, rest: Tensor | None = None) -> Tensor:
        """Local model <- received model: the one place where local initialisation (ALA) can step in.

        received: one row for all [P'] or a row for each of the cohort [c, P']. Returns what each client starts from: one row
        for all [P'], or [N, P'], with the rows of `others` outside the cohort. rest: where only a part of the model travels,
        the columns above it of each client's own, [c, P - P'].
        """
        if self._initialise is not None:
            return self._initialise(received, S, rest)
        if received.dim() == 1:
            return received
        assert others is not None, "rows of the cohort need a place among everyone's"
        return others.index_copy(0, S, received)

    def collect(self, rows: Tensor, S: Tensor, *, scalars: int = 0) -> Tensor:
        """Clients -> server: rows [c, ...], counted; raises Diverged for a non-finite upload, which is never averaged."""
        self._refuse_non_finite(rows, S, "upload")
        clients = S.cpu().numpy()
        self.ledger.traffic.params_up[clients] += rows.shape[-1]
        self.ledger.traffic.scalars_up[clients] += scalars
        if self._initialise is not None:
            self.uploads.append(rows)
        return rows

    def shares(self, S: Tensor) -> Tensor:
        """q_i(S) = n_i / sum of n_j over S, [c] (methods.md 0.1)."""
        return self.n[S] / self.n[S].sum()

    def mean(self, rows: Tensor, S: Tensor, aggregation: str = "weighted") -> Tensor:
        """sum_i q_i(S) rows_i, or with aggregation="uniform" their plain mean: [P]."""
        return rows.mean(0) if aggregation == "uniform" else self.shares(S) @ rows

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
        parts: int = 1,
    ) -> Plan:
        """Mini-batches of E epochs over each client's own (or the given) samples; they depend on seed, purpose, round, client.

        parts: batches this many times as large, for a walk that splits each.
        """
        orders, sizes = [], []
        for i, client in enumerate(S.tolist()):
            order, size = passes(
                self.train_indices[client] if samples is None else samples[i],
                self.train.local_epochs if epochs is None else epochs,
                self.train.batch_size * parts,
                drop_last or self.train.drop_last,
                parts * (2 if self.flat.has_batch_norm else 1),
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

    def sgd(self, rows: Tensor, S: Tensor, **how: Any) -> Tensor:
        """Local training: plain SGD from rows [c, P] over E epochs -> [c, P] (methods.md 0.1). Takes what `fit` takes."""
        return self.fit(rows, S, **how).rows

    def fit(
        self,
        rows: Tensor,
        S: Tensor,
        *,
        epochs: int | None = None,
        plan: Plan | None = None,
        columns: slice = ALL,
        correct: Correct | None = None,
        objective: Objective | None = None,
        references: Sequence[Tensor] = (),
        slot: str = "model",
        into: str | None = None,
        **given: Argument,
    ) -> Trained:
        """Plain SGD from rows [c, P] along a plan, by default E epochs, with the losses [c].

        correct(w, **given) returns the gradient of a penalty and its value; objective and references: engine.executor. slot names
        which of the clients' models this is: each has its own BatchNorm buffers and batch order; into: where the new buffers go,
        if not back. Raises Diverged if a client ends with a non-finite parameter.
        """
        plan = self.batches(S, epochs, purpose=_purpose(slot)) if plan is None else plan
        lr, buffers = self.train.lr, self._buffers(slot)[S]
        if correct is None and objective is None and head.possible(self.flat, columns, plan):
            done = head.sgd(self.executor, self.flat, rows, buffers, plan, lr)
        else:
            asked = Sgd(plan, rows, buffers, lr, columns, correct, given, objective, references)
            done = self.executor.do(asked)
        self._refuse_non_finite(done.rows, S, "local training")
        self._buffers(into or slot)[S] = done.buffers
        self._note(into or slot, S, plan, done.loss, rows, done.rows)
        return done

    def train_by(
        self,
        step: Step,
        rows: Tensor,
        S: Tensor,
        *,
        carry: Mapping[str, Tensor],
        given: Given | None = None,
        each: Mapping[str, Tensor] | None = None,
        plan: Plan | None = None,
        parts: int = 1,
        slots: tuple[str, ...] = ("model",),
        into: tuple[str, ...] | None = None,
    ) -> dict[str, Tensor]:
        """Local training by a step of the method's own: carry <- step(grad, **carry, **given, **each) for every batch.

        rows [c, P] are the models to begin with; carry: tensors [c, ...], the trained model first; the rest: engine.executor.
        slots: the clients' models whose gradients the step takes, `grad(w, of=k)` being that of slots[k]. Returns the new carry.
        Raises Diverged for a non-finite value in it.
        """
        plan = self.batches(S, purpose=_purpose(slots[0]), parts=parts) if plan is None else plan
        buffers = torch.stack([self._buffers(slot)[S] for slot in slots], dim=1)
        asked = Walk(plan, step, rows, carry, given or {}, buffers, each=each or {}, parts=parts)
        done = self.executor.do(asked)
        for value in (done.loss.unsqueeze(-1), *done.carry.values()):
            self._refuse_non_finite(value, S, "local training")
        for k, slot in enumerate(into or slots):
            self._buffers(slot)[S] = done.buffers[:, k]
        self._note((into or slots)[0], S, plan, done.loss, rows, done.carry[next(iter(carry))])
        return done.carry

    def _note(self, slot: str, S: Tensor, plan: Plan, loss: Tensor, before: Tensor, after: Tensor) -> None:
        # A client too small for a single step has no training loss.
        stepped = torch.from_numpy(plan.steps() > 0).to(self.device)
        self.ledger.train_loss[slot] = float((self.shares(S[stepped]) * loss[stepped]).sum())
        if self.followed is not None and slot == "model":
            self.ledger.follow(self.followed, S, before, after)

    @contextmanager
    def course(self, S: Tensor, plan: Plan, base: Tensor, *, columns: slice = ALL, slot: str = "model") -> Iterator[Course]:
        """The way of an inner loop (`walk`): models `base` [c, P], of which only `columns` change, along the plan's batches.

        Where that is the head alone, the layers below it run once for all walks on this course. BatchNorm's new buffers are
        thrown away.
        """
        buffers = self._buffers(slot)[S]
        if columns != self.flat.head or not self.flat.has_features or not plan.steps().any():
            yield Course(self.executor, S, plan, base, buffers.unsqueeze(1), columns)
            return
        head = self.executor.do(Head(plan, base, buffers))
        try:
            yield Course(head.executor, S, head.plan, base[:, columns], buffers[:, None, :0], ALL)
        finally:
            head.executor.close()

    def walk(
        self, step: Step, course: Course, *, carry: Mapping[str, Tensor], given: Given, objective: Objective | None = None
    ) -> Walked:
        """An inner loop other than plain SGD: carry <- step(grad, **carry, **given) for every batch; see engine.executor.

        carry: tensors [c, ...]. Raises Diverged for a non-finite loss, gradient or carry.
        """
        done = course.walk(step, carry, given, objective)
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
        plan = Plan.through((self.test_indices[c] for c in clients.tolist()), EVALUATION_BATCH)
        found = self.executor.do(Evaluate(plan, rows, self._buffers(slot)[clients]))
        total = np.array([len(mine) for mine in plan.order], dtype=np.int64)
        return Scores(clients.cpu().numpy(), found.correct.cpu().numpy(), total, found.loss.cpu().numpy())

    def evaluate_central(self, model: Tensor, samples: np.ndarray, slot: str = "model") -> tuple[float, float]:
        """Accuracy and mean loss of one model [P] on samples that no client holds.

        Its BatchNorm buffers are the mean of all clients', by sample count.
        """
        pieces = np.array_split(samples, -(-len(samples) // (8 * EVALUATION_BATCH)))  # for all cores to share
        buffers = self.mean(self._buffers(slot), torch.arange(self.size, device=self.device))
        plan = Plan.through(pieces, EVALUATION_BATCH)
        found = self.executor.do(Evaluate(plan, model.expand(len(plan), -1), buffers.expand(len(plan), -1)))
        return int(found.correct.sum()) / len(samples), float(found.loss.sum()) / len(samples)

    def losses(self, models: Tensor, S: Tensor, samples: Sequence[np.ndarray], slot: str = "model") -> Tensor:
        """L_i of models [c, P] on each client's given samples: the mean over batches of size B of the batch's mean loss, [c].

        In evaluation mode; 0 for a client without samples.
        """
        B = self.train.batch_size
        buffers = self._buffers(slot)[S]
        total = torch.zeros(len(S), dtype=torch.float64, device=self.device)
        batches = np.array([-(-len(mine) // B) for mine in samples])
        # A mean over full batches is one over samples: only the last, partial batch weighs differently.
        full = [mine[: len(mine) // B * B] for mine in samples]
        tail = [mine[len(mine) // B * B :] for mine in samples]
        for pieces in (full, tail):
            summed = self.executor.do(Evaluate(Plan.through(pieces, EVALUATION_BATCH), models, buffers)).loss
            of_batch = np.array([B if pieces is full else max(len(piece), 1) for piece in pieces])
            total += summed / torch.from_numpy(of_batch * np.maximum(batches, 1)).to(self.device)
        return total.to(self.dtype)

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
                clients = S.cpu().numpy()
                self.ledger.traffic.scalars_up[clients] += rows.shape[1]
                self.ledger.traffic.scalars_down[clients] += rows.shape[1]

    def _refuse_non_finite(self, rows: Tensor, S: Tensor, where: str) -> None:
        # A sum has what is not finite in any of its terms, at a tenth of the cost of looking at each.
        finite = rows.flatten(1).sum(dim=1).isfinite()
        if not bool(finite.all()):
            client = int(S[~finite][0])
            raise Diverged(
                f"client {client} has a non-finite value after {where} in round {self.t}",
                "Nothing of that round was averaged. A smaller --lr usually helps.",
            )


def _purpose(slot: str) -> str:
    return "batches" if slot == "model" else f"batches/{slot}"
