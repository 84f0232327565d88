"""ALA, what both FedALA and the plug-in have of it (methods.md 1.14, 1.15)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pflbench import methods
from pflbench.contract.small import federation, train
from pflbench.contract.toy import EXECUTORS, Quadratic, by_hand, q2, rounds
from pflbench.engine.federation import Federation
from pflbench.errors import Diverged
from pflbench.methods.base import Method
from pflbench.spec import MethodSpec

BOTH = pytest.mark.parametrize("name", ["fedala", "fedavg+ala", "ditto+ala"])


def make(name: str, **hyperparameters: Any) -> Method:
    return methods.make(MethodSpec(name=name, hyperparameters=hyperparameters))


@BOTH
def test_who_has_trained_is_remembered(name: str) -> None:
    """With skip_untrained ALA begins with a client's second participation, and without it with the first after round 1."""
    fed = federation(n=(12, 5, 9, 7, 6, 8), join_ratio=0.5)
    state, waiting = (train(make(name, skip_untrained=skip), fed, 3) for skip in (False, True))
    cohorts = [set(fed.cohort(t).tolist()) for t in (1, 2, 3, 4)]
    trained = cohorts[0] | cohorts[1] | cohorts[2]
    before = [set().union(*cohorts[:t]) for t in range(4)]
    second = set().union(*(cohort & earlier for cohort, earlier in zip(cohorts, before, strict=True)))
    late = set().union(*cohorts[1:])
    assert second < late, "else nothing is told apart"
    for found in (state, waiting):
        assert set(found.ala.trained.nonzero().flatten().tolist()) == trained
    assert set(state.ala.started.nonzero().flatten().tolist()) == late
    assert set(waiting.ala.started.nonzero().flatten().tolist()) == second


@pytest.mark.parametrize("engine", EXECUTORS)
def test_fedprox_s_term_stays_centred_at_what_was_received(engine: str) -> None:
    """Q2, mu = 0.5: hat-theta_2 = (0.075, 0.2) and Theta = (0.075, 0.05), so that its upper value moves by 0.1 (1.8 - 0.075)."""
    fed, method = q2(engine), make("fedprox+ala", mu=0.5, s=100, max_init_epochs=11)
    _, (received, second) = rounds(method, fed, 2)
    hat, Theta, centres = received.base.start, received.base.w, torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
    assert (hat - Theta).abs().max() > 0.1
    torch.testing.assert_close(second.local, hat - 0.1 * (hat - centres + 0.5 * (hat - Theta)), rtol=0, atol=1e-12)
    assert second.local[1, 1] == pytest.approx(0.2 + 0.1 * (1.8 - 0.5 * 0.15))


def root(output: Tensor, labels: Tensor) -> Tensor:
    """0 at the samples, where its slope is infinite."""
    return output.abs().sum(-1).sqrt().mean()


@pytest.mark.parametrize("engine", EXECUTORS)
def test_an_inner_loop_that_diverges_names_the_client(engine: str) -> None:
    fed = by_hand(Quadratic(), np.zeros((4, 2)), (2, 2), engine, batch_size=2, loss=root)

    def step(grad: Any, *, w: Tensor, at: Tensor) -> dict[str, Tensor]:
        return {"w": w - grad(at)}

    S = fed.all_trainable()
    base = torch.tensor([[1.0, 1.0], [0.0, 0.0]]).double()
    for client, diverges in ((0, False), (1, True)):
        with fed.inner_loop(S[[client]], fed.batches(S[[client]], 1), base[[client]]) as loop:
            given = {"at": base[[client]]}
            if not diverges:
                assert fed.scan(step, loop, carry={"w": base[[client]]}, given=given).carry["w"].isfinite().all()
                continue
            with pytest.raises(Diverged, match="client 1 has a non-finite value after an inner loop"):
                fed.scan(step, loop, carry={"w": base[[client]]}, given=given)


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_losses_are_observed_in_the_type_of_the_run(name: str, dtype: str) -> None:
    """A run in float64 can have a loss of 1e40, which is finite."""
    torch.set_default_dtype(torch.float64 if dtype == "float32" else torch.float32)
    try:
        losses = observed(name, observing=True, dtype=dtype)["ala_epoch_losses"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert losses.dtype == dtype
    assert (~np.isnan(losses)).any(axis=1).all()


@BOTH
def test_where_nobody_observes_no_losses_are_gathered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Federation, "observe", lambda self, what, value: asked.append(what))
    assert "ala_epoch_losses" not in observed(name, observing=False)
    assert not [what for what in asked if what.startswith("ala")]


def observed(name: str, observing: bool, dtype: str = "float32") -> dict[str, np.ndarray]:
    """In the reception of round 2."""
    fed, method = federation(dtype=dtype), make(name)
    ((_, state),) = rounds(method, fed, 1)
    now = fed.at(2)
    now.observing = observing
    method.receive(now, state, now.cohort(2))
    return now.ledger.artifacts
