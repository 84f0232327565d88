"""E1: tests the models that clients would use now, each on its own test data (methods.md 0.2, 2.1).

A global model may also be tested on the central test set, the dataset's official test part, as Elastic Aggregation's poster and
most papers on traditional FL do (methods.md 1.16).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import Federation
from pflbench.errors import Diverged, UserError
from pflbench.methods.base import Method

HEADLINE = ""  # among the series
CENTRAL = "central"


def evaluate(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> dict[str, Scores]:
    """Scores of the models of `method.deployed`, under HEADLINE, and of each of the method's series.

    before, received: the state before and after `method.receive(fed, before, S)`. Neither they nor `fed` are changed.
    """
    found: dict[str, list[Scores]] = defaultdict(list)
    for where, state, clients in _tested(method, fed, before, received, S):
        for name, (models, which) in {HEADLINE: (method.deployed(state), method.tested_model), **method.series(state)}.items():
            found[name].append(where.evaluate(models, clients, which))
    return {name: Scores.joined(scores) for name, scores in found.items()}


def _tested(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> Iterator[tuple[Federation, Any, Tensor]]:
    """Yields federation, state and the clients to test with it. Clients outside the cohort receive in a scratch copy.

    So all clients are tested at the same moment, and the test changes nothing. A client without training data never receives.
    """
    if fed.protocol.evaluate == "participants":
        yield fed, received, S
        return
    everyone = torch.arange(fed.size, device=fed.device)
    candidates = fed.all_trainable()
    others = candidates[~torch.isin(candidates, S)]
    yield fed, received, everyone[~torch.isin(everyone, others)]
    if len(others):
        aside = fed.scratch_copy()
        # If reception depends on the cohort, all clients receive; the cohort's own results are not used.
        yield aside, method.receive(aside, before, candidates if method.depends_on_cohort else others), others


def evaluate_central(method: Method, fed: Federation, state: Any, samples: np.ndarray | None) -> dict[str, tuple[float, float]]:
    """The series CENTRAL: accuracy and mean loss on `samples`. Raises Diverged for a loss that is not finite."""
    if samples is None:
        return {}
    found = global_model(method, state)
    assert found is not None, "the method was asked before the run"
    model, which = found
    accuracy, loss = fed.evaluate_central(model, samples, which)
    if not math.isfinite(loss):
        raise Diverged(
            f"the global model has a non-finite loss on the central test set before training in round {fed.t}",
            "A smaller --lr usually helps.",
        )
    return {CENTRAL: (accuracy, loss)}


def global_model(method: Method, state: Any) -> tuple[Tensor, str] | None:
    """The model [P] that all clients use, else that of the series "global", with the name of its buffers; None without one."""
    models, which = method.deployed(state), method.tested_model
    if models.dim() != 1:
        models, which = method.series(state).get("global", (models, which))
    return (models, which) if models.dim() == 1 else None


def require_global_model(name: str, method: Method, fed: Federation) -> None:
    """Raises UserError for a method without a global model."""
    if global_model(method, method.init(fed)) is None:
        raise UserError(
            f"{name} has no single global model that --central-test could test.",
            f"Leave out --central-test, or -m {name}.",
        )
