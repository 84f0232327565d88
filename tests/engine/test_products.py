"""Large linear layers of all clients: the step from the gradient's factors is the step from the gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pflbench import methods
from pflbench.contract.small import federation, tensors, train
from pflbench.engine.batched import products
from pflbench.engine.batched.products import Products
from pflbench.engine.samples import Samples


@pytest.fixture
def large(monkeypatch):
    """The layer "fc" of the small CNN is large, "output" is not."""
    monkeypatch.setattr(products, "LARGE", 4000)


def steps(monkeypatch, columns=None, engine="batched"):
    """FedAvg's models after a round; columns: of the layers trained."""
    fed = federation("cnn", engine, n=(12, 7, 9), lr=0.1)
    S = fed.nobody_left_out()
    where = slice(None) if columns is None else fed.flat.columns(columns)
    taken, whole = [], products.descend
    monkeypatch.setattr("pflbench.engine.batched.executor.descend", lambda *a: taken.append(len(a[1].pairs)) or whole(*a))
    return fed.at(1).sgd(fed.everyone(fed.initial()), S, columns=where), taken


@pytest.mark.parametrize("columns", [None, ["fc"], ["conv_2", "fc"], ["fc", "output"], ["output"]])
def test_the_step_is_the_same(columns, large, monkeypatch):
    expected, _ = steps(monkeypatch, columns, "loop")
    found, taken = steps(monkeypatch, columns)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert taken == ([] if columns == ["output"] else [1] * len(taken))
    assert bool(taken) == (columns != ["output"])


@pytest.mark.parametrize("name", ["fedprox", "ditto", "fedala", "pfedme"])
def test_methods_train_the_same(name, large):
    method = methods.make(methods.spec(name, {"max_init_epochs": "2"} if name == "fedala" else {}))
    a, b = (train(method, federation("cnn", engine, n=(9, 7)), 2) for engine in ("loop", "batched"))
    for field, value in tensors(a).items():
        torch.testing.assert_close(tensors(b)[field], value, rtol=0, atol=1e-10)


def test_which_weights_are_taken(large):
    module = nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 90, bias=False), nn.Linear(90, 3))
    inputs = Samples(np.zeros((2, 100)), np.zeros(2), torch.float32, torch.device("cpu"))
    taken = Products(module, inputs)
    names = {name for name, _ in module.named_parameters()}
    assert taken.among(names) == {"0.weight"}
    assert taken.among(names - {"0.bias"}) == set(), "nothing would lead to the layer"
    assert taken.among({"2.weight", "2.bias"}) == set()
