"""The values that the FedALA paper prints (Zhang et al., AAAI 2023; arXiv:2212.01197), Elastic Aggregation's poster, and PFLlib's
leaderboard.

The rule (methods.md 2.2): method, dataset, model and partition decide which value belongs to a run (a folder that PFLlib wrote
counts by the partition that its config.json states). It may be compared where everything else that moves the number is the
paper's, too; else it is shown on request, with what differs. The poster does not say how its data are partitioned, nor which
hyperparameters it has: no run has its protocol for sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pflbench import methods
from pflbench.models import MODELS
from pflbench.papers import Value, values
from pflbench.report import labels
from pflbench.spec import LATER
from pflbench.store.runs import RoundRule

ACCURACY = "test_accuracy_percent"
UNKNOWN = ("unknown", 0.0)
EQUAL = ("iid", 0.0)  # equal shares
PARAMETERS = {"dirichlet": "beta", "pathological": "classes_per_client", "groups": "groups"}  # of partitions, by kind
# Of two values for the same method and protocol the first one is taken.
_ORDER = ("table2", "table7", "table4", "table1", "table6", "text", "elastic", "leaderboard")
LEADERBOARD = "leaderboard"  # among the tables

_OTHER_NAMES = {
    "naive aggregation (FedAvg)": "fedavg",
    "elastic aggregation": "elastic",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "CINIC-10": "cinic10",
    "Logistic Regression": "logreg",
}


@dataclass(frozen=True)
class Place:
    """The protocol of a printed value, without the method. lr None: the paper's for model and dataset.

    central: on a central test set, in place of E1. balanced: whether all clients hold equally much; None where nothing is said.
    stand_in: other data in the dataset's place, as `pflbench run -d` names them: nothing printed was measured there. new_clients:
    how many of the clients never join (methods.md 2.13). val_share: of the training samples, for validation (methods.md 2.10).
    """

    dataset: str
    model: str
    partition: tuple[str, float]  # ("dirichlet", 0.1)
    clients: int = 20
    join_ratio: float = 1.0
    rounds: int = 2000
    local_epochs: int = 1
    batch_size: int = 10
    lr: float | None = None
    central: bool = False
    balanced: bool | None = None
    stand_in: str = ""
    new_clients: int = 0
    val_share: float = 0.0

    @property
    def data(self) -> str:
        """Its data, as `pflbench run -d` names them."""
        return self.stand_in or self.dataset

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its dataset, with and without the variant."""
        return self.dataset, labels.label_title(self.dataset), self.dataset.partition(":")[0]

    @property
    def rate(self) -> float:
        """The local learning rate (methods.md 2.2)."""
        if self.lr is not None:
            return self.lr
        return 0.005 if self.model == "cnn" and self.dataset != "mnist" else 0.1

    @property
    def partition_label(self) -> str:
        """As the runs bear it: "Dir(0.1)"."""
        if self.partition == EQUAL:
            return "IID"
        kind, parameter = self.partition
        titles = {"dirichlet": "Dir", "pathological": "Pathological", "groups": "Groups"}
        return f"{titles[kind]}({parameter:g})" if kind in titles else kind


@dataclass(frozen=True)
class PrintedValue:
    """One printed value, in percent; `std` is None where none is printed. varied: hyperparameters that a table varies."""

    table: str
    place: Place
    method: str
    mean: float
    std: float | None
    varied: tuple[tuple[str, Any], ...] = ()

    @property
    def of_the_paper(self) -> bool:
        """Whether the FedALA paper prints it."""
        return self.table != LEADERBOARD and not self.place.central


@cache
def named_values() -> tuple[Value, ...]:
    """All values, with methods, datasets and models by their names on the command line."""
    names = {**labels.DATASETS, **{model: entry.title for model, entry in MODELS.items()}}
    by_title = {title: name for name, title in names.items()} | _OTHER_NAMES

    def name(title: str) -> str:
        base, plus, _ = title.partition("+ALA")
        return (base.lower() if base.lower() in methods.METHODS else by_title.get(base, base)) + plus.lower()

    return tuple(replace(v, method=name(v.method), dataset=name(v.dataset), backbone=name(v.backbone)) for v in values())


