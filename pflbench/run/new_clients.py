"""Clients that never join: what they get from the trained federation, adapted to their own data and tested (methods.md 2.13)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import Federation
from pflbench.errors import Diverged
from pflbench.methods.base import Method


def tested(method: Method, fed: Federation, state: Any, new: Federation) -> list[Scores] | None:
    """The results of the clients of `new` after 0, 1, ..., E epochs of adaptation, E as the protocol's `new_epochs`.

    None if the method's authors do not define what a new client gets. fed, state: of the training clients; neither is changed.
    Raises Diverged for a model that is not finite.
    """
    new = new.at(fed.t, receiving=True)
    new.buffers = {}
    welcome = method.welcome(fed, state, new)
    if welcome is None:
        return None
    if welcome.statistics is not None:
        training = torch.arange(fed.size, device=fed.device)
        new.buffers_of("model")[:] = fed.mean(fed.buffers_of(welcome.statistics), training)
    epochs, S, everyone = fed.protocol.new_epochs, new.all_trainable(), torch.arange(new.size, device=fed.device)
    models, moments = welcome.models.clone(), dict[str, Tensor]()
    found = [new.evaluate(models, everyone)]
    for epoch in new.batches(S, epochs).epochs(epochs):
        if len(S):
            try:
                done = new.fit(models[S], S, plan=epoch, moments=moments, **welcome.how)
            except Diverged as error:
                raise Diverged(f"of the new clients, counted from 0, {error.message}") from None
            models[S], moments = done.models, done.moments
        found.append(new.evaluate(models, everyone))
    return found
