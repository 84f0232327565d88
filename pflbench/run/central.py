"""The central test set, the dataset's official test part: a method's one global model is tested on it beside E1.

That is how Elastic Aggregation's poster and most papers on traditional FL measure (methods.md 1.16).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from pflbench.engine.federation import Federation
from pflbench.errors import Diverged, UserError
from pflbench.methods.base import Method

SERIES = "central"


def global_model(method: Method, state: Any) -> tuple[Tensor, str] | None:
    """The one model [P] that a state has for everybody, and its slot: what all clients use, else the series "global"."""
    models, slot = method.deployed(state), method.slot
    if models.dim() != 1:
        models, slot = method.series(state).get("global", (models, slot))
    return (models, slot) if models.dim() == 1 else None


def require_global_model(name: str, method: Method, fed: Federation) -> None:
    """Raises UserError for a method that has none."""
    if global_model(method, method.init(fed)) is None:
        raise UserError(
            f"{name} has no single global model that --central-test could test.",
            f"Leave out --central-test, or -m {name}.",
        )


def evaluate(method: Method, fed: Federation, state: Any, samples: np.ndarray | None) -> dict[str, tuple[float, float]]:
    """The series: accuracy and mean loss on `samples`, if there are any. Raises Diverged for a loss that is not finite."""
    if samples is None:
        return {}
    found = global_model(method, state)
    assert found is not None, "the method was asked before the run"
    model, slot = found
    accuracy, loss = fed.evaluate_central(model, samples, slot)
    if not math.isfinite(loss):
        raise Diverged(
            f"the global model has a non-finite loss on the central test set before training in round {fed.t}",
            "A smaller --lr usually helps.",
        )
    return {SERIES: (accuracy, loss)}
