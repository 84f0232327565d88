"""`table evidence`: claims with their printed values, verdicts by hand, and the order of all methods."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine
from support.report_database import add_partition, add_run, spec
from support.store_samples import write_round

from pflbench.errors import NothingYet
from pflbench.methods import METHODS
from pflbench.report.claims import claims, rankings
from pflbench.report.needed import TABLES
from pflbench.report.tables.evidence import ClaimResult, EvidenceTable, build
from pflbench.report.tables.grid import FORMATS, render
from pflbench.store import write
from pflbench.store.write import RoundRecord

SAMPLES = 400


def add(engine: Engine, method: str, *correct: int, rounds: int = 2000, test_labels: bool = False, **own: Any) -> None:
    """A run for each seed, with so many correct of SAMPLES, which two clients share."""
    for seed, number in enumerate(correct):
        made = spec(method, seed, rounds=rounds, hyperparameters=own or None)
        of_method = made.method.model_copy(update={"test_labels": test_labels})
        run = write.create_run(engine, made.model_copy(update={"method": of_method}), {})
        write.update_run(engine, run, status="finished")
        half = {"clients": np.arange(2), "correct": np.array([number, 0]), "loss": np.ones(2)}
        write_round(engine, run, RoundRecord(round=1, accuracy=number / SAMPLES, total=np.array([SAMPLES, 0]), **half))


def of(table: EvidenceTable, text: str) -> ClaimResult:
    return next(one for (i, _), one in table.findings.items() if table.claims[i].text == text)


def test_printed_values() -> None:
    """FedALA's tables 2 and 7 on Cifar10, Dir(0.1): 90.67 and 59.16; Table 4, Tiny-ImageNet: Ditto 32.15, with ALA 40.75."""
    by_text = {(claim.source, claim.text): claim.printed for claim in claims()}
    assert any(math.isclose(gap, 90.67 - 59.16) for gap in by_text["FedALA paper", "FedALA > FedAvg"])
    assert any(math.isclose(gap, 40.75 - 32.15) for gap in by_text["FedALA paper", "Ditto+ALA > Ditto"])
    assert all(gap == round(gap, 2) for gaps in by_text.values() for gap in gaps), "as the papers print"
    assert len(by_text) == len(claims())
    assert all(
        gap > 0 for claim in claims() if claim.better == "fedala" and claim.source == "FedALA paper" for gap in claim.printed
    )


def test_ranks_are_those_of_the_papers() -> None:
    """FedALA is first in every setting of its paper, and FedAvg and FedProx are last on average."""
    paper, leaderboard = rankings().values()
    assert paper["fedala"] == 1
    assert set(sorted(paper, key=paper.__getitem__)[-2:]) == {"fedavg", "fedprox"}
    assert sum(paper.values()) == pytest.approx(14 * 15 / 2)
    assert len(leaderboard) == 18


def test_what_is_not_the_method_of_the_claim_is_said(engine: Engine) -> None:
    """FedALA without ALA, and Per-FedAvg that adapts on the labels of the test."""
    add(engine, "fedavg", 300)
    add(engine, "fedala", 360, adapt=False)
    add(engine, "per-fedavg", 380, test_labels=True, adapt_on="test2022")
    table = build(engine)
    assert of(table, "FedALA > FedAvg").variants == ["FedALA (adapt=False)"]
    (note,) = [note for note in table.notes if note.startswith("Not the paper's hyperparameters")]
    assert "FedALA (adapt=False), MNIST, Dir(0.1)" in note
    (verdicts,) = [column for column in table.grid().columns if column.head[-1] == "verdict"]
    by_claim = dict(zip(table.grid().labels, [cell.text for cell in verdicts.entries], strict=True))
    assert by_claim["Per-FedAvg > FedAvg"] == "confirmed ‡"
    assert by_claim["FedALA > FedAvg"] == "confirmed"


def test_a_gap_counts_beyond_the_sampling_of_the_test_data(engine: Engine) -> None:
    """360 and 300 of 400: half an interval of 1.96 sqrt(0.9 * 0.1 / 400 + 0.75 * 0.25 / 400) = 5.16 points."""
    add(engine, "fedala", 360)
    add(engine, "fedavg", 300)
    add(engine, "ditto", 345)
    add(engine, "fedrep", 385)
    table = build(engine)
    found = of(table, "FedALA > FedAvg")
    assert (found.gap, found.verdict) == (pytest.approx(15), "confirmed")
    assert found.resolution == pytest.approx(196 * math.sqrt((0.9 * 0.1 + 0.75 * 0.25) / 400))
    assert of(table, "FedALA > Ditto").verdict == "not resolvable"
    assert of(table, "FedALA > FedRep").verdict == "not confirmed"


