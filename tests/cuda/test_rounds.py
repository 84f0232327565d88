"""Rounds of every method and every model: on one device, captured, within the memory that was estimated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.cuda.stand_in import Counts
from support.cuda.trial import CONVOLUTIONS, DATA, Counted, play

from pflbench import methods
from pflbench.engine.batched.program import MIXED

METHODS = methods.names(with_ala=True)
OF_EVERY_MODEL = ("fedavg", "fedala", "elastic")  # plain SGD, an inner loop, a step of the method's own
CASES = [(method, "mlp") for method in METHODS]
CASES += [(method, model) for model in DATA if model != "mlp" for method in OF_EVERY_MODEL]
# Beside tensors: cuBLAS's workspaces, 32 MiB for each stream and a further one, and what the caching allocator takes in pieces of
# 20 MiB for each of its pools.
WORKSPACES = 256 << 20
# Why a step may be made without a capture: where batches cannot be filled up with samples of no weight, and their sizes differ.
NOT_FILLED_UP = ("per-fedavg", "per-fedavg+ala", "elastic", "fedas")  # batches in parts, an objective of the method's own
BATCH_NORM = ("resnet18", "resnet20")  # in which samples see one another


def assert_sound(found: Counted) -> None:
    assert found.programs
    assert found.replays
    mixed = found.method in NOT_FILLED_UP or found.model in BATCH_NORM
    assert set(found.uncaptured) <= ({MIXED} if mixed else set())
    assert not found.beside_capture
    assert not found.shortages
    # The estimate is of plain SGD on one client. Elastic keeps a second model's worth for each client, and GroupNorm of several
    # clients at once is made of smaller operations: where that is too much, clients are halved.
    beyond = 2 if found.method == "elastic" or found.model == "resnet20-gn" else 1
    assert found.reserved <= beyond * found.estimate + WORKSPACES


@pytest.mark.parametrize(("method", "model"), CASES)
def test_on_a_device_that_is_not_the_default_one(method, model, counted):
    default = torch.device("cuda", 0)
    before = Counts.of(default)
    found = play(method, model, "cuda:1")
    counted(found)
    assert Counts.of(default) == before, "nothing happens on another device"
    assert_sound(found)


def test_the_default_device_counts_the_same():
    there, here = (play("fedala", "mlp", device) for device in ("cuda:1", "cuda"))
    assert replace(here, reserved=there.reserved) == there


@pytest.mark.parametrize("way", [*CONVOLUTIONS, "auto"])
def test_every_way_of_convolution(way):
    assert_sound(play("fedavg", "cnn, 3 channels", "cuda:1", convolution=way))


@pytest.mark.parametrize("model", ["mlp", "cnn, 3 channels", "resnet20", "fasttext"])
def test_every_operation_has_a_deterministic_form(model):
    """PyTorch refuses one that has none."""
    assert_sound(play("fedala", model, "cuda:1", deterministic=True))


@pytest.mark.parametrize("model", ["cnn, 3 channels", "resnet18", "resnet20-gn", "fasttext"])
def test_a_hundred_clients(model, counted):
    found = play("fedavg", model, "cuda:1", clients=100)
    counted(found)
    assert_sound(found)
