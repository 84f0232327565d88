"""The runs that each table and figure needs, in the papers' settings."""

from __future__ import annotations

from pflbench.report import needs as n
from pflbench.report.needs import FigureNeeds, MethodLine, TableNeeds

_TINY, _AGNEWS = n.dirichlet("tiny"), n.dirichlet("agnews", model="fasttext")
_TINY_RESNET = n.dirichlet("tiny", model="resnet18")

_ACCURACY = TableNeeds(
    "accuracy",
    "Accuracy",
    "FedALA paper, Table 2 and Table 7 (MNIST)",
    n.lines(*n.METHODS),
    (
        n.pathological("mnist"),
        n.pathological("cifar10"),
        n.pathological("cifar100", 10),
        *(n.dirichlet(dataset) for dataset in ("mnist", "cifar10", "cifar100", "tiny")),
        _TINY_RESNET,
        _AGNEWS,
    ),
)
_OVERHEAD = TableNeeds("overhead", "Overhead", "FedALA paper, Table 3", n.lines(*n.METHODS), (_TINY_RESNET,))

TABLES = {
    "accuracy": _ACCURACY,
    "overhead": _OVERHEAD,
    # The papers have no table of ranks: it shows the runs of Table 2.
    "ranks": _ACCURACY,
    "table2": _ACCURACY,
    "heterogeneity": TableNeeds(
        "heterogeneity",
        "Heterogeneity",
        "FedALA paper, Table 4",
        n.lines(*n.METHODS),
        (n.dirichlet("tiny", 0.01), n.dirichlet("tiny", 0.5), n.dirichlet("agnews", 1.0, "fasttext")),
        beside=(_TINY, _AGNEWS),
    ),
    "scalability": TableNeeds(
        "scalability",
        "Scalability",
        "FedALA paper, Table 4",
        n.lines(*n.METHODS),
        tuple(n.dirichlet("cifar100", clients=clients) for clients in (50, 100)),
        same=("clients", "join_ratio"),
    ),
    "applicability": TableNeeds(
        "applicability",
        "Applicability of ALA",
        "FedALA paper, Table 4",
        n.lines(*n.WITH_ALA),
        (_TINY, n.dirichlet("cifar100")),
        extra="improvement",
    ),
    "hyperparameters": TableNeeds(
        "hyperparameters",
        "Hyperparameters of FedALA",
        "FedALA paper, Table 1",
        n.fedala(*((s, 1) for s in (5, 10, 20, 40, 60, 80, 100)), *((80, p) for p in (6, 5, 4, 3, 2))),
        (_TINY_RESNET,),
        leader=None,
        extra="weights",
    ),
    "range": TableNeeds(
        "range",
        "Range of ALA",
        "FedALA paper, Tables 5 and 6",
        n.fedala(*((80, p) for p in (4, 3, 2, 1))),
        (_TINY, _AGNEWS),
        leader=None,
        extra="weights",
    ),
    "participation": TableNeeds(
        "participation",
        "Partial participation",
        "FedALA paper, Table 7",
        n.lines(*n.CROSS_DEVICE),
        (n.dirichlet("cifar100", clients=100, join_ratio=0.5),),
        same=("join_ratio",),
    ),
    "elastic": TableNeeds(
        "elastic",
        "Elastic Aggregation on a central test set",
        "Elastic Aggregation's poster",
        n.lines("fedavg", "elastic"),
        n.poster(),
        leader=None,
    ),
    "partitions": TableNeeds(
        "partitions",
        "Comparison over partitions",
        "FedAMP, by a review of it",
        # The review names FedAvg and FedProx; Local and Per-FedAvg show what no and what other personalization gives.
        n.lines("local", "fedavg", "fedprox", "per-fedavg", "fedamp", "heurfedamp"),
        n.fedamp("mnist", "fashionmnist", "emnist:byclass", "cifar100"),
        leader=None,
        compared="fedamp",
        printed=False,
    ),
    "ablation": TableNeeds(
        "ablation",
        "ALA without adaptation",
        "FedALA paper, text and Table 2",
        (
            MethodLine("fedala", (("adapt", True),), "FedALA"),
            MethodLine("fedala", (("adapt", False),), "FedALA without adaptation"),
        ),
        (_TINY,),
    ),
}

