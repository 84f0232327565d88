"""The partition `natural`: a client for each owner of samples (methods.md 3.6)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell

from pflbench.errors import UserError
from pflbench.partition import make
from pflbench.spec import Natural

OWNERS = np.array(["c", "a", "b", "a", "c", "c", "d", "b", "c", "b", "a", "c"])
LABELS = np.arange(12) % 3


def test_each_client_has_the_samples_of_one_owner() -> None:
    partition = make(Natural(clients=3), LABELS, 3, OWNERS)
    for name, train, test in zip("abc", partition.train, partition.test, strict=True):
        assert sorted([*train, *test]) == np.flatnonzero(name == OWNERS).tolist()
        assert len(test)


def test_owners_with_few_samples_are_left_out() -> None:
    ((train, test),) = [(p.train, p.test) for p in [make(Natural(clients=1, min_samples=5), LABELS, 3, OWNERS)]]
    assert sorted([*train[0], *test[0]]) == np.flatnonzero(OWNERS == "c").tolist()
    with pytest.raises(UserError, match="2 clients, but only 1 of 4 owners have enough samples"):
        make(Natural(clients=2, min_samples=5), LABELS, 3, OWNERS)


def test_some_of_the_owners_are_chosen_by_the_seed() -> None:
    owner, labels = np.repeat(np.arange(40), 5), np.zeros(200, dtype=int)
    first, again, other = (make(Natural(clients=10, seed=seed), labels, 1, owner) for seed in (1, 1, 2))
    held = [{int(owner[i]) for part in (p.train, p.test) for one in part for i in one} for p in (first, again, other)]
    assert len(held[0]) == 10
    assert held[0] == held[1] != held[2]


def test_a_run_on_ones_own_data(shell: Shell, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=90)
    x = rng.normal(size=(90, 4)).astype(np.float32) + y[:, None]
    np.savez(tmp_path / "own.npz", x=x, y=y, owner=np.arange(90) // 15)
    done = shell("run", "-m", "fedavg", "-m", "local", "-d", f"npz:{tmp_path}/own.npz", "-p", "natural", "--rounds", "2")
    assert (done.code, "Natural" in done.out) == (0, True), done.err
    shown = shell("partition", "show", "--run", "1")
    assert "6 clients" in shown.err
    assert shown.out.splitlines()[1].split()[-1] == "15"
    with (tmp_path / "own.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("owner", "label", "text"), *((f"writer {i % 4}", i % 2, f"word{i % 2} again {i}") for i in range(40))])
    shown = shell("partition", "show", "-d", f"csv:{tmp_path}/own.csv", "-p", "natural")
    assert (shown.code, "4 clients" in shown.err) == (0, True), shown.err


def test_a_csv_with_lines_without_an_owner_matters_to_natural_alone(shell: Shell, tmp_path: Path) -> None:
    lines = [f"{i % 2},word {i}" + (",me" if i else "") for i in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(["label,text,owner", *lines]))
    dataset = f"csv:{tmp_path}/own.csv"
    assert shell("partition", "show", "-d", dataset, "-p", "iid", "--clients", "2").code == 0
    for more in ((), ("--clients", "2")):
        done = shell("partition", "show", "-d", dataset, "-p", "natural", *more)
        assert (done.code, "not say who owns a sample" in done.err) == (2, True), done.err
