"""ALA as a plug-in, "X+ALA": local initialisation by ALA in place of "local model <- received model" (methods.md 1.15).

The base method does not know of it: it calls `fed.load` where a client takes over what it received, and here that is ALA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from pflbench.engine.flat import put
from pflbench.errors import UserError
from pflbench.methods.ala import ALA, AlaState
from pflbench.methods.base import Method, Welcome

if TYPE_CHECKING:
    from pflbench.engine.federation import Federation
    from pflbench.spec import RunSpec, TrainSpec, Value


@dataclass(frozen=True)
class PlusState:
    base: Any  # the base method's own state
    local: Tensor  # [N, P'] what each client uploaded last; for the cohort, from reception to training, the initialised model
    ala: AlaState


@dataclass(frozen=True)
class PlusALA(Method):
    """A method whose clients start from a learned element-wise mix of what they received and what they trained last."""

    random_test = True

    base: Method
    ala: ALA

    @property
    def tested_model(self) -> str:  # type: ignore[override]
        return self.base.tested_model

    @property
    def shared_models(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.base.shared_models

    @property
    def depends_on_cohort(self) -> bool:  # type: ignore[override]
        return self.base.depends_on_cohort

    def check(self, train: TrainSpec) -> Iterator[str]:
        if self.base.depends_on_cohort and self.ala.ala_all and not train.everyone_joins:
            raise UserError(
                f"ala_all does not go with {self.base.title} at a join ratio below 1: its cohort decides what is received.",
                "Leave out ala_all, or use --join-ratio 1, where it changes nothing.",
            )
        yield from self.base.check(train)

    def shared(self, fed: Federation) -> slice:
        return self.base.shared(fed)  # type: ignore[return-value]  # the others refuse ALA

    def uses_test_labels(self) -> bool:
        return self.base.uses_test_labels()

    def canonical_values(self, spec: RunSpec) -> Mapping[str, Value]:
        return self.base.canonical_values(spec)

    def model(self, backbone: nn.Module) -> nn.Module:
        return self.base.model(backbone)

    def init(self, fed: Federation) -> PlusState:
        shared = self.shared(fed)
        local, ala = fed.everyone(fed.initial()[shared]), self.ala.first(fed, shared)
        return PlusState(self.base.init(fed.initialising(lambda *_: local)), local, ala)

    def receive(self, fed: Federation, s: PlusState, S: Tensor) -> PlusState:
        local, ala, loaded = s.local, s.ala, False

        def load(received: Tensor, S: Tensor, rest: Tensor | None) -> Tensor:
            nonlocal local, ala, loaded
            rows = fed.rows(received, S) if received.dim() == 1 else received
            hat_S, ala = self.ala.initialise(fed, ala, S, rows, local[S], rest)
            local, loaded = put(local, S, hat_S), True
            return local

        A = fed.all_trainable() if self.ala.ala_all else S
        base = self.base.receive(fed.initialising(load), s.base, A)
        if not loaded:
            raise UserError(
                f"{self.base.title} does not take over a received model, so ALA has nothing to replace.",
                "A method that does says so by calling fed.load(received, S) in `receive`.",
            )
        return PlusState(base, local, ala)

    def update(self, fed: Federation, s: PlusState, S: Tensor) -> PlusState:
        listening = fed.initialising(lambda *_: s.local)
        base = self.base.update(listening, s.base, S)
        if not listening.uploads:
            raise UserError(
                f"{self.base.title} collects no trained model, so ALA has none to start from in the next round.",
                "A method that uploads says so by calling fed.collect(theta_S, S) in `update`.",
            )
        return PlusState(base, put(s.local, S, listening.uploads[0]), s.ala.after_training(S))

    def deployed(self, s: PlusState) -> Tensor:
        return self.base.deployed(s.base)

    def welcome(self, fed: Federation, s: PlusState, new: Federation) -> Welcome | None:
        return self.base.welcome(fed, s.base, new)

    def series(self, s: PlusState) -> dict[str, tuple[Tensor, str]]:
        return self.base.series(s.base)
