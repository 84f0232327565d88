"""Partitions against the golden numbers of methods.md 3, which follow from class sizes and the seed alone."""

from __future__ import annotations

import numpy as np
import pytest

from pflbench.errors import UserError
from pflbench.partition import SCHEMES, Partition, make
from pflbench.partition.groups import apportion
from pflbench.spec import IID, Dirichlet, Groups, Pathological

MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)
CIFAR10, CIFAR100, TINY, AGNEWS = (6000,) * 10, (600,) * 100, (500,) * 200, (31900,) * 4

# Dir(0.1) of merged MNIST over 20 clients, seed 1: the partition published with the FedALA authors' repository.
PUBLISHED = np.array(
    [
        [140, 890, 0, 0, 1, 319, 0, 29, 1067, 184],
        [5, 0, 27, 0, 0, 19, 335, 0, 6, 107],
        [3, 0, 0, 143, 0, 0, 1461, 0, 0, 23],
        [155, 0, 0, 0, 1, 0, 0, 2381, 4, 0],
        [71, 13, 0, 207, 0, 1129, 6, 0, 40, 451],
        [0, 38, 0, 1, 39, 0, 0, 0, 25, 6086],
        [0, 873, 176, 46, 0, 0, 42, 0, 13, 106],
        [0, 21, 5, 11, 0, 787, 0, 4, 441, 0],
        [1, 3599, 0, 0, 0, 0, 0, 0, 0, 0],
        [633, 1997, 89, 0, 519, 0, 768, 0, 0, 0],
        [920, 2, 1450, 513, 134, 97, 0, 0, 0, 0],
        [0, 0, 159, 3055, 0, 558, 0, 0, 0, 0],
        [8, 180, 3277, 0, 0, 148, 0, 0, 0, 0],
        [0, 237, 343, 0, 6, 453, 0, 1095, 0, 0],
        [0, 0, 0, 0, 0, 2719, 0, 3011, 0, 0],
        [31, 0, 0, 1785, 0, 16, 4, 756, 2856, 0],
        [3628, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 26, 1463, 1379, 335, 60, 0, 17, 2373, 0],
        [998, 0, 0, 0, 0, 8, 4260, 0, 0, 0],
        [310, 1, 1, 1, 5789, 0, 0, 0, 0, 1],
    ]
)


def sorted_labels(sizes: tuple[int, ...]) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


def table(spec, sizes: tuple[int, ...]) -> np.ndarray:
    """Train and test together, [clients, classes]."""
    train, test = make(spec, sorted_labels(sizes), len(sizes)).counts(sorted_labels(sizes), len(sizes))
    return train + test


def totals(spec, sizes: tuple[int, ...]) -> list[int]:
    return table(spec, sizes).sum(axis=1).tolist()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


# --- methods.md 3.1 ---


@pytest.mark.parametrize(
    ("sizes", "per_client", "expected"),
    [
        (MNIST, 2, "2334 1318 3133 7995 1328 2061 1004 9738 3041 2910 1886 5300 1519 2335 1928 8387 1980 1906 1676 8221"),
        (CIFAR10, 2, "2266 1250 2243 6241 2009 952 1734 7305 1859 2514 2046 5581 1605 1114 1548 7733 2649 1442 2084 5825"),
        (CIFAR100, 10, "1816 4184 1941 4059 1426 4574 952 5048 1654 4346 2060 3940 1890 4110 1364 4636 1960 4040 1899 4101"),
    ],
)
def test_pathological_totals(sizes, per_client, expected):
    assert totals(Pathological(clients=20, classes_per_client=per_client), sizes) == numbers(expected)