def test_samples_that_are_read_several_times_count_once(engine: Engine) -> None:
    """Nine readings of 400 samples: 3,600 in the rows of the clients."""
    partition = add_partition(engine, counts=[[600, 0], [0, 600]])  # a third of them are test samples
    for method, correct in (("fedala", 3240), ("fedavg", 2700)):
        tested = {"clients": np.arange(2), "correct": np.full(2, correct // 2), "total": np.full(2, 1800), "loss": np.ones(2)}
        add_run(engine, spec(method, eval_repeats=9), [correct / 3600], partition=partition, **tested)
    resolution = of(build(engine), "FedALA > FedAvg").resolution
    assert resolution == pytest.approx(196 * math.sqrt((0.9 * 0.1 + 0.75 * 0.25) / 400))


def test_samples_are_those_of_the_clients_that_were_tested(engine: Engine) -> None:
    """Two of four clients, each with 100 test samples, of which the rows have five readings."""
    partition = add_partition(engine, counts=[[300, 0], [0, 300], [300, 0], [0, 300]])
    for method, correct in (("fedala", 900), ("fedavg", 750)):
        tested = {"clients": np.arange(2), "correct": np.full(2, correct // 2), "total": np.full(2, 500), "loss": np.ones(2)}
        add_run(engine, spec(method, eval_repeats=5, join_ratio=0.5), [correct / 1000], partition=partition, **tested)
    assert {record["samples"] for record in build(engine).grid().records} == {200}


def test_the_spread_of_seeds_widens_the_interval(engine: Engine) -> None:
    """Seeds at 0.80 and 0.90: their variance is 0.005, that of their mean half of it."""
    add(engine, "fedala", 320, 360)
    add(engine, "fedavg", 300)
    found = of(build(engine), "FedALA > FedAvg")
    assert found.resolution == pytest.approx(196 * math.sqrt((0.85 * 0.15 + 0.75 * 0.25) / 400 + 0.0025))
    assert found.verdict == "not resolvable"


def test_a_tie_of_methods_without_an_error_is_not_resolvable(engine: Engine) -> None:
    """Both have all samples right: gap and resolution are 0."""
    add(engine, "fedala", SAMPLES)
    add(engine, "fedavg", SAMPLES)
    found = of(build(engine), "FedALA > FedAvg")
    assert (found.gap, found.resolution, found.verdict) == (0, 0, "not resolvable")


def test_the_order_of_all_methods(engine: Engine) -> None:
    """In the order of the paper's mean ranks Spearman's correlation is 1, backwards -1."""
    rank = rankings()["FedALA paper"]
    for place, method in enumerate(sorted(rank, key=rank.__getitem__)):
        add(engine, method, 380 - 5 * place)
    agreement = build(engine).agreements[0]
    assert (agreement.source, agreement.methods) == ("FedALA paper", 14)
    assert agreement.rho == pytest.approx(1, abs=0.01), "but for shared mean ranks"
    assert agreement.p < 1e-6


def test_every_form_has_the_verdict(engine: Engine) -> None:
    add(engine, "fedala", 360)
    add(engine, "fedavg", 300)
    add(engine, "elastic", 290)
    for form in FORMATS:
        assert "confirmed" in render(build(engine).grid(), form), form
    assert "of 2 claims 1 confirmed, 1 not resolvable" in render(build(engine).grid())
    assert render(build(engine).grid(), "markdown").startswith("| Claim | source |")
    assert "\nClaim & source & " in render(build(engine).grid(), "latex")


def test_a_setting_without_a_pair_has_a_note_and_no_column(engine: Engine) -> None:
    add(engine, "fedala", 360)
    add(engine, "fedavg", 300)
    add(engine, "fedala", 360, rounds=60)
    table = build(engine)
    assert [note for note in table.notes if "60 rounds: no claim has runs of both its methods." in note]
    assert "60 rounds" not in str([column.head for column in table.grid().columns])
    assert "2000 rounds" in str([column.head for column in table.grid().columns])


def test_nothing_to_compare(engine: Engine) -> None:
    add(engine, "local", 300)
    add(engine, "scaffold", 300)
    with pytest.raises(NothingYet, match="No two of these methods"):
        build(engine)


def test_reproduce_trains_what_the_claims_need() -> None:
    needed = {cell.line.method for cell in TABLES["evidence"].needed}
    assert {name for claim in claims() for name in (claim.better, claim.worse)} | METHODS.keys() == needed
    assert {cell.options["val_share"] for cell in TABLES["evidence"].needed} == {0.1}
