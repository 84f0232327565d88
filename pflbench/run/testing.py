"""E1, the moment of evaluation: what clients would use now, each on its own test data (methods.md 0.2, 2.1).

Beside it a method's one global model may be tested on the central test set, the dataset's official test part. That is how Elastic
Aggregation's poster and most papers on traditional FL measure (methods.md 1.16).
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
    """Scores of what `method.deployed` says, under HEADLINE, and of each of the method's series.

    before, received: the state before and after `method.receive(fed, before, S)`. Neither they nor `fed` are changed.
    """
    found: dict[str, list[Scores]] = defaultdict(list)
    for where, state, clients in _tested(method, fed, before, received, S):
        for name, (models, which) in {HEADLINE: (method.deployed(state), method.tested_model), **method.series(state)}.items():
            found[name].append(where.evaluate(models, clients, which))
    return {name: Scores.joined(scores) for name, scores in found.items()}


def _tested(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> Iterator[tuple[Federation, Any, Tensor]]:
    """Who is tested with which state. Where everyone is, those outside the cohort are initialised as well: in a copy.

    So E1 is one moment for all, and being tested leaves no trace. A client without training data is never initialised.
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
        # Where clients meet, they meet all that are tested; the cohort's own part of that is left unread.
        yield aside, method.receive(aside, before, candidates if method.depends_on_cohort else others), others


def evaluate_central(method: Method, fed: Federation, state: Any, samples: np.ndarray | None) -> dict[str, tuple[float, float]]:
    """The series: accuracy and mean loss on `samples`, if there are any. Raises Diverged for a loss that is not finite."""
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
    """The one model [P] that a state has for everybody, and its which: what all clients use, else the series "global"."""
    models, which = method.deployed(state), method.tested_model
    if models.dim() != 1:
        models, which = method.series(state).get("global", (models, which))
    return (models, which) if models.dim() == 1 else None


def require_global_model(name: str, method: Method, fed: Federation) -> None:
    """Raises UserError for a method that has none."""
    if global_model(method, method.init(fed)) is None:
        raise UserError(
            f"{name} has no single global model that --central-test could test.",
            f"Leave out --central-test, or -m {name}.",
        )
