"""Statistics on request, against closed forms, SciPy itself and examples worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from sqlalchemy import Engine
from support import report_database
from support.report_database import HYPERPARAMETERS, add_run, spec

from pflbench.errors import UserError
from pflbench.report import paper
from pflbench.report.declared import TABLES
from pflbench.report.selection import Filters
from pflbench.report.statistics import Statistics, compare, deviation, empty_tests, holm, interval, least_p, paired
from pflbench.report.tables import ranks
from pflbench.report.tables.accuracy import AccuracyTable, build
from pflbench.report.tables.cell import Cell
from pflbench.report.tables.grid import render

HYPERPARAMETERS = {**HYPERPARAMETERS, "local": {}, "fedprox": {"mu": 0.001}}


def add(engine: Engine, method: str, values: list[float], first: int = 0, **fields: object) -> None:
    for seed, value in enumerate(values, start=first):
        add_run(engine, spec(method, seed, hyperparameters=HYPERPARAMETERS[method], **fields), [value])  # type: ignore[arg-type]


def cell(table: AccuracyTable, row: str, column: int = 0) -> Cell:
    found = table.columns[column].cells[[r.label for r in table.rows].index(row)]
    assert found is not None
    return found


def test_the_two_standard_deviations_of_the_specification() -> None:
    """methods.md 2.1: population 0.1414213562, sample 0.1581138830."""
    values = [0.5, 0.6, 0.7, 0.8, 0.9]
    assert deviation(values, "population") == pytest.approx(0.1414213562, abs=1e-10)
    assert deviation(values, "sample") == pytest.approx(0.1581138830, abs=1e-10)
    assert deviation([0.5], "population") == 0
    assert deviation([0.5], "sample") is None


def test_bootstrap_is_scipys_and_the_same_every_time() -> None:
    values = [98.1, 98.4, 97.9, 98.9, 98.2]
    low, high = interval(values, 0.95) or (0.0, 0.0)
    direct = scipy.stats.bootstrap((values,), np.mean, n_resamples=9999, rng=np.random.default_rng(0)).confidence_interval
    assert (low, high) == (direct.low, direct.high) == interval(values, 0.95)
    narrower = interval(values, 0.5) or (0.0, 0.0)
    assert low < narrower[0] < np.mean(values) < narrower[1] < high


def test_bootstrap_at_its_edges() -> None:
    assert interval([98.0], 0.95) is None
    assert interval([98.0, 98.0, 98.0], 0.95) == (98.0, 98.0)
    low, high = interval([90.0, 92.0], 0.95) or (0.0, 0.0)
    assert (low, high) == (90, 92)


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_wilcoxon_by_hand() -> None:
    """Differences 1 to 5 of one sign: 2 of 32 sign patterns are as extreme. With -1, T is 1: patterns {}, {1}, and mirrored."""
    base = seeds(0, 0, 0, 0, 0)
    assert paired(seeds(1, 2, 3, 4, 5), base, "wilcoxon") == (0.0625, 5)
    assert paired(seeds(-1, 2, 3, 4, 5), base, "wilcoxon") == (0.125, 5)
    assert paired(seeds(1, 2, 3, 4, 5, 6), seeds(0, 0, 0, 0, 0, 0), "wilcoxon") == (0.03125, 6)
    assert paired(base, base, "wilcoxon") == (1.0, 5)
    assert [least_p(n, "wilcoxon") for n in (2, 5, 6)] == [0.5, 0.0625, 0.03125]
    tied = compare({"a": dict(enumerate([1.0] * 5 + [0.0])), "b": dict.fromkeys(range(6), 0.0)}, "b", "wilcoxon")["a"]
    assert (tied.pairs, tied.p, tied.least) == (6, 0.0625, 0.0625), "SciPy drops the pair without a difference"


def test_wilcoxon_is_exact_where_few_pairs_differ() -> None:
    """Of 20 pairs 4 differ, with one sign, also with ties: 2 of 16 sign patterns."""
    same = [0.0] * 16
    assert paired(seeds(1, 2, 3, 4, *same), seeds(*[0.0] * 20), "wilcoxon") == (0.125, 20)
    assert paired(seeds(2, 2, 2, 2, *same), seeds(*[0.0] * 20), "wilcoxon") == (0.125, 20)


def test_t_by_its_closed_form() -> None:
    """Two pairs have one degree of freedom, Cauchy's: p = 1 - 2 atan(t) / pi, t = mean / (|d1 - d2| / 2) = 2 / 1."""
    p, pairs = paired(seeds(1.0, 3.0), seeds(0.0, 0.0), "t")
    assert pairs == 2
    assert p == pytest.approx(1 - 2 * math.atan(2) / math.pi)
    a, b = seeds(3.1, 2.9, 3.6, 3.3), seeds(2.8, 3.0, 3.1, 2.7)
    assert paired(a, b, "t")[0] == pytest.approx(scipy.stats.ttest_rel(list(a.values()), list(b.values())).pvalue)


