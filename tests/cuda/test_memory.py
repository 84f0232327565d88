"""Memory that is not enough, by PyTorch's own allocator."""

from __future__ import annotations

import pytest
import torch
from support.cuda.trial import play

from pflbench.engine.batched.program import Graph

GIB = "STAND_IN_GIB"  # the device's memory, which the stand-in asks for at every call


def test_on_a_card_of_11_gb_fewer_clients_are_computed_at_a_time(monkeypatch):
    monkeypatch.setenv(GIB, "11")
    found = play("fedavg", "resnet18", "cuda:1", clients=100)
    assert not found.shortages, "by the estimate"
    assert 5 << 30 < found.reserved < 10.5 * 2**30
    assert not found.uncaptured


def test_where_the_estimate_is_wrong_clients_are_halved_until_they_fit(monkeypatch):
    monkeypatch.setenv(GIB, "1.5")
    found = play("fedavg", "cnn, 3 channels", "cuda:1", clients=100, estimate=100)
    assert 2 <= found.shortages <= 4, "some twenty of 100 fit, in work of several kinds"
    assert found.programs
    assert not found.uncaptured


@pytest.mark.parametrize("first", [1, 2])
def test_memory_that_runs_out_in_a_capture(first, monkeypatch):
    """first: from which capture on there is none, until one has failed. Then half of the clients are captured at a time."""
    captures, failures, capture = [], [], Graph.__call__

    def scarce(self, step):
        captures.append(step)
        with pytest.MonkeyPatch.context() as patch:
            if len(captures) >= first and not failures:
                patch.setenv(GIB, "0")
            try:
                return capture(self, step)
            except torch.OutOfMemoryError as error:
                failures.append(error)
                raise

    monkeypatch.setattr(Graph, "__call__", scarce)
    found = play("ditto", "mlp", "cuda:1")
    assert len(failures) == found.shortages == 1
    assert found.programs
    assert found.replays
    assert not found.uncaptured
