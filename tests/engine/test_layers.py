"""Layers of all clients at once copy no images; other layers than those are left alone. Their numbers: `test_odd_modules.py`."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pflbench.contract.small import federation
from pflbench.engine.batched import batched_executor as executor
from pflbench.engine.batched.layers import compute_together

CLIENTS, BATCH = 3, 7


class Scaled(nn.Linear):
    """What users make of a layer."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_other_layers_are_left_alone():
    kept = nn.Sequential(
        nn.MaxPool2d(2, return_indices=True),
        nn.BatchNorm2d(2, affine=False),
        nn.BatchNorm2d(2, track_running_stats=False),
        nn.BatchNorm2d(2, momentum=None),
        nn.Linear(2, 2, bias=False),
        Scaled(2, 2),
    )
    own = nn.Linear(2, 2)
    own.forward = lambda x: x
    kept.append(own)
    types = [type(layer) for layer in kept]
    compute_together(kept)
    assert [type(layer) for layer in kept] == types


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen.append((func.overloadpacket.__name__, result))
        return result


@pytest.mark.parametrize(("model", "layers"), [("cnn", 0), ("resnet20", 19)])
def test_a_step_copies_no_images_and_normalises_once(model, layers):
    fed = federation(model, "batched", n=(BATCH,) * CLIENTS, batch_size=BATCH)
    rows, index = fed.everyone(fed.initial()), torch.arange(CLIENTS * BATCH).view(CLIENTS, BATCH)
    with Operations() as made:
        fed.executor.gradients.make()(rows, fed.buffers_of("model"), index)
    names = [name for name, _ in made.seen]
    copied = [tuple(r.shape) for name, r in made.seen if name in ("clone", "copy_") and r.dim() > 3 and BATCH in r.shape]
    assert copied == []
    assert names.count("native_batch_norm") == names.count("native_batch_norm_backward") == layers


# -- large parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [None, ["fc"], ["conv_2", "fc"], ["fc", "output"], ["output"]])
def test_a_step_is_the_same_where_large_gradients_are_not_copied_beside_the_others(columns, monkeypatch):
    """The layer "fc" of the small CNN counts as large, "output" does not; one client ends before the others."""
    monkeypatch.setattr(executor, "LARGE", 4000)
    trained = []
    for engine in ("loop", "batched"):
        fed = federation("cnn", engine, n=(12, 7, 9), lr=0.1)
        where = slice(None) if columns is None else fed.flat.columns(columns)
        trained.append(fed.at(1).sgd(fed.everyone(fed.initial()), fed.all_trainable(), columns=where))
    torch.testing.assert_close(*trained, rtol=0, atol=1e-12)