def test_equal_differences_have_no_t(engine: Engine) -> None:
    """Two seeds, 5 points apart in both: t would be 5 / 0."""
    add(engine, "ditto", [0.95, 0.96])
    add(engine, "fedavg", [0.90, 0.91])
    add(engine, "local", [0.95, 0.96])
    table = build(engine, test="t", against="ditto")
    assert [entry.text for entry in table.grid().columns[-1].entries] == ["-", "-", ""]
    assert any(note.startswith("p is missing where") for note in table.notes)
    assert not [note for note in table.notes if "normality" in note]
    assert [record["p"] for record in table.grid().records] == [None] * 3
    assert paired(seeds(1, 2), seeds(0, 1), "wilcoxon") == (0.5, 2)


def test_only_common_seeds_are_paired() -> None:
    a, b = {0: 1.0, 1: 2.0, 2: 3.0, 3: 9.0}, {1: 1.0, 2: 1.0, 3: 1.0, 7: 5.0}
    assert paired(a, b, "wilcoxon") == paired(seeds(2, 3, 9), seeds(1, 1, 1), "wilcoxon")
    assert paired({0: 1.0}, {0: 2.0}, "t") == (None, 1)
    assert paired({0: 1.0}, {1: 2.0}, "wilcoxon") == (None, 0)