def by_method(metric: str) -> dict[str, float]:
    """The values of a metric that each method has once."""
    return {value.method: value.mean for value in named_values() if value.metric == metric and value.mean is not None}


@cache
def references() -> tuple[PrintedValue, ...]:
    """All accuracies."""
    found = [value for value in named_values() if value.metric == ACCURACY]
    return tuple(map(_reference, sorted(found, key=lambda value: _ORDER.index(value.table))))


@cache
def seconds_per_iteration() -> dict[str, float]:
    """Table 3's time per iteration in seconds, by method."""
    return {method: 60 * minutes for method, minutes in by_method("time_per_iter_min").items()}


@cache
def improvements() -> dict[tuple[str, str], float | None]:
    """Table 4's improvement by ALA in points, by method ("ditto+ala") and dataset."""
    return {(v.method, v.dataset): v.mean for v in named_values() if v.metric == "improvement_percent_points"}


@cache
def trained_weights() -> dict[tuple[str, str, float, int], int]:
    """The number of weights that ALA learns (Tables 1 and 6), by dataset, model, s and p."""
    scales = {"ala_trainable_params": 1, "ala_trainable_params_millions": 10**6}
    return {
        (v.dataset, v.backbone, float(v.setting["s"]), int(v.setting["p"])): round(v.mean * scales[v.metric])
        for v in named_values()
        if v.metric in scales and v.mean is not None
    }


def hyperparameters(method: str) -> Mapping[str, Any]:
    """The paper's hyperparameters of a method, with ALA plugged in ("ditto+ala") or not: the defaults (methods.md 1).

    What is not among them is not the paper's method. {} of methods that are not built in.
    """
    return methods.card(method).hyperparameters


def find(spec: dict[str, Any], select: RoundRule) -> tuple[PrintedValue, tuple[str, ...]] | None:
    """The paper's value for a run's specification, nearest protocol first, and the `differences`; None if the paper has none."""
    found = [
        (reference, differences(spec, select, reference.place, reference.varied))
        for reference in references()
        if reference.method == spec["method"]["name"] and reference.of_the_paper and is_at(spec, reference.place)
    ]
    return min(found, key=lambda match: len(match[1]), default=None)


def is_at(spec: dict[str, Any], place: Place) -> bool:
    """Whether dataset, model and partition are the place's."""
    data = spec["data"]
    if spec["model"] != place.model:
        return False
    if place.stand_in:
        here, there = (labels.without_folder(text) for text in (labels.dataset_label(spec), place.stand_in))
        return here == there and _partition(spec["partition"]) == place.partition
    label = labels.dataset_label(spec)
    if data.get("path") or place.dataset not in (label, data["name"]):
        return False
    if place.partition == UNKNOWN:
        return True
    return label == place.dataset and _partition(spec["partition"]) == place.partition


def differences(spec: dict[str, Any], select: RoundRule, place: Place, varied: Iterable[tuple[str, Any]] = ()) -> tuple[str, ...]:
    """The differences of a run's protocol from the paper's: ('rounds 20 instead of 2000',)."""
    name, mine = spec["method"]["name"], dict(spec["method"]["hyperparameters"])
    theirs = {**hyperparameters(name), **dict(varied)}
    if mine.get("M") == spec["partition"]["clients"] and theirs.get("M") == "all":
        mine["M"] = "all"
    # What the code of 2022 did instead, from which the printed values probably come (methods.md 0.6): as good as the defaults.
    of_2022 = methods.card(name).presets.get("fedala2022", {})
    mine |= {key: theirs[key] for key, value in of_2022.items() if mine.get(key) == value and key in theirs}
    own = [(name, mine.get(name, "absent"), theirs.get(name, "absent")) for name in sorted({*mine, *theirs})]
    return (*setting_differences(spec, place), *_instead([("result", str(select), "best"), *own]))


