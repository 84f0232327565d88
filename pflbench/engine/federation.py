"""The federation as a method sees it: N clients with data, one model layout, and the operations of a round."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflbench.engine import evaluation, local, optimizers, rng
from pflbench.engine.batches import Plan, passes
from pflbench.engine.behaviour import ClientClock, compressed, upload_bytes
from pflbench.engine.flat import Flat
from pflbench.engine.requests import Executor
from pflbench.errors import Diverged
from pflbench.spec import TrainSpec

COUNTERS = ("params_up", "params_down", "scalars_up", "scalars_down")
PARAMS_UP, PARAMS_DOWN, SCALARS_UP, SCALARS_DOWN = range(len(COUNTERS))


@dataclass
class Ledger:
    """What one round has cost and shown."""

    traffic: npt.NDArray[np.int64]  # [N, 4]: what each client sent and received, in the order of COUNTERS (methods.md 1.18)
    spared: npt.NDArray[np.int64]  # [N]: bytes that compressed uploads are shorter by (2.14)
    train_loss: dict[str, float] = field(default_factory=dict)  # by model
    artifacts: dict[str, np.ndarray] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    trained: Tensor | None = None  # [c, P] the cohort's local models after local training, if `Federation.keep_trained`
    compressed: int = 0  # uploads so far
    deferred: list[Callable[[], None]] = field(default_factory=list)  # costly observations: a round calls them unmeasured

    def follow(self, client: int, S: Tensor, before: Tensor, after: Tensor) -> None:
        """Keeps a client's model before and after local training, [2, P], if it is in S; over all parts of the training."""
        for i in S.eq(client).nonzero().flatten().tolist():
            name = f"trajectory_{client}"
            start = torch.from_numpy(self.artifacts[name])[0] if name in self.artifacts else before[i].cpu()
            self.observe(name, torch.stack([start, after[i].cpu()]))

    def note(self, name: str, text: str) -> None:
        """A warning for the user. A run prints and keeps the first note of each name."""
        self.notes.setdefault(name, text)

    def observe(self, name: str, value: Tensor | np.ndarray) -> None:
        """Keeps a named array for the database."""
        self.artifacts[name] = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