def test_holm_by_hand() -> None:
    """0.01 x 4, 0.02 x 3, 0.03 x 2 = 0.06 but not below 0.06, 0.04 x 1 but not below 0.06; and never above 1."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_five_seeds_make_a_wilcoxon_test_empty_and_the_table_says_so(engine: Engine) -> None:
    add(engine, "ditto", [0.951, 0.962, 0.953, 0.974, 0.965])
    add(engine, "fedavg", [0.90, 0.91, 0.89, 0.90, 0.88])
    table = build(engine, test="wilcoxon")
    compared = cell(table, "FedAvg").comparison
    assert compared is not None
    assert (compared.against, compared.p, compared.pairs) == ("Ditto", 0.0625, 5)
    assert cell(table, "Ditto").comparison is None
    assert any(note.startswith("Empty test in") for note in table.notes)
    assert not any("Empty" in note for note in build(engine, test="t").notes)
    columns = [column.head for column in table.grid().columns]
    assert columns == [("MNIST", "Dir(0.1)"), ("paper",), ("verdict",), ("p (wilcoxon)",)]


def test_holm_can_empty_a_test_that_one_comparison_would_not_be(engine: Engine) -> None:
    add(engine, "ditto", [0.95 + k / 1000 for k in range(6)])
    for k, method in enumerate(("fedavg", "local")):
        add(engine, method, [0.9 - 0.01 * k - j / 2000 for j in range(6)])
    assert any(note.startswith("Empty test in 2 of 2 comparisons") for note in build(engine, test="wilcoxon").notes)
    assert not any("Empty" in note for note in build(engine, Filters(methods=["ditto", "local"]), test="wilcoxon").notes)


def test_no_test_is_empty_that_found_a_difference() -> None:
    """Ten pairs and six, all of one sign: 2 / 2^10 and 2 / 2^6 times 2 and 1, since Holm multiplies the largest p by 1."""
    found = compare({"b": seeds(*[0.0] * 10), "ten": seeds(*range(1, 11)), "six": seeds(*range(1, 7))}, "b", "wilcoxon")
    assert {row: (of.adjusted, of.least) for row, of in found.items()} == {"ten": (1 / 256, 1 / 256), "six": (1 / 32, 1 / 32)}
    assert empty_tests(list(found.values()), "seeds") == []


def add_clients(engine: Engine, method: str, seed: int, *rounds: dict[int, tuple[int, int]]) -> int:
    return report_database.add_clients(engine, spec(method, seed, hyperparameters=HYPERPARAMETERS[method]), *rounds)


def test_clients_are_paired_with_their_means_over_common_seeds(engine: Engine) -> None:
    """Of FedAvg three seeds, of Local two: seed 2 does not count. Client 9 is tested under one of them, client 8 has no data.

    Sums over the common seeds, of 200: FedAvg 100 + 10 k, Local 120 + 12 k, so that Local is better by 10 + k for k = 0 to 5.
    """
    for seed in (0, 1):
        add_clients(engine, "fedavg", seed, {**{k: (50 + 5 * k, 100) for k in range(6)}, 8: (0, 0)})
        add_clients(
            engine, "local", seed, {**{k: (60 + 6 * k + 3 * (-1) ** seed, 100) for k in range(6)}, 8: (0, 0), 9: (1, 100)}
        )
    add_clients(engine, "fedavg", 2, dict.fromkeys(range(6), (99, 100)))
    table = build(engine, test="wilcoxon-clients", against="fedavg")
    local, fedavg = cell(table, "Local"), cell(table, "FedAvg")
    assert local.comparison is not None
    assert (local.comparison.p, local.comparison.pairs, local.comparison.least) == (2 / 2**6, 6, 2 / 2**6)
    assert fedavg.medians == pytest.approx((62.5, 62.5, 99))
    assert fedavg.median == pytest.approx(224 / 3)
    assert local.medians == pytest.approx((75.0, 69.0)), "client 9 counts: 1, 63, 69, 75, ..."
    text = render(table.grid(), "text")
    assert "0.0312" in text
    assert "74.67" in text


def test_of_clients_that_do_not_differ_none_counts(engine: Engine) -> None:
    """Eight clients, of which four do not differ: the smallest p is 2 / 2^4, and that of one comparison is not below 0.05."""
    add_clients(engine, "fedavg", 0, dict.fromkeys(range(8), (50, 100)))
    add_clients(engine, "local", 0, {k: (50 + k * (k < 5), 100) for k in range(8)})
    table = build(engine, test="wilcoxon-clients", against="fedavg")
    compared = cell(table, "Local").comparison
    assert compared is not None
    assert (compared.p, compared.pairs, compared.least) == (0.125, 8, 0.125)
    assert "Empty test in 1 of 1 comparisons: so few clients that differ cannot give p < 0.05 after Holm." in table.notes
    add_clients(engine, "ditto", 0, dict.fromkeys(range(8), (50, 100)))
    same = cell(build(engine, test="wilcoxon-clients", against="fedavg"), "Ditto").comparison
    assert same is not None
    assert (same.p, same.adjusted, same.least) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("select", "mean"), [("best", 90), ("last", 40), ("mean-last:2", 65)])
def test_clients_count_in_the_rounds_that_their_run_counts_in(engine: Engine, select: str, mean: float) -> None:
    add_clients(engine, "fedavg", 0, {0: (10, 100), 1: (10, 100)}, {0: (85, 100), 1: (95, 100)}, {0: (45, 100), 1: (35, 100)})
    add_clients(engine, "local", 0, {0: (10, 100), 1: (10, 100)})
    found = cell(build(engine, test="wilcoxon-clients", round_rule=select), "FedAvg")
    assert found.mean == pytest.approx(found.median or 0) == pytest.approx(mean)
    assert found.clients[0] == pytest.approx({"best": {0: 85, 1: 95}, "last": {0: 45, 1: 35}}.get(select, {0: 65, 1: 65}))


def test_runs_without_results_by_client_have_no_p(engine: Engine) -> None:
    add(engine, "fedavg", [0.9])
    add(engine, "local", [0.8])
    table = build(engine, test="wilcoxon-clients")
    compared = cell(table, "Local").comparison
    assert compared is not None
    assert (compared.p, compared.pairs, cell(table, "Local").median) == (None, 0, None)
    assert any(note.startswith("p is missing where fewer than two clients") for note in table.notes)


def test_a_central_test_set_has_no_clients(engine: Engine) -> None:
    add(engine, "fedavg", [0.9])
    with pytest.raises(UserError, match="no clients to pair"):
        TABLES["elastic"].load()(engine, test="wilcoxon-clients")


def test_fedamp_is_what_the_comparison_over_partitions_is_against(engine: Engine) -> None:
    """Unless it is filtered away, or something else is asked for. FedALA's values on MNIST, Pathological(2) are not FedAMP's."""
    iid, two = {"scheme": "iid", "clients": 20}, {"scheme": "pathological", "classes_per_client": 2, "clients": 20}
    for partition in (iid, two, {**iid, "shares": "reference"}):
        for method in ("fedavg", "fedamp", "local"):
            add_run(engine, spec(method, hyperparameters=paper.hyperparameters(method), partition=partition), [0.9])
    made = TABLES["partitions"].load()(engine)
    assert [part.title for part in made.columns if part.setting] == ["MNIST, IID", "MNIST, Pathological(2)"]
    assert (made.wanted.test, made.wanted.against) == ("wilcoxon-clients", "FedAMP")
    assert not [record for record in made.grid().records if record["paper_mean"] is not None]
    assert TABLES["partitions"].load()(engine, Filters(methods=["fedavg", "local"])).wanted.against is None
    assert TABLES["partitions"].load()(engine, against="local").wanted.against == "local"
    assert TABLES["partitions"].load()(engine, test="t").wanted.against is None


def test_whom_to_test_against(engine: Engine) -> None:
    add(engine, "ditto", [0.95, 0.96])
    add(engine, "fedavg", [0.90, 0.91])
    for name in ("fedavg", "FedAvg"):
        compared = cell(build(engine, test="t", against=name), "Ditto").comparison
        assert compared is not None
        assert compared.against == "FedAvg"
    add_run(engine, spec("ditto", hyperparameters={"lam": 1.0}), [0.9])
    for against, text in (("fedala", "fits 0 rows"), ("ditto", r"fits 2 rows(.|\n)*lam=1")):
        with pytest.raises(UserError, match=text):
            build(engine, test="t", against=against)


def test_a_single_run_is_not_the_best_that_others_are_tested_against(engine: Engine) -> None:
    add(engine, "ditto", [0.95, 0.96, 0.95])
    add(engine, "fedavg", [0.90, 0.91, 0.92])
    add(engine, "local", [0.99])
    table = build(engine, test="t", paper="never")
    assert [cell(table, row).best for row in ("FedAvg", "Ditto", "Local")] == [False, True, False]
    assert {record["compared_with"] for record in table.grid().records} == {None, "Ditto"}


def test_intervals_and_sample_std_stand_in_the_table(engine: Engine) -> None:
    add(engine, "fedavg", [0.5, 0.6, 0.7, 0.8, 0.9])
    table = build(engine, std="sample", ci=0.9)
    found = cell(table, "FedAvg")
    assert found.std == pytest.approx(15.8113883)
    assert found.interval == interval(found.values, 0.9)
    assert f"70.00 ± 15.81 [{found.interval[0]:.2f}, {found.interval[1]:.2f}]" in render(table.grid(), "text")
    assert any("sample std" in note for note in table.notes)
    assert not any("too narrow" in note for note in table.notes)
    add(engine, "ditto", [0.7, 0.8])
    assert any("fewest: 2" in note for note in build(engine, ci=0.9).notes)


def test_impossible_wishes_are_refused() -> None:
    for fields, text in (({"ci": 95.0}, "0.95"), ({"against": "ditto"}, "--test")):
        with pytest.raises(UserError, match=text):
            Statistics(**fields)  # type: ignore[arg-type]


# Ranks


def test_friedman_and_ranks_by_hand() -> None:
    """3 rows, 4 settings, ranks (1,1,1,2), (2,2,3,1), (3,3,2,3): chi2 = 12 / (4 * 3 * 4) (25 + 64 + 121) - 3 * 4 * 4 = 4.5."""
    accuracy = np.array([[90.0, 80, 70, 60], [80, 70, 50, 65], [70, 60, 60, 50]])
    average, statistic, p = ranks.friedman(accuracy)
    assert average.tolist() == [1.25, 2, 2.75]
    assert statistic == pytest.approx(4.5)
    assert p == pytest.approx(math.exp(-4.5 / 2)), "chi squared with 2 degrees of freedom"


def test_ties_as_printed_share_a_rank() -> None:
    average, statistic, p = ranks.friedman(np.array([[90.001, 80.0], [90.004, 80.0], [90.0, 80.0]]))
    assert (average.tolist(), statistic, p) == ([2, 2, 2], 0, 1)
    assert [f"{value:.2f}" for value in (2.675, 2.67, 2.671)] == ["2.67"] * 3
    assert ranks.friedman(np.array([[2.675, 80.0], [2.67, 80.0], [2.671, 80.0]]))[0].tolist() == [2, 2, 2]


def test_critical_difference_is_that_of_the_books() -> None:
    """Demsar (JMLR 2006), Table 5: q 0.05 is 2.569 for 4 classifiers; over 14 data sets CD = 1.25."""
    assert ranks.critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), rel=1e-3)
    assert ranks.critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_nemenyi_is_five_percent_at_the_critical_difference() -> None:
    """p of a pair is that of the studentized range at |R_i - R_j| / sqrt(k (k + 1) / (6 N)) x sqrt(2)."""
    accuracy = np.random.default_rng(0).permuted(np.tile(np.arange(4.0), (14, 1)), axis=1).T
    average = ranks.friedman(accuracy)[0]
    found = ranks.nemenyi(average, 14)
    unit = math.sqrt(4 * 5 / (6 * 14))
    for i in range(4):
        for k in range(4):
            q = abs(average[i] - average[k]) / unit * math.sqrt(2)
            assert found[i, k] == pytest.approx(1.0 if i == k else scipy.stats.studentized_range.sf(q, 4, np.inf), abs=1e-6)


def test_ranks_need_three_rows_and_say_what_is_left_out(engine: Engine) -> None:
    for method in ("ditto", "fedavg", "local"):
        add(engine, method, [0.5])
        add(engine, method, [0.6], dataset="cifar10")
    add(engine, "ditto", [0.5], dataset="cifar100")
    assert "Left out: 1 setting without runs of every row." in ranks.build(engine).notes
    for name in ("fashionmnist", "tiny", "agnews"):
        for method in ("ditto", "fedavg", "local"):
            add(engine, method, [0.5], dataset=name)
    add_run(engine, spec("fedrep", hyperparameters={}), [0.9])
    add_run(engine, spec("fedprox", hyperparameters={}), [0.9])
    add_run(engine, spec("fedprox", hyperparameters={}, dataset="cifar10"), [0.9])
    found = ranks.build(engine)
    assert {row.method for row in found.rows} == {"ditto", "fedavg", "local"}
    assert "Left out, with runs in too few settings: FedProx (2 settings), FedRep (1 setting)." in found.notes
    assert len(found.settings) == found.accuracy.shape[1] >= 4
    with pytest.raises(UserError, match="three rows"):
        ranks.build(engine, Filters(methods=["ditto", "fedavg"]))
