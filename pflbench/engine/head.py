"""Training of the head alone: nothing below it changes, so the layers there run once for every sample, not in every epoch."""

from __future__ import annotations

from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.flat import Flat
from pflbench.engine.requests import Executor, Head, Sgd, Trained

FEATURES_AT_ONCE = 128  # of each client


def possible(flat: Flat, columns: slice, plan: Plan) -> bool:
    """Not with BatchNorm: there a sample's features depend on its batch, and the running statistics move in every epoch."""
    return columns == flat.head and flat.has_features and not flat.has_batch_norm and bool(plan.steps().any())


def sgd(executor: Executor, flat: Flat, rows: Tensor, buffers: Tensor, plan: Plan, lr: float) -> Trained:
    """What `Sgd` gives for the columns of the head."""
    samples, positions = plan.once(FEATURES_AT_ONCE)
    alone = executor.do(Head(samples, rows, buffers)).executor
    try:
        done = alone.do(Sgd(positions, rows[:, flat.head], buffers[:, :0], lr))
    finally:
        alone.close()
    trained = rows.clone()
    trained[:, flat.head] = done.rows
    return Trained(trained, buffers, done.loss)
