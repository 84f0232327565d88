"""benchmarks/bench.py: measured rounds beside their floor, and what two measurements say of each other."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import bench
import numpy as np
import pytest
from counting import Work

from pflbench.errors import UserError


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {"TRIES": 1, "SECONDS": 0.0, "LARGEST": 1024, "COPIED": 1 << 20}.items():
        monkeypatch.setattr(bench.floor, name, value)
    return bench


def noisy(seed: int, rounds: int = 12, slower: float = 1.0) -> Any:
    return slower * np.random.default_rng(seed).lognormal(sigma=0.1, size=rounds)


def test_the_floor_is_the_longer_of_arithmetic_and_memory(scripts: Any) -> None:
    found = scripts.floor.floors({"a": Work(300.0, 40.0), "b": Work(100.0, 60.0)}, scripts.floor.Ceilings(100.0, 20.0))
    assert [(f.seconds, f.bound) for f in found.values()] == [(3.0, "arithmetic"), (3.0, "memory")]


def test_a_verdict_tells_a_difference_from_noise(scripts: Any) -> None:
    same, slower = noisy(100), noisy(100, slower=2)
    assert scripts.verdict(noisy(0), same).startswith("no difference within noise (")
    assert scripts.verdict(slower, noisy(0)).startswith("faster ")
    assert scripts.verdict(noisy(0), slower).startswith("slower ")
    assert scripts.verdict([1.0] * 9, [9.0] * 4) == "too few rounds to tell"
    # Against a bootstrap in plain NumPy with other random numbers.
    a, b, draw = noisy(1, 15), noisy(2, 9, slower=1.3), np.random.default_rng(5)
    ratios = [np.median(draw.choice(a, 15)) / np.median(draw.choice(b, 9)) for _ in range(4000)]
    assert scripts.interval(a, b) == pytest.approx(np.percentile(ratios, [2.5, 97.5]), rel=0.02)


def test_multiples_worked_out_by_hand(scripts: Any) -> None:
    """Those of FedAvg are of each turn, 3, 2 and 4, not of the medians. Ditto has twice FedAvg's work, and a floor of 1 s."""

    def arm(method: str, update: list[float], least: float) -> dict[str, Any]:
        seconds = {"reception": [0.0] * 3, "evaluation": [0.0] * 3, "update": update}
        return {"method": method, "engine": "loop", "seconds": seconds, "floor": {"update": {"seconds": least, "steps": 5.0}}}

    found = {"arms": [arm("fedavg", [1.0, 2.0, 3.0], 0.5), arm("ditto", [3.0, 4.0, 12.0], 1.0)]}
    told = scripts.summary(found, found["arms"][1])
    assert (told["median"], told["times_fedavg"], told["training"]) == (4, 3, 3)
    assert (told["times_work"], told["times_floor"]) == (1.5, 4)


def test_it_measures_and_compares(scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = dict.fromkeys(("model", "partition", "beta", "lr", "dtype"))
    how = {"dataset": "digits", "data_dir": tmp_path, "set": [], "rounds": 2, "share": 0.1, "device": "cpu", "clients": 3, **none}
    found = scripts.measure(Namespace(method=["ditto"], engine=["loop", "packed"], **how))
    arms = {(arm["method"], arm["engine"]): arm for arm in found["arms"]}
    assert list(arms) == [(m, e) for m in ("fedavg", "ditto") for e in ("loop", "packed")]
    assert all(len(seconds) == 2 and min(seconds) > 0 for arm in found["arms"] for seconds in arm["seconds"].values())
    # Ditto trains a personal model for two epochs beside FedAvg's one; a pack is five seeds.
    flops = {name: arm["floor"]["update"]["flops"] for name, arm in arms.items()}
    assert flops["ditto", "loop"] == 3 * flops["fedavg", "loop"] > 0
    assert flops["fedavg", "packed"] == 5 * flops["fedavg", "loop"]
    scripts.show(found)
    scripts.compare(found, found)
    assert capsys.readouterr().out.count("too few rounds to tell") == 4
    with pytest.raises(UserError, match=r"share 0\.1 and 1\.0"):
        scripts.compare(found, {**found, "work": {**found["work"], "share": 1.0}})
    with pytest.raises(UserError, match="Unknown way of computing 'fast'"):
        scripts.measure(Namespace(method=[], engine=["batched:fast"], **how))
