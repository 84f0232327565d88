"""A checkpoint is what was saved, or it is none."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pflbench.run.checkpoint import Checkpoints, Snapshot, tensors
from pflbench.run.places import Folder

CPU = torch.device("cpu")


@dataclass(frozen=True)
class State:
    w: Tensor
    seen: Tensor
    step: Tensor


def snapshot(t: int = 3) -> Snapshot:
    state = State(torch.linspace(-1, 1, 35, dtype=torch.float64).view(7, 5) * t, torch.tensor([True, False]), torch.tensor(t))
    return Snapshot(
        t, state, {"model": torch.arange(6.0).view(3, 2), "none": torch.zeros(3, 0)}, {"best": 0.25, "traffic": [[1, 2]]}
    )


def saved(folder: Path) -> tuple[Checkpoints, Path]:
    checkpoints = Checkpoints(Folder(folder), "1", owner="me")
    checkpoints.save(snapshot())
    return checkpoints, folder / "1.pt"


def plain(found: Snapshot) -> tuple[Any, ...]:
    parts = [{k: v.tolist() for k, v in part.items()} for part in (tensors(found.state), found.buffers)]
    return found.t, found.carried, parts


def test_no_flipped_bit_is_taken_for_what_was_saved(tmp_path: Path) -> None:
    """200 of them, one at a time. Where the file does not say anything, a bit may flip."""
    _, path = saved(tmp_path)
    sound, draw, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(200):
        at, bit = draw.randrange(len(sound)), draw.randrange(8)
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
        checkpoints = Checkpoints(Folder(tmp_path), "1", owner="me")
        found = checkpoints.load(snapshot(0).state, CPU)
        refused += found is None
        assert found is None or plain(found) == plain(snapshot())
    assert refused > 50


def test_of_another_method_or_model_it_is_none(tmp_path: Path) -> None:
    checkpoints, _ = saved(tmp_path)
    state = snapshot(0).state
    assert checkpoints.load(replace(state, w=state.w.float()), CPU) is None
    assert checkpoints.wrong == "has other shapes than the run's method and model"
