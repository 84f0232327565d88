"""ALA, adaptive local aggregation (Zhang et al., AAAI 2023, eqs 2-7; methods.md 1.14), which FedALA is built on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.flat import put, take
from pflbench.engine.requests import ALL, Grad
from pflbench.errors import UserError
from pflbench.methods.base import hyper, method

WINDOW = 10  # epochs whose losses must agree before the initial stage ends


@dataclass(frozen=True)
class AlaState:
    """The clients' state of ALA, which lasts from round to round."""

    W: Tensor  # [N, m] one weight per parameter of the top p blocks
    started: Tensor  # [N] bool, the initial stage is over
    trained: Tensor  # [N] bool, the client has trained a model of its own

    def after_training(self, S: Tensor) -> AlaState:
        return replace(self, trained=self.trained.index_fill(0, S, True))


def weight_step(grad: Grad, *, W: Tensor, local: Tensor, received: Tensor, eta: float) -> dict[str, Tensor]:
    """One mini-batch of weight learning: eq. 4, then eq. 5 with the clipping of eq. 3. Works on [m] and on [c, m]."""
    difference = received - local
    G = grad(local + difference * W)
    return {"W": (W - eta * G * difference).clamp(0, 1)}


@method
class ALA:
    """Element-wise learned mixing of a received and a local model in the top p blocks; lower blocks are overwritten."""

    version = 1
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"fedala2022": {"drop_last": True}}

    eta: float = hyper(1.0, "rate of weight learning", ge=0, search=(0.1, 1.0, 10.0))
    s: float = hyper(
        80,
        "percent of the local training data used for weight learning",
        gt=0,
        le=100,
        search=(5, 10, 20, 40, 60, 80, 100),
    )
    p: int = hyper(1, "range: how many blocks from the top are mixed (Table 5)", ge=1, search=(1, 2, 3, 4, 5, 6))
    # 0.01 by the authors' statement and first public code; their code has had 0.1 since June 2023.
    threshold: float = hyper(0.01, "the initial stage ends when the std of the last 10 epoch losses is below this", ge=0)
    # The reference has no cap and can loop for ever, e.g. when a weight oscillates between its bounds.
    max_init_epochs: int = hyper(100, "the initial stage ends after this many epochs at the latest", ge=1)
    min_epochs: int = hyper(1, "at least this many weight-learning epochs in every round (Figure 3: 6)", ge=1)
    adapt: bool = hyper(True, "go on learning the weights after the initial stage (ablation: false)")
    start_round: int = hyper(2, "first round with ALA; before it the received model is used (Figure 4: 156)", ge=2)
    subset: Literal["random", "slice"] = hyper("random", "a random subset, or as in the reference one slice of the stored order")
    drop_last: bool = hyper(False, "drop the last partial batch in weight learning, as the code of 2022 did")
    ala_all: bool = hyper(False, "run ALA for all clients in every round, not only for the cohort, as the reference does")
    skip_untrained: bool = hyper(False, "a client that has never trained loads the received model and waits with ALA")

    def first(self, fed: Federation, shared: slice = ALL) -> AlaState:
        """The state before round 1. A p beyond the blocks of what travels is a UserError."""
        blocks = _blocks(fed, shared)
        if self.p > len(blocks):
            raise UserError(
                f"p = {self.p}, but of this model {len(blocks)} blocks can be mixed by ALA.", f"Choose p from 1 to {len(blocks)}."
            )
        if self.min_epochs > self.max_init_epochs:
            raise UserError(f"min_epochs = {self.min_epochs} is more than max_init_epochs = {self.max_init_epochs}.")
        columns = self.columns(fed, shared)
        flags = torch.zeros(fed.size, dtype=torch.bool, device=fed.device)
        weights = torch.ones(fed.size, columns.stop - columns.start, dtype=fed.dtype, device=fed.device)
        return AlaState(W=weights, started=flags, trained=flags.clone())

    def columns(self, fed: Federation, shared: slice = ALL) -> slice:
        """The top p blocks of what travels."""
        blocks = _blocks(fed, shared)
        return slice(blocks[self.p - 1].start, blocks[0].stop)

    def initialise(
        self, fed: Federation, a: AlaState, S: Tensor, received: Tensor, local: Tensor, rest: Tensor | None = None
    ) -> tuple[Tensor, AlaState]:
        """Local initialisation (eq. 4): received and local models [c, P'] -> initialised models [c, P'] and ALA's new state.

        rest: the columns above P' of each client's own model, where only a part travels.
        """
        subset = fed.subset(S, self.s, contiguous=self.subset == "slice")
        # In stored order, the same in every epoch: only then can the last batch's losses be compared between epochs.
        plan = fed.batches(S, 1, samples=subset, shuffle=False, drop_last="auto" if self.drop_last else "never")
        ready = (received != local).any(dim=1) & (fed.t >= self.start_round)
        ready &= torch.from_numpy(plan.steps() > 0).to(fed.device)
        if self.skip_untrained:
            ready &= a.trained[S]
        at = ready.nonzero().squeeze(1)
        if len(at) == 0:
            return received, a
        A, up = S[at], self.columns(fed, slice(0, received.shape[1]))
        below = take(received, at)
        whole = below if rest is None else torch.cat([below, rest[at]], dim=1)
        W = self._learn(fed, A, plan.take(at.tolist()), whole, local[at, up], up, a.W[A], a.started[A])
        mixed = below.clone()
        mixed[:, up] = local[at, up] + (below[:, up] - local[at, up]) * W
        if fed.observing:
            some = [subset[i] for i in at.tolist()]
            fed.ledger.deferred.append(partial(self._observe, fed, A, W, whole, take(local, at), mixed, some))
        started = a.started.index_fill(0, A, True)
        return put(received, at, mixed), replace(a, W=put(a.W, A, W), started=started)

    def _learn(
        self, fed: Federation, A: Tensor, plan: Plan, received: Tensor, local: Tensor, up: slice, W: Tensor, started: Tensor
    ) -> Tensor:
        """Weight learning until convergence in a client's initial stage, min_epochs (one) afterwards.

        received: whole models [c, P]; local and W: their columns `up`, [c, m].
        """
        W = W.clone()
        first_stage = ~started.cpu()
        live = first_stage | torch.tensor(self.adapt)
        epochs = torch.zeros(len(A), dtype=torch.int64)
        last = torch.full((len(A), WINDOW), torch.nan, dtype=torch.float64)
        means: list[Tensor] = []
        with fed.inner_loop(A, plan, received, columns=up) as loop:
            while bool(live.any()):
                at = live.nonzero().squeeze(1)
                where = at.to(fed.device)
                scanned = fed.scan(
                    weight_step,
                    loop.take(at),
                    carry={"W": W[where]},
                    given={"local": local[where], "received": received[where, up], "eta": self.eta},
                )
                W[where] = scanned.carry["W"]
                epochs[at] += 1
                last[at] = torch.cat([last[at, 1:], scanned.last_loss.double().cpu().unsqueeze(1)], dim=1)
                if fed.observing:
                    loss = scanned.loss.cpu()
                    means.append(loss.new_full((fed.size,), torch.nan).index_copy(0, A.cpu()[at], loss))
                settled = (epochs > WINDOW) & (last.std(dim=1, correction=0) < self.threshold)
                enough = torch.where(first_stage, settled | (epochs >= self.max_init_epochs), torch.tensor(True))
                live &= ~(enough & (epochs >= self.min_epochs))
        if bool(first_stage.any()):
            of_all = torch.zeros(fed.size, dtype=torch.int64)
            of_all[A.cpu()[first_stage]] = epochs[first_stage]
            fed.ledger.observe("ala_init_epochs", of_all)
            if bool((capped := first_stage & ~settled).any()):
                fed.ledger.note(
                    "ala cap",
                    f"in round {fed.t} the initial stage of {int(capped.sum())} of {int(first_stage.sum())} clients ended by "
                    f"its cap of {self.max_init_epochs} epochs: their losses had not settled (threshold {self.threshold:g}).",
                )
        if means:
            fed.observe("ala_epoch_losses", torch.stack(means, dim=1))
        return W

    def _observe(
        self, fed: Federation, A: Tensor, W: Tensor, whole: Tensor, local: Tensor, mixed: Tensor, subset: Sequence[np.ndarray]
    ) -> None:
        """Arrays for the figures of ALA; NaN for clients without ALA in this round.

        ala_weights [N, m]; ala_blocks [p, 3]: block (0 is the model's top) and its first and last + 1 column in the weights.
        ala_losses [N, 2]: on the subset, with the received and with the initialised model. ala_objective [N, 2]: eq. 8's terms,
        on all training data, with the local model as trained last and with the initialised one.
        """
        rest, up = whole[:, mixed.shape[1] :], self.columns(fed, slice(0, mixed.shape[1]))
        after, trained = (torch.cat([part, rest], dim=1) for part in (mixed, local))
        own = [fed.train_indices[client] for client in A.tolist()]
        arrays = {
            "ala_weights": W,
            "ala_losses": torch.stack([fed.losses(whole, A, subset), fed.losses(after, A, subset)], dim=1),
            "ala_objective": torch.stack([fed.losses(trained, A, own), fed.losses(after, A, own)], dim=1),
        }
        for name, value in arrays.items():
            fed.observe(name, value.new_full((fed.size, value.shape[1]), torch.nan).index_copy(0, A, value))
        inside = [(k, block) for k, block in enumerate(fed.flat.blocks) if up.start <= block.start < up.stop]
        blocks = [(k, block.start - up.start, block.stop - up.start) for k, block in inside]
        fed.observe("ala_blocks", torch.tensor(blocks))


def _blocks(fed: Federation, shared: slice) -> list[slice]:
    _, stop, _ = shared.indices(fed.flat.size)
    return [block for block in fed.flat.blocks if block.stop <= stop]