Initialise = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(received [P'] or [c, P'], S, rest [c, P - P'] or None) -> everyone's models [N, P']: see `Federation.load`."""


class Federation:
    """N clients; `S` is everywhere a cohort, client ids in ascending order [c] (int64, on the device).

    Matrices have one row per client: [N, P] for all, [c, P] for a cohort. Only `buffers` change between rounds: those of
    BatchNorm, which belong to a client and one of its models and travel only if the protocol says so (methods.md 4.3), the
    states of optimizers (2.3) and what topk has not sent yet (2.14), which never travel.
    """

    def __init__(
        self,
        flat: Flat,
        executor: Executor,
        protocol: TrainSpec,
        train_indices: Sequence[np.ndarray],
        test_indices: Sequence[np.ndarray],
        seed: int,
        labels: np.ndarray,
    ) -> None:
        self.flat = flat
        self.labels = labels
        self.executor = executor
        self.protocol = protocol
        self.seed = seed
        self.dtype = getattr(torch, protocol.floats)
        self.device = executor.device
        self.train_indices = [np.asarray(i, dtype=np.int64) for i in train_indices]
        self.test_indices = [np.asarray(i, dtype=np.int64) for i in test_indices]
        self.validation_indices: Sequence[np.ndarray] = ()
        self.n = torch.tensor([len(i) for i in train_indices], dtype=self.dtype, device=self.device)
        self.optimizer = optimizers.of(protocol)
        self.clock: ClientClock | None = None
        self.t = 0
        self.receiving = False
        self.test_follows = True  # whether the clients are tested after this reception (`run --eval-every`)
        self.observing = False
        self.keep_trained = False  # whether the ledger keeps the models after local training
        self.followed: int | None = None  # the client whose models `Ledger.follow` keeps
        self.ledger = self._new_ledger()
        self.uploads: list[Tensor] = []
        self._initialise: Initialise | None = None
        self._initial = flat.row().to(self.device, self.dtype)
        self._initial_buffers = flat.buffer_row(self.dtype).to(self.device)
        self.buffers: dict[str, Tensor] = {}

    @property
    def size(self) -> int:
        """N."""
        return len(self.train_indices)

    @property
    def lr(self) -> float | Tensor:
        """The rate of local training in this round (methods.md 2.3). A tensor [] under a schedule: not a constant of a step."""
        if self.receiving or self.protocol.lr_schedule == "constant":
            return self.protocol.lr
        return torch.full((), self.protocol.lr_of(self.t), dtype=self.dtype, device=self.device)

    def at(self, t: int, receiving: bool = False) -> Federation:
        """The same federation in round t, with a new ledger. receiving: at its reception, which comes before local training."""
        now = copy.copy(self)
        now.t, now.ledger, now.receiving = t, self._new_ledger(), receiving
        return now

    def scratch_copy(self) -> Federation:
        """A copy of the federation in the same round, whose ledger and BatchNorm buffers are its own."""
        now = self.at(self.t, self.receiving)
        now.observing, now.followed, now.keep_trained = False, None, False
        now.buffers = {model: rows.clone() for model, rows in self.buffers.items()}
        return now

    def validating(self) -> Federation:
        """The same federation in the same round, whose tests use the clients' validation samples."""
        now = copy.copy(self)
        now.test_indices = list(self.validation_indices)
        return now

    def initialising(self, by: Initialise) -> Federation:
        """The same federation in the same round, whose `load` calls `by`, and whose `uploads` keeps what is collected."""
        now = copy.copy(self)
        now._initialise, now.uploads = by, []
        return now

    def _new_ledger(self) -> Ledger:
        return Ledger(np.zeros((self.size, len(COUNTERS)), dtype=np.int64), np.zeros(self.size, dtype=np.int64))

    def initial(self) -> Tensor:
        """Theta^0, [P]: the same on server and clients."""
        return self._initial.clone()

    def everyone(self, row: Tensor) -> Tensor:
        """[N, P], every client's own copy of one row."""
        return row.expand(self.size, -1).clone()

    def all_trainable(self) -> Tensor:
        """All clients with training data, as a cohort."""
        return torch.from_numpy(self.candidates()).to(self.device)

    def candidates(self) -> np.ndarray:
        """Ids of the clients that can be selected: an empty client never is (methods.md 0.5)."""
        return np.flatnonzero([len(i) > 0 for i in self.train_indices])

    def cohort(self, t: int) -> Tensor:
        """S_t: int(rho * N) clients; with a random rho (methods.md 2.14) at least one."""
        ratio, low = self.protocol.join_ratio, self.protocol.join_ratio_low
        size = int(ratio * self.size) if low is None else max(1, int(rng.join_ratio(self.seed, t, low, ratio) * self.size))
        return torch.from_numpy(rng.cohort(self.seed, t, self.candidates(), size)).to(self.device)

    def rows(self, models: Tensor, S: Tensor) -> Tensor:
        """The models of S, [c, P]. models: one for all [P], or one for each client [N, P]."""
        return models.expand(len(S), -1) if models.dim() == 1 else models[S]

    def observe(self, name: str, value: Tensor) -> None:
        """Keeps a large array, in the rounds that the user chose for that (`run --save-artifacts-every`)."""
        if self.observing:
            self.ledger.observe(name, value)

    # -- communication ------------------------------------------------------------------------------------------------

    def send(self, w: Tensor, S: Tensor, *, models: int = 1, scalars: int = 0) -> Tensor:
        """Server -> clients, counted: one row [P] to all of the cohort, or rows. models: number of rows that each client gets."""
        clients = S.cpu().numpy()
        self.ledger.traffic[clients, PARAMS_DOWN] += models * w.shape[-1]
        self.ledger.traffic[clients, SCALARS_DOWN] += scalars
        return w

    def load(self, received: Tensor, S: Tensor, *, others: Tensor | None = None, rest: Tensor | None = None) -> Tensor:
        """Local model <- received model: the one place where local initialisation (ALA) can be plugged in.

        received: one row for all [P'] or a row for each of the cohort [c, P']. Returns the models that clients start from: one
        row for all [P'], or [N, P'], with the rows of `others` outside the cohort. rest: where only a part of the model
        travels, the columns above it of each client's own model, [c, P - P'].
        """
        if self._initialise is not None:
            return self._initialise(received, S, rest)
        if received.dim() == 1:
            return received
        assert others is not None, "rows of the cohort need a place among everyone's"
        return others.index_copy(0, S, received)

    def collect(
        self,
        rows: Tensor,
        S: Tensor,
        *,
        scalars: int | npt.NDArray[np.int64] = 0,
        since: Tensor | float | None = None,
        error_feedback: bool = True,
    ) -> Tensor:
        """Clients -> server: rows [c, ...], counted; raises Diverged for a non-finite upload, which is never averaged.

        Returns what the server gets. since: what both have and compressed uploads are the change of ([P], [c, P], or 0.0 where
        the rows are changes themselves); without it, rows are never compressed (methods.md 2.14). error_feedback: whether what
        topk leaves out is added to the client's next upload; False where the next change contains it anyway.
        """
        self.require_finite(rows, S, "upload")
        clients = S.cpu().numpy()
        self.ledger.traffic[clients, PARAMS_UP] += rows.shape[-1]
        self.ledger.traffic[clients, SCALARS_UP] += scalars
        if self._initialise is not None:
            self.uploads.append(rows)
        return rows if self.protocol.upload == "full" or not rows.shape[-1] else self._compressed(rows, S, since, error_feedback)

    def _compressed(self, rows: Tensor, S: Tensor, since: Tensor | float | None, error_feedback: bool) -> Tensor:
        """The rows as the server gets them. error_feedback: what topk leaves out joins the client's next upload of that kind."""
        protocol, width, word = self.protocol, rows.shape[1], rows.itemsize
        if since is None:
            full = f"{width:,} numbers of each upload are sent in full, since the server has nothing that they are a change of."
            self.ledger.note("upload", f"--upload {protocol.upload}: {full}")
            return rows
        change, left_out = rows - since, f"left out of upload {self.ledger.compressed}"
        remembered = error_feedback and protocol.kept_share is not None
        if remembered:
            self.buffers.setdefault(left_out, rows.new_zeros(self.size, width))
            change += self.buffers[left_out][S]
        sent = compressed(protocol, change)
        if remembered:
            self.buffers[left_out][S] = change - sent
        self.ledger.compressed += 1
        self.ledger.spared[S.cpu().numpy()] += word * width - upload_bytes(protocol, width, word)
        return since + sent

    def shares(self, S: Tensor) -> Tensor:
        """q_i(S) = n_i / sum of n_j over S, [c] (methods.md 0.1)."""
        return self.n[S] / self.n[S].sum()

    def mean(self, rows: Tensor, S: Tensor, aggregation: str = "weighted") -> Tensor:
        """sum_i q_i(S) rows_i, or with aggregation="uniform" their plain mean: [P]."""
        return rows.mean(0) if aggregation == "uniform" else self.shares(S) @ rows

    # -- data ---------------------------------------------------------------------------------------------------------

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
        batch_size: int | None = None,
    ) -> Plan:
        """Mini-batches of E epochs over each client's own (or the given) samples, by seed, purpose, round and client.

        parts: batches are this many times as large, for an inner loop that splits each. batch_size: another than the protocol's.
        """
        orders, sizes = [], []
        for i, client in enumerate(S.tolist()):
            order, size = passes(
                self.train_indices[client] if samples is None else samples[i],
                self.protocol.local_epochs if epochs is None else epochs,
                (batch_size or self.protocol.batch_size) * parts,
                drop_last or self.protocol.drop_last,
                parts * (2 if self.flat.has_batch_norm else 1),
                rng.stream(self.seed, purpose, self.t, client) if shuffle else None,
            )
            orders.append(order)
            sizes.append(size)
        return Plan(tuple(orders), tuple(sizes))

    def class_counts(self, S: Tensor) -> Tensor:
        """Training samples of each class, [c, K]."""
        counts = [np.bincount(self.labels[self.train_indices[i]], minlength=self.flat.classes) for i in S.tolist()]
        return torch.from_numpy(np.array(counts)).to(self.device, self.dtype)

    def subset(self, S: Tensor, percent: float, contiguous: bool = False) -> list[np.ndarray]:
        """D^{s,t} of each client's training samples, new every round: at random, or one slice of the stored order."""
        return [rng.subset(self.seed, self.t, i, self.train_indices[i], percent, contiguous) for i in S.tolist()]

    # -- local work and tests -----------------------------------------------------------------------------------------

    sgd = local.sgd
    fit = local.fit
    train_by = local.train_by
    inner_loop = local.inner_loop
    scan = local.scan
    evaluate = evaluation.evaluate
    evaluate_central = evaluation.evaluate_central
    logits = evaluation.logits
    losses = evaluation.losses
    class_means = evaluation.class_means

    # -- buffers and optimizer states --------------------------------------------------------------------------

    def buffers_of(self, model: str) -> Tensor:
        """All clients' BatchNorm buffers of one of their models, [N, B]; to be changed in place."""
        if model not in self.buffers:
            self.buffers[model] = self._initial_buffers.expand(self.size, -1).clone()
        return self.buffers[model]

    def lasting_moments(self, model: str, columns: slice) -> dict[str, Tensor]:
        """All clients' optimizer states, [N, ...], for columns of one of their models; to be changed in place.

        Empty where the optimizer begins anew in every round, and at reception, which is no local training.
        """
        if self.optimizer is None or self.receiving or self.protocol.optimizer_state == "fresh":
            return {}
        where = f"{model}/{columns.start}:{columns.stop}/"
        if not any(name.startswith(where) for name in self.buffers):
            begun = self.optimizer.begin(self._initial.expand(self.size, -1)[:, columns])
            self.buffers.update({where + name: value for name, value in begun.items()})
        return {name.removeprefix(where): value for name, value in self.buffers.items() if name.startswith(where)}

    def reset_buffers(self, S: Tensor, models: Sequence[str]) -> None:
        """bn_buffers="reset": the cohort's shared models begin their local training with initial buffers."""
        if self.protocol.bn_buffers == "reset":
            for model in models:
                self.buffers_of(model)[S] = self._initial_buffers

    def average_buffers(self, S: Tensor, models: Sequence[str]) -> None:
        """bn_buffers="average": buffers of shared models are averaged like parameters, and counted as scalars sent."""
        if self.protocol.bn_buffers == "average":
            for model in models:
                rows = self.buffers_of(model)
                rows[:] = self.mean(rows[S], S)
                clients = S.cpu().numpy()
                self.ledger.traffic[clients, SCALARS_UP] += rows.shape[1]
                self.ledger.traffic[clients, SCALARS_DOWN] += rows.shape[1]

    def require_finite(self, rows: Tensor, S: Tensor, where: str) -> None:
        """Raises Diverged, naming the first client of S whose row has a value that is not finite."""
        # A sum is not finite if any of its terms is not, and costs a tenth of checking each.
        finite = rows.flatten(1).sum(dim=1).isfinite()
        if not bool(finite.all()):
            client = int(S[~finite][0])
            raise Diverged(
                f"client {client} has a non-finite value after {where} in round {self.t}",
                "Nothing of that round was averaged. A smaller --lr usually helps.",
            )
