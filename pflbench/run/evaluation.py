"""E1, the moment of evaluation: what clients would use now, each on its own test data (methods.md 0.2, 2.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import Federation
from pflbench.methods.base import Method

HEADLINE = ""


def evaluate(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> dict[str, Scores]:
    """Scores of what `method.deployed` says, under HEADLINE, and of each of the method's series.

    before, received: the state before and after `method.receive(fed, before, S)`. Neither they nor `fed` are changed.
    """
    found: dict[str, list[Scores]] = defaultdict(list)
    for where, state, clients in _tested(method, fed, before, received, S):
        for name, (models, slot) in {HEADLINE: (method.deployed(state), method.slot), **method.series(state)}.items():
            found[name].append(where.evaluate(models, clients, slot))
    return {name: Scores.joined(scores) for name, scores in found.items()}


def _tested(method: Method, fed: Federation, before: Any, received: Any, S: Tensor) -> Iterator[tuple[Federation, Any, Tensor]]:
    """Who is tested with which state. Where everyone is, those outside the cohort are initialised as well: in a copy.

    So E1 is one moment for all, and being tested leaves no trace. A client without training data is never initialised.
    """
    if fed.train.evaluate == "participants":
        yield fed, received, S
        return
    everyone = torch.arange(fed.size, device=fed.device)
    candidates = fed.nobody_left_out()
    others = candidates[~torch.isin(candidates, S)]
    yield fed, received, everyone[~torch.isin(everyone, others)]
    if len(others):
        aside = fed.aside()
        # Where clients meet, they meet all that are tested; the cohort's own part of that is left unread.
        yield aside, method.receive(aside, before, candidates if method.meets else others), others
