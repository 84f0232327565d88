"""Random federations: sizes of clients, their classes, models, protocol, hyperparameters, executors."""

from __future__ import annotations

import itertools
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from support.made import SHAPES, Case, samples

from pflbench import methods
from pflbench.errors import UserError
from pflbench.partition import Partition
from pflbench.run import plan
from pflbench.run.execution import Execution
from pflbench.spec import DataSpec, Dirichlet, RunSpec, TrainSpec

LARGEST = 5  # of whole numbers, such as epochs: more of them only take longer
TRIED = (0, 1, 2, 3, 0.1, 0.25, 0.5, 0.9, 2.5, 100)  # for hyperparameters, where they are in range
RATES = (0.003, 0.01, 0.05)


@cache
def values(name: str) -> dict[str, tuple[Any, ...]]:
    """What is drawn for each hyperparameter of a method: its default as often as all others together."""
    found = {}
    for hyper in methods.hyperparameters(name):
        kinds = hyper.type.split(" | ")
        words = ("true", "false") if "bool" in kinds else [kind for kind in kinds if kind not in ("int", "float", "str")]
        every = [hyper.default, *dict.fromkeys((*hyper.search, *words, *TRIED))]
        taken = [value for value in every if _takes(name, hyper.name, value)]
        small = [value for value in taken if hyper.type != "int" or value <= LARGEST]
        found[hyper.name] = (*small[:1] * len(small), *small)
    return found


def _takes(name: str, hyper: str, value: Any) -> bool:
    with suppress(UserError):
        methods.spec(name, {hyper: value})
        return True
    return False


@st.composite
def cases(draw: st.DrawFn, name: str) -> Case:
    """A federation of one to eight clients, and how a method is to run on it."""
    assume(draw(st.integers(0, 9)) > 0)  # Hypothesis would begin with the least of everything
    model = draw(st.sampled_from(sorted(SHAPES)))
    classes, clients = draw(st.integers(2, 5)), draw(st.integers(1, 8))
    sizes = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=clients, max_size=clients))
    assume(any(train for train, _ in sizes) and any(test for _, test in sizes))
    central = draw(st.integers(0, 3)) == 3
    held = [draw(st.sets(st.integers(0, classes - 1), min_size=1)) for _ in sizes]
    y = [sorted(own)[k % len(own)] for own, size in zip(held, sizes, strict=True) for k in range(sum(size))]
    labels = np.array([*y, *range(classes)])  # the last ones are nobody's: all classes are in the data
    ends = np.cumsum([0, *(size for both in sizes for size in both)])
    parts = [np.arange(start, end) for start, end in itertools.pairwise(ends)]
    joining = draw(st.integers(1, clients)) if draw(st.booleans()) else clients
    optimizer = draw(st.sampled_from(("sgd", "sgd", "sgd", "momentum", "adamw")))
    schedule = draw(st.sampled_from(("constant", "constant", "cosine", "step")))
    try:
        train = TrainSpec(
            rounds=draw(st.integers(1, 3)),
            local_epochs=draw(st.integers(1, 2)),
            batch_size=draw(st.sampled_from((1, 2, 3, 5, 10, 40))),
            lr=draw(st.sampled_from(RATES)) / (5 if optimizer != "sgd" else 1),
            join_ratio=min(1.0, (joining + 0.5) / clients) if joining < clients else 1.0,
            eval_every=draw(st.sampled_from((1, 1, 2))),
            evaluate=draw(st.sampled_from(("participants", "all"))),
            drop_last=draw(st.sampled_from(("auto", "always", "never"))),
            bn_buffers=draw(st.sampled_from(("local", "average", "reset"))),
            dtype=draw(st.sampled_from(("float32", "float64"))),
            optimizer=optimizer,
            optimizer_state="fresh" if optimizer == "sgd" else draw(st.sampled_from(("fresh", "kept"))),
            lr_schedule=schedule,
            lr_step_every=1 if schedule == "step" else None,
        )
        chosen = {hyper: draw(st.sampled_from(of)) for hyper, of in values(name).items()}
        spec = RunSpec(
            data=DataSpec(name="npz", path="made-up.npz", content="0" * 64),
            partition=Dirichlet(clients=clients, beta=1, central_test=central),
            model=model,
            train=train,
            method=methods.spec(name, chosen),
            seed=draw(st.integers(0, 3)),
        )
        plan.warnings([spec])
    except UserError:
        assume(False)
    if draw(st.integers(0, 2)) < 2:
        how = Execution("cpu", "loop", workers=draw(st.integers(1, 3)), save_artifacts_every=1)
    else:
        how = Execution("cpu", "batched", chunk=draw(st.sampled_from((None, None, 1, 3))), save_artifacts_every=1)
    data = samples(model, labels, len(y) if central else None)
    return Case(spec, data, Partition(tuple(parts[::2]), tuple(parts[1::2])), how)