_OF_TABLE_2 = FigureNeeds("the settings of FedALA's Table 2 and Table 7 (MNIST)", _ACCURACY.needed)
_DISTRIBUTION = {
    "Figure 6": tuple(n.dirichlet("tiny", beta) for beta in (0.01, 0.1, 0.5)),
    "Figure 7": (n.pathological("mnist"), n.pathological("cifar10"), n.pathological("cifar100", 10)),
    "Figure 8": tuple(n.dirichlet(dataset) for dataset in ("mnist", "cifar10", "cifar100")),
    "Figure 9": tuple(n.dirichlet("cifar100", clients=clients) for clients in (50, 100)),
}
_ALA = n.cells(n.lines("fedala"), n.pathological("mnist"))

PLOTS = {
    "curves": _OF_TABLE_2,
    # Data alone are drawn: no model is trained, and so none of a place's other fields counts.
    "distribution": FigureNeeds(
        "FedALA paper, Figures 6 to 9",
        n.cells(n.lines("local"), *(place for places in _DISTRIBUTION.values() for place in places)),
        one_seed=True,
        trained=False,
        printed=_DISTRIBUTION,
    ),
    "overhead": FigureNeeds("the setting of FedALA's Table 3", _OVERHEAD.needed),
    "scalability": FigureNeeds(
        "the setting of FedALA's Table 4, with more numbers of clients",
        n.cells(n.lines(*n.METHODS), *(n.dirichlet("cifar100", clients=clients) for clients in (10, 20, 50, 100))),
    ),
    "heterogeneity": FigureNeeds(
        "the settings of FedALA's Tables 2 and 4",
        n.cells(
            n.lines(*n.METHODS),
            *(n.dirichlet("tiny", beta) for beta in (0.01, 0.1, 0.5)),
            *(n.dirichlet("agnews", beta, "fasttext") for beta in (0.1, 1.0)),
        ),
    ),
    "elastic": FigureNeeds("Elastic Aggregation's poster, figure", n.cells(n.lines("fedavg", "elastic"), *n.around_the_poster())),
    "fairness": FigureNeeds(
        "four settings of FedALA's Table 2 and Table 7",
        n.cells(n.lines(*n.METHODS), *(n.dirichlet(dataset) for dataset in ("mnist", "cifar10", "cifar100", "tiny"))),
    ),
    "ranks": _OF_TABLE_2,
    "attention": FigureNeeds(
        "FedAMP's setting: groups of clients with classes of their own",
        n.cells(n.lines("fedamp"), n.groups("mnist")),
        one_seed=True,
        array="attention",
        save_artifacts_every=100,
    ),
    # Figure 5 has a dot per 60 rounds.
    "ala-weights": FigureNeeds(
        "the setting of FedALA's Figure 5", _ALA, one_seed=True, fewest=4, array="ala_weights", save_artifacts_every=60
    ),
    "loss": FigureNeeds("FedALA paper, Figure 5", _ALA, one_seed=True, fewest=4, array="ala_objective", save_artifacts_every=60),
    # The initial stage is seen only where every round is observed. A whole run of that would fill the database.
    "ala-convergence": FigureNeeds(
        "FedALA paper, Figure 3",
        n.cells(
            [MethodLine("fedala", (("min_epochs", 6),))],
            n.pathological("mnist", rounds=20),
            n.pathological("cifar10", rounds=20),
        ),
        one_seed=True,
        fewest=4,
        array="ala_epoch_losses",
        save_artifacts_every=1,
        client=8,
    ),
    "trajectory": FigureNeeds(
        "FedALA paper, Figure 4",
        # ALA is off for 155 rounds.
        n.cells([MethodLine("fedavg"), MethodLine("fedala", (("start_round", 156),))], n.pathological("mnist", rounds=200)),
        one_seed=True,
        fewest=10,
        client=4,
        window=(140, 200),
    ),
}