def test_pathological_gives_blocks_of_clients_the_same_classes():
    mnist = table(Pathological(clients=20, classes_per_client=2), MNIST)
    assert mnist[0].tolist() == [1233, 1101, 0, 0, 0, 0, 0, 0, 0, 0]
    for client in range(20):
        first = 2 * (client // 4)
        assert np.flatnonzero(mnist[client]).tolist() == [first, first + 1]
    cifar100 = table(Pathological(clients=20, classes_per_client=10), CIFAR100)
    assert np.flatnonzero(cifar100[1]).tolist() == list(range(10))


def test_pathological_small_example():
    small = Pathological(clients=4, classes_per_client=2, min_samples=40)
    rows = [[47, 22, 0, 0], [53, 78, 0, 0], [0, 0, 18, 19], [0, 0, 82, 81]]
    assert table(small, (100,) * 4).tolist() == rows
    half = [[50, 50, 0, 0], [50, 50, 0, 0], [0, 0, 50, 50], [0, 0, 50, 50]]
    assert table(small.model_copy(update={"balanced": True}), (100,) * 4).tolist() == half


def test_pathological_deals_in_stored_order():
    labels = np.random.default_rng(0).permutation(sorted_labels((100,) * 4))
    partition = make(Pathological(clients=4, classes_per_client=2, balanced=True), labels, 4)
    held = np.sort(np.concatenate([partition.train[0], partition.test[0]]))
    stored = np.concatenate([np.flatnonzero(labels == k)[:50] for k in (0, 1)])
    np.testing.assert_array_equal(held, np.sort(stored))


# --- methods.md 3.2 ---


def test_dirichlet_reproduces_the_published_mnist_partition():
    np.testing.assert_array_equal(table(Dirichlet(beta=0.1, clients=20), MNIST), PUBLISHED)


@pytest.mark.parametrize(
    ("sizes", "beta", "expected"),
    [
        (MNIST, 0.1, "2630 499 1630 2541 1917 6189 1256 1269 3600 4006 3116 3772 3613 2134 5730 5448 3628 5653 5266 6103"),
        (CIFAR10, 0.1, "1621 1814 1211 2080 5128 4264 1440 2622 2974 3236 1164 1964 5994 1527 3100 4325 4252 3175 5449 2660"),
        (CIFAR100, 0.1, "3020 3053 2753 3029 2640 2877 3120 3047 2807 3211 2761 3359 3290 2971 3301 3132 3345 2642 3035 2607"),
        (TINY, 0.1, "5092 3261 5001 5006 5162 5323 5067 4823 5144 5210 5465 4638 5132 5154 5099 5450 4596 5079 5074 5224"),
        (TINY, 0.01, "4708 5063 5320 4542 4815 5145 4342 5007 3948 4675 4955 5367 5421 5342 5036 4817 5447 5450 5403 5197"),
        (TINY, 0.5, "5040 5005 4591 5030 5064 5011 5004 4495 5039 5003 5049 5028 5262 5057 5063 5060 5006 4906 5106 5181"),
        (AGNEWS, 0.1, "410 1679 4416 772 158 670 132 4090 375 11583 127 9025 7932 15574 6956 11243 26692 7558 6293 11915"),
        (AGNEWS, 1, "7196 6681 6817 7904 7026 7766 11591 7399 2726 5970 7492 4225 4385 10009 3043 4789 4093 7968 6956 3564"),
    ],
)
def test_dirichlet_totals(sizes, beta, expected):
    assert totals(Dirichlet(beta=beta, clients=20), sizes) == numbers(expected)


@pytest.mark.parametrize(
    ("clients", "least", "most", "first"),
    [(50, 660, 1469, [1309, 1400, 1258, 1311, 1228]), (100, 275, 817, [525, 425, 575, 589, 375])],
)
def test_dirichlet_over_more_clients(clients, least, most, first):
    found = totals(Dirichlet(beta=0.1, clients=clients), CIFAR100)
    assert (min(found), max(found), found[:5]) == (least, most, first)


def test_dirichlet_small_example():
    rows = [[0, 9, 0], [0, 30, 0], [0, 1, 40], [40, 0, 0]]
    assert table(Dirichlet(beta=0.5, clients=4, min_samples=5), (40,) * 3).tolist() == rows


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        (Dirichlet(beta=1e-4, clients=4, min_samples=1, seed=3), (50,) * 30),  # draws underflow
        (Dirichlet(beta=0.5, clients=3, min_samples=2), (40, 40, 0)),  # an empty class
    ],
)
def test_dirichlet_deals_all_samples(spec, sizes):
    assert sum(totals(spec, sizes)) == sum(sizes)


# --- methods.md 3.3 ---


def test_iid_reference_gives_the_last_client_half_of_everything():
    assert totals(IID(clients=20, shares="reference"), CIFAR10)[-1] == 28418


def test_iid_shares_are_equal_and_mixed():
    labels = sorted_labels((403, 400, 400))
    partition = make(IID(clients=5), labels, 3)
    train, test = partition.counts(labels, 3)
    assert (train + test).sum(axis=1).tolist() == [241, 241, 241, 240, 240]
    # 240 draws of a third: 80 expected, standard deviation below 7.3.
    assert np.abs(train + test - 80).max() < 5 * 7.3


