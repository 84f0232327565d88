"""The step of an embedding: the rows of the batch's tokens are changed where they lie, and the table is not copied."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pflbench import models
from pflbench.engine.batched.batched_executor import BatchedExecutor
from pflbench.engine.batched.gradients import Lookup
from pflbench.engine.batched.program import Capture
from pflbench.engine.batches import Plan
from pflbench.engine.flat import Flat
from pflbench.engine.requests import Sgd
from pflbench.engine.samples import Samples

WORDS, POSITIONS, CLIENTS, BATCH = 3000, 6, 4, 5


def fasttext(classes, words=WORDS):
    return models.build("fasttext", (POSITIONS,), classes, words)


class Watched(TorchDispatchMode):
    """Sums into tensors that lie apart, which a GPU would copy, and the most numbers that an operation has written anew."""

    def __init__(self):
        super().__init__()
        self.sums, self.apart, self.largest = 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "index_put" in func.overloadpacket.__name__:
            assert args[3], "only sums are expected"
            self.sums += 1
            self.apart += not args[0].is_contiguous()
        there = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        new = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in there]
        self.largest = max([self.largest, *(t.numel() for t in new)])
        return result


class Watching(Capture):
    """As a capture: it sees one step of all clients by itself."""

    name = "watching"

    def __init__(self):
        self.seen = Watched()

    def __call__(self, step):
        with self.seen:
            step()
        return step


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_no_step_copies_the_table(classes):
    flat, watching = Flat(fasttext(classes)), Watching()
    rng = np.random.default_rng(0)
    x, y = rng.integers(WORDS, size=(40, POSITIONS)), rng.integers(classes, size=40)
    executor = BatchedExecutor(flat, Samples(x, y, torch.float32, torch.device("cpu")), capture=watching)
    plan = Plan.through(np.split(np.arange(40), CLIENTS), BATCH)
    rows = flat.row().expand(CLIENTS, -1).clone()
    trained = executor.do(Sgd(plan, rows, rows[:, :0], 0.1))
    assert (trained.models != rows).any()
    assert watching.seen.sums > 0
    assert watching.seen.apart == 0
    assert watching.seen.largest < WORDS * 32, "nothing as large as one client's table"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [3, 4, 10])  # a model and a vector have pieces of 1, 4 and 2 numbers in common
def test_the_numbers_of_a_table_by_itself(classes, dtype):
    """Token by token, client by client, to the last bit; of a client that has finished not even what is no number counts."""
    module = fasttext(classes, words=12)
    flat, lookup = Flat(module), Lookup(module, "embedding")
    drawn = torch.Generator().manual_seed(1)
    rows = torch.randn(CLIENTS + 1, flat.size, generator=drawn, dtype=dtype)
    tokens = torch.randint(12, (CLIENTS, BATCH, POSITIONS), generator=drawn)
    gradient = torch.randn(CLIENTS, BATCH, POSITIONS, 32, generator=drawn, dtype=dtype)
    gradient[2] = torch.nan
    finished = torch.tensor([False, False, True, False])
    expected = rows.clone()
    for client in (0, 1, 3):
        table = flat.views(expected)["embedding.weight"][client]
        for token, change in zip(tokens[client].flatten(), (gradient[client] * -0.1).flatten(0, 1), strict=True):
            if token != module.embedding.padding_idx:
                table[token] += change
    lookup.descend(flat.views(rows[:CLIENTS])["embedding.weight"], tokens, gradient, 0.1, finished)
    assert torch.equal(rows, expected)
    assert (tokens == module.embedding.padding_idx).any()