def setting_differences(spec: dict[str, Any], place: Place) -> tuple[str, ...]:
    """As `differences`, for the protocol that all methods of a setting share."""
    partition, train = spec["partition"], spec["train"]
    items: list[tuple[str, Any, Any]] = [  # (name, the run's value, the place's value) of everything that affects the result
        ("data", labels.label_title(place.data), labels.label_title(place.dataset)),
        ("clients", partition["clients"], place.clients),
        ("join ratio", train["join_ratio"], place.join_ratio),
        ("rounds", train["rounds"], place.rounds),
        ("local epochs", train["local_epochs"], place.local_epochs),
        ("batch size", train["batch_size"], place.batch_size),
        ("lr", train["lr"], place.rate),
        ("lr schedule", train["lr_schedule"], "constant"),
        ("optimizer", train["optimizer"], "sgd"),
        ("weight decay", train["weight_decay"] or 0, 0),
    ]
    items += [(name.replace("_", " "), train.get(name, usual), getattr(place, name, usual)) for name, usual in LATER.items()]
    if place.central:
        items.append(("partition", partition["scheme"], "unknown"))
        if place.balanced is not None:
            sizes = {True: "balanced", False: "unbalanced"}
            items.append(("data across clients", sizes[_balanced(partition)], sizes[place.balanced]))
        return (*labels.content_notes(spec), *_instead(items))
    items += [("evaluation interval", train["eval_every"], 1), ("BN buffers", train["bn_buffers"], "local")]
    if place.join_ratio < 1:
        items.append(("evaluated clients", train["evaluate"], "participants"))
    if train["dtype"] == "tf32":
        items.append(("factors of products", "tf32", "float32"))
    if train["drop_last"] == "never":
        items.append(("last partial batch", "kept", "dropped"))
    if partition["scheme"] != "pfllib":
        items += [
            ("test share", partition["test_share"], 0.25),
            ("partition seed", partition["seed"], 1),
            ("fewest samples", partition.get("min_samples") or 40, 40),
            ("balanced classes", partition.get("balanced", False), False),
            ("central test set", partition["central_test"], False),
            ("dominant share", partition.get("dominant_share", 0.8), 0.8),
            ("group sizes", partition.get("group_sizes"), None),
        ]
    return (*labels.content_notes(spec), *_instead(items))


# As runs have them: JSON keeps whole numbers and others apart, comparison does not.
_VARIED: dict[str, Any] = {"s": float, "p": int, "adapt": lambda text: text == "true"}


def _reference(value: Value) -> PrintedValue:
    varied = tuple((key, read(value.setting[key])) for key, read in _VARIED.items() if key in value.setting)
    assert value.mean is not None
    return PrintedValue(value.table.replace("table", "Table "), _place(value), value.method, value.mean, value.std, varied)


def _place(value: Value) -> Place:
    said = value.setting
    dataset, model, clients = value.dataset, value.backbone, int(said["clients"])
    if value.table == "elastic":
        ratio = int(said["sampled_per_round"]) / clients
        train: dict[str, Any] = {"rounds": int(said["rounds"]), "batch_size": int(said["batch"]), "lr": float(said["lr"])}
        return Place(dataset, model, UNKNOWN, clients, ratio, **train, central=True, balanced=said["data"] == "balanced")
    kind = {"practical": "dirichlet"}.get(said["scenario"], said["scenario"])
    return Place(dataset, model, (kind, float(said[PARAMETERS[kind]])), clients, float(said["rho"]))


def _partition(spec: dict[str, Any]) -> tuple[str, float] | None:
    if spec["scheme"] == "iid":
        return EQUAL if spec["shares"] == "equal" else None
    kind = spec["kind"] if spec["scheme"] == "pfllib" else spec["scheme"]
    parameter = spec.get(PARAMETERS.get(kind, ""))
    return None if parameter is None else (kind, float(parameter))


def _balanced(spec: dict[str, Any]) -> bool:
    """Whether all clients of a partition have the same number of samples."""
    if spec["scheme"] == "iid":
        return bool(spec["shares"] == "equal")
    return bool(spec.get("balanced", False)) or (spec["scheme"] == "groups" and not spec.get("group_sizes"))


def _instead(items: Iterable[tuple[str, Any, Any]]) -> tuple[str, ...]:
    texts = (f"{name} {_text(ours)} instead of {_text(paper)}" for name, ours, paper in items if ours != paper)
    return tuple(text.removesuffix(" instead of absent") for text in texts)  # a hyperparameter that the paper's method lacks


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
