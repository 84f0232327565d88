"""What a method asks for in each round is one kind of step, which a GPU captures once."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from pflbench import methods
from pflbench.contract.small import federation, train
from pflbench.engine.loop_executor import LoopExecutor
from pflbench.engine.requests import Request, Scan, Sgd, Shared


@pytest.mark.parametrize("name", methods.names(with_ala=True))
def test_what_changes_from_round_to_round_is_a_tensor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is a constant of the step: with another one it would be captured anew, in every round."""
    constants: set[tuple[Any, str, Any]] = set()

    def noted(executor: LoopExecutor, asked: Request[Any]) -> Any:
        if isinstance(asked, Sgd | Scan):
            step = asked.step if isinstance(asked, Scan) else asked.penalty
            numbers = {k: v for k, v in asked.given.items() if not isinstance(v, (Tensor, Shared))}
            constants.update((getattr(step, "func", step), k, v) for k, v in numbers.items())
        return original(executor, asked)

    original = LoopExecutor.do
    monkeypatch.setattr(LoopExecutor, "do", noted)
    train(methods.make(methods.spec(name, {}, None)), federation("mlp", "loop", n=(8, 4)), 5)
    assert len(constants) == len({(step, name) for step, name, _ in constants})