# --- methods.md 3.4 ---


def test_groups_of_equal_classes_are_exact():
    found = table(Groups(clients=20), CIFAR10)
    for client in range(20):
        dominating = [2 * (client // 4), 2 * (client // 4) + 1]
        others = np.setdiff1d(np.arange(10), dominating)
        assert found[client, dominating].tolist() == [1200, 1200]  # 0.8 of 3000, evenly
        assert found[client, others].tolist() == [75] * 8
    assert (found.sum(axis=0) == 6000).all()


def test_groups_cap_at_what_there_is_and_no_client_loses_a_class():
    found = table(Groups(clients=20), MNIST)
    assert (found.sum(axis=0) <= MNIST).all()
    # 20 clients of 3500 ask for more of the rare classes 4 and 5 than there is: both are used up, and shared by all.
    assert found.sum(axis=0)[[4, 5]].tolist() == [6824, 6313]
    assert found.min() > 0
    share = [found[i, [2 * (i // 4), 2 * (i // 4) + 1]].sum() / found[i].sum() for i in range(20)]
    assert share == pytest.approx([0.8] * 20, abs=0.01)


def test_group_sizes_count_samples_per_client():
    sizes = (100, 200, 300)
    found = table(Groups(clients=7, groups=3, group_sizes=sizes, dominant_share=0.6), (1000,) * 6)
    assert found.sum(axis=1).tolist() == [100] * 3 + [200] * 2 + [300] * 2
    assert found[3, [2, 3]].sum() == 120
    assert found[0, [0, 1]].sum() == 60


def test_one_group_is_the_whole_dataset():
    assert table(Groups(clients=4, groups=1), (100, 300)).tolist() == [[25, 75]] * 4


def test_apportion_rounds_by_largest_remainder():
    assert apportion(10, np.array([1, 1, 1])).tolist() == [4, 3, 3]
    assert apportion(7, np.array([5.0, 0.0, 2.0])).tolist() == [5, 0, 2]
    assert apportion(3, np.array([0.30, 0.25, 0.45])).tolist() == [1, 1, 1]
    assert apportion(5, np.zeros(2)).tolist() == [0, 0]


# --- methods.md 3.5 and what holds for every scheme ---


def test_split_of_the_published_client_0():
    train, test = make(Dirichlet(beta=0.1, clients=20), sorted_labels(MNIST), 10).counts(sorted_labels(MNIST), 10)
    assert train[0].tolist() == [101, 662, 0, 0, 1, 245, 0, 23, 796, 144]
    assert (train[0].sum(), test[0].sum()) == (1972, 658)
    assert (train.sum(axis=1) == PUBLISHED.sum(axis=1) * 3 // 4).all()


EVERY_SCHEME = [
    Pathological(clients=6, classes_per_client=2),
    Dirichlet(clients=6, beta=0.3),
    IID(clients=6),
    IID(clients=6, shares="reference"),
    Groups(clients=6, groups=3),
]


@pytest.mark.parametrize("spec", EVERY_SCHEME, ids=lambda s: s.label)
def test_every_scheme(spec):
    assert {one.scheme for one in EVERY_SCHEME} == set(SCHEMES)
    labels = np.random.default_rng(5).permutation(sorted_labels((200, 160, 120, 200, 180, 140)))
    partition = make(spec, labels, 6)
    handed_out = np.concatenate(partition.train + partition.test)
    assert handed_out.dtype == np.int64
    assert len(np.unique(handed_out)) == len(handed_out), "no sample twice"
    assert set(handed_out) <= set(range(len(labels)))
    if spec.scheme != "groups":  # which leaves out what nobody asked for
        assert len(handed_out) == len(labels)
    for train, test in zip(partition.train, partition.test, strict=True):
        assert len(train) == int(0.75 * (len(train) + len(test)))
    assert make(spec, labels, 6).hash(labels) == partition.hash(labels)
    reseeded = make(spec.model_copy(update={"seed": 2}), labels, 6)
    assert reseeded.hash(labels) != partition.hash(labels)


@pytest.mark.parametrize(("share", "expected"), [(0.1, 90), (0.9, 10), (0.2, 80), (1 / 3, 66)])
def test_test_share(share, expected):
    labels = np.zeros(100, dtype=int)
    partition = make(IID(clients=1, test_share=share), labels, 1)
    assert (len(partition.train[0]), len(partition.test[0])) == (expected, 100 - expected)


def test_the_global_random_state_is_left_alone():
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    make(Dirichlet(beta=0.1, clients=5), sorted_labels((100,) * 3), 3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


# --- Partition ---


def lists(*values: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(value, dtype=np.int64) for value in values)


def test_counts_by_hand():
    train, test = Partition(lists([0, 1, 2], [3]), lists([4], [])).counts(np.array([2, 0, 2, 1, 1]), 3)
    assert train.tolist() == [[1, 0, 2], [0, 1, 0]]
    assert test.tolist() == [[0, 1, 0], [0, 0, 0]]


def test_hash_is_of_the_content():
    labels = np.array([0, 1, 0, 1])
    partition = Partition(lists([0], [1]), lists([2], [3]))
    same = Partition(tuple(a.astype(np.int32) for a in partition.train), partition.test)
    assert same.hash(labels.astype(np.uint8)) == partition.hash(labels)
    others = [
        Partition(partition.test, partition.train).hash(labels),
        Partition(lists([0, 1], []), partition.test).hash(labels),
        partition.hash(np.array([0, 1, 0, 0])),
        Partition(partition.train[::-1], partition.test[::-1]).hash(labels),
    ]
    assert len({partition.hash(labels), *others}) == 5


def test_a_client_too_small_for_the_split_only_tests():
    """methods.md 0.5: it is never selected, and no reason to refuse the federation."""
    partition = make(IID(clients=30, shares="reference"), sorted_labels((50, 50)), 2)
    trains, tests = ([len(part) for part in side] for side in (partition.train, partition.test))
    assert 0 in trains
    assert max(trains) > 0
    assert sum(trains) + sum(tests) == 100


# --- errors: one or two lines that say what is wrong and what to do ---


@pytest.mark.parametrize(
    ("spec", "sizes", "message"),
    [
        (IID(clients=51), (50, 50), "51 clients are too many for 100 samples"),
        (Dirichlet(beta=0.1, clients=1000), (50, 50), "1000 clients are too many for 100 samples"),
        (Pathological(clients=2, classes_per_client=3), (50, 50), "3 classes per client are more than the 2 classes"),
        (Pathological(clients=3, classes_per_client=1), (50,) * 4, "leave 1 classes without a client"),
        (Pathological(clients=2, classes_per_client=2, min_samples=100), (50, 50), "Class 0 has 25 samples per client"),
        (Dirichlet(beta=0.1, clients=10, min_samples=20), (50, 50), "10 clients cannot hold at least 20 of 100 samples"),
        (
            Dirichlet(beta=0.01, clients=10, min_samples=10),
            (50, 50),
            r"No Dir\(0.01\) partition.*\nUse a larger --beta",
        ),
        (Dirichlet(beta=1e-300, clients=10, min_samples=1), (50, 50), r"No Dir\(1e-300\) partition over 10 clients"),
        (IID(clients=4, test_share=0.99), (50, 50), "A test share of 0.99 leaves no client anything to train on"),
        (Groups(clients=10, groups=3), (50, 50), "3 groups cannot each have their own of 2 classes"),
        (Groups(clients=2, groups=3), (50,) * 4, "3 groups cannot each have their own of 2 clients"),
        (Groups(clients=4, groups=2, group_sizes=(5,)), (50, 50), "1 group sizes for 2 groups: 5"),
        (Groups(clients=4, groups=2, group_sizes=(5, 0)), (50, 50), "2 group sizes for 2 groups: 5, 0"),
        (Groups(clients=4, groups=2, group_sizes=(30, 21)), (50, 50), "ask for 102 samples; the dataset has 100"),
    ],
)
def test_impossible_partitions(spec, sizes, message):
    with pytest.raises(UserError, match=message) as caught:
        make(spec, sorted_labels(sizes), len(sizes))
    assert caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_the_default_minimum_falls_to_what_draws_reach():
    """30 samples a client: Dir(0.1) over 20 clients never gives each of them half of that; an own minimum is kept."""
    sizes = (60,) * 10
    smallest = min(totals(Dirichlet(beta=0.1, clients=20), sizes))
    assert 1 <= smallest < 15
    with pytest.raises(UserError, match="gave every client at least 15 samples"):
        make(Dirichlet(beta=0.1, clients=20, min_samples=15), sorted_labels(sizes), 10)
