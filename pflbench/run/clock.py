"""The simulated devices and networks of a run's clients (methods.md 2.14)."""

from __future__ import annotations

import numpy as np

from pflbench.engine import rng
from pflbench.engine.batches import batch_sizes
from pflbench.engine.behaviour import ClientClock
from pflbench.engine.flat import Flat
from pflbench.engine.requests import ALL
from pflbench.errors import UserError
from pflbench.models import build
from pflbench.run.flops import Costs
from pflbench.run.prepared import Prepared


def clock(run: Prepared) -> ClientClock | None:
    """None if the protocol has none. Raises UserError if FLOPs of the user's own model cannot be counted."""
    train, clients = run.spec.train, len(run.data.partition.train)
    if not train.has_clock:
        return None
    compute = np.zeros(clients)
    if train.flops_per_second is not None:
        speeds = rng.speeds(getattr(run.spec.partition, "seed", 0), clients, train.slowest)
        compute = _flops(run) / (train.flops_per_second * speeds)
    return ClientClock(compute, train.bandwidth or float("inf"), train.latency)


def _flops(run: Prepared) -> np.ndarray:
    """Of each client's plain SGD with the user's model in one round, [N]: whatever the method does beside it."""
    spec, arrays = run.spec, run.data.arrays
    flat = Flat(build(spec.model, tuple(arrays.x.shape[1:]), len(arrays.classes), arrays.vocabulary, spec.own_model))
    try:
        of_batch, of_sample = Costs(flat, run.two_samples()).gradient(ALL)
    except Exception as error:  # of a user's own model on tensors without data
        raise UserError(
            f"The FLOPs of model '{spec.model}' cannot be counted: {error}.", "Leave out --flops-per-second and --slowest."
        ) from error
    least = 2 if flat.has_batch_norm else 1
    sizes = [batch_sizes(len(own), spec.train.batch_size, spec.train.drop_last, least) for own in run.data.partition.train]
    return spec.train.local_epochs * np.array([len(of) * of_batch + of.sum() * of_sample for of in sizes])
