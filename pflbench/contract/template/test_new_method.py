"""NewMethod: numbers worked out by hand, a limiting case, and the contract that every method keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pflbench import methods
from pflbench.contract.small import EXECUTORS, federation, train
from pflbench.contract.suite import Contract
from pflbench.contract.toy import q2, rounds
from pflbench.methods.base import Method
from pflbench.plugins.methods import plug_in
from pflbench.spec import MethodSpec, Value

plug_in(Path(__file__).with_name("new_method.py"))


def make(**hyperparameters: Value) -> Method:
    return methods.make(MethodSpec(name="new-method", hyperparameters=hyperparameters))


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_numbers_by_hand(executor: str) -> None:
    """Two clients with 30 and 10 samples; from w, client i trains to w + 0.1 (c_i - w), with c = (1, 0) and (0, 2).

    Round 1 starts at 0: theta = (0.1, 0) and (0, 0.2), w = 3/4 (0.1, 0) + 1/4 (0, 0.2) = (0.075, 0.05).
    Round 2 starts at the mean of w and theta: (0.0875, 0.025) and (0.0375, 0.125).
    """
    _, (received, updated) = rounds(make(alpha=0.5), q2(executor), 2)
    for actual, expected in (
        (received.theta, [[0.0875, 0.025], [0.0375, 0.125]]),
        (updated.theta, [[0.17875, 0.0225], [0.03375, 0.3125]]),
        (updated.w, [0.1425, 0.095]),
    ):
        torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", EXECUTORS)
def test_with_alpha_1_it_is_fedavg(engine: str) -> None:
    fedavg = methods.make(MethodSpec(name="fedavg"))
    expected = train(fedavg, federation(engine=engine, join_ratio=0.5))
    actual = train(make(alpha=1), federation(engine=engine, join_ratio=0.5))
    torch.testing.assert_close(actual.w, expected.w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["new-method", "new-method+ala"])
class TestContract(Contract):
    """Shapes, determinism, loop = batched, partial participation, checkpoints, tiny clients: see pflbench.contract.suite."""
