"""Display names, and what tells runs apart: the one place for both. Names that are not known are shown as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Any

from pflbench import methods, models
from pflbench.spec import OTHER_CONTENT
from pflbench.store.exchange import points

DATASETS = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashionmnist": "Fashion-MNIST",
    "emnist": "EMNIST",
    "cifar10": "Cifar10",
    "cifar100": "Cifar100",
    "tiny": "Tiny-ImageNet",
    "agnews": "AG News",
    "har": "UCI HAR",
}
MODEL_CODE = "own_model.content"
PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_ITEMS = {
    "partition.clients": "{} clients",
    "partition.seed": "partition seed {}",
    "partition.min_samples": "at least {} samples",
    "partition.test_share": "test share {}",
    "partition.central_test": "central test set",
    "train.rounds": "{} rounds",
    "train.local_epochs": "{} local epochs",
    "train.batch_size": "batch size {}",
    "train.drop_last": "drop last batch {}",
    "train.lr": "lr {}",
    "train.join_ratio": "join ratio {}",
    "train.eval_every": "evaluated every {} rounds",
    "train.evaluate": "{} evaluated",
    "train.bn_buffers": "BN buffers {}",
    "train.dtype": "{}",
    "train.optimizer": "optimizer {}",
    "train.momentum": "momentum {}",
    "train.weight_decay": "weight decay {}",
    "train.optimizer_state": "optimizer state {}",
    "train.lr_schedule": "lr schedule {}",
    "train.lr_step_every": "lr step every {} rounds",
    "train.lr_gamma": "lr gamma {}",
    "train.val_share": "validation share {}",
    "train.eval_repeats": "{} readings of a random test",
    "train.new_clients": "{} new clients",
    "train.new_every": "new clients every {} rounds",
    "train.new_epochs": "{} epochs of new clients",
    "train.new_samples": "{} samples of new clients",
    "train.join_ratio_low": "join ratio from {}",
    "train.dropout": "dropout {}",
    "train.slowest": "slowest device 1/{}",
    "train.flops_per_second": "{} FLOP/s",
    "train.bandwidth": "{} bytes/s",
    "train.latency": "latency {} s",
    "train.deadline": "deadline {} s",
    "train.upload": "upload {}",
    "version": "v{}",
}
# Plain local training by SGD, tested on clients' own data.
_UNSAID = {
    "partition.central_test": False,
    "train.optimizer": "sgd",
    "train.optimizer_state": "fresh",
    "train.lr_schedule": "constant",
}
_ONE = {
    "partition.clients": "1 client",
    "train.rounds": "1 round",
    "train.local_epochs": "1 local epoch",
    "train.eval_every": "evaluated every round",
    "partition.min_samples": "at least 1 sample",
    "train.lr_step_every": "lr step every round",
    "train.new_clients": "1 new client",
    "train.new_every": "new clients every round",
    "train.new_epochs": "1 epoch of new clients",
    "train.new_samples": "1 sample of new clients",
}


def method_title(name: str, plugin_title: str | None = None) -> str:
    """'fedrep+ala' -> 'FedRep+ALA'. plugin_title: of a method from outside; without one it has its name."""
    base, plus, _ = name.partition("+ala")
    return methods.card(name).title or (plugin_title or base) + ("+ALA" if plus else "")


def method_rank(name: str) -> tuple[bool, int, str]:
    """Sorting key: the order of pflbench's methods, then the same with ALA plugged in, then other names by alphabet."""
    base, plus, _ = name.partition("+ala")
    return (bool(plus), *rank(methods.METHODS, base))


def dataset_title(spec: dict[str, Any]) -> str:
    """'MNIST', 'AG News (test)', 'MNIST, other content 1a2b3c'; own data by the last part of its path."""
    return label_title(dataset_label(spec) + other_content(spec))


def dataset_label(spec: dict[str, Any]) -> str:
    """What is named, whatever its content: 'mnist', 'agnews:test', 'folder:PATH'."""
    data = spec["data"]
    rest = data.get("path") or data.get("variant")
    return f"{data['name']}:{rest}" if rest else str(data["name"])


def without_folder(label: str) -> str:
    """Own data as their runs are labelled, wherever they lie: 'npz:mine.npz'."""
    kind, colon, rest = label.partition(":")
    return f"{kind}:{PurePath(rest).name}" if colon else label


def other_content(spec: dict[str, Any]) -> str:
    """', other content 1a2b3c' of a dataset with other content than the official one, else ''."""
    data = spec["data"]
    return f"{OTHER_CONTENT}{data['content'][:6]}" if data.get("content") and not data.get("path") else ""


def content_notes(spec: dict[str, Any]) -> tuple[str, ...]:
    """What sets such a content apart from the paper's: the official data, in their order."""
    if not other_content(spec):
        return ()
    title = label_title(dataset_label(spec))
    return (f"{title} here has other content than the official files: {spec['data']['content'][:6]}",)


def without_content(label: str) -> str:
    """'mnist, other content 1a2b3c' -> 'mnist'; other labels as they are."""
    named, between, _ = label.partition(OTHER_CONTENT)
    return named if between and named.partition(":")[0] in DATASETS else label


def label_title(label: str) -> str:
    """As `dataset_title`, from the label that run and partition rows carry: that of DataSpec."""
    named = without_content(label)
    name, _, rest = named.partition(":")
    if name in DATASETS:
        return (f"{DATASETS[name]} ({rest})" if rest else DATASETS[name]) + label.removeprefix(named)
    return _place_title(rest) or label


def _place_title(path: str) -> str:
    """'images' of '/data/images', 'blobs' of '/data/own.py:blobs'."""
    return (PurePath(path).name or path).rpartition(".py:")[2]


def names(label: str) -> set[str]:
    """What a dataset of this label may be called: label or title, with its content or, as on the command line, without."""
    return {label, label_title(label), without_content(label), label_title(without_content(label))}


def recorded_content(environment: dict[str, Any]) -> str | None:
    """What a run's record says of the content of its data: 'official, hash 1a2b3c...'; None where it says nothing."""
    recorded = environment.get("data", {})
    return f"{recorded['state']}, hash {str(recorded['hash'])[:16]}" if {"state", "hash"} <= recorded.keys() else None


def rank(names: Sequence[str] | dict[str, str], name: str) -> tuple[int, str]:
    """Sorting key: listed names in their order, then others in alphabetical order."""
    order = list(names)
    return (order.index(name) if name in order else len(order), name)


def flat(value: dict[str, Any]) -> dict[str, Any]:
    """{'train': {'lr': 0.1}} -> {'train.lr': 0.1}, without what goes without saying (`_UNSAID`) and values of None.

    Paths are left out: where data lies is no part of a protocol.
    """
    return {
        key: item
        for key, item in points.flat(value)
        if key.rpartition(".")[2] != "path" and item is not None and item != _UNSAID.get(key)
    }


def telling_apart(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each flat dict, the entries in which the dicts are not all equal; a model's code where several have its name."""
    missing = object()
    keys = sorted({key for item in items for key in item})
    differ = [k for k in keys if any(item.get(k, missing) != items[0].get(k, missing) for item in items)]
    codes = {(item.get("model"), item.get(MODEL_CODE)) for item in items}
    shared = Counter(model for model, _ in codes)
    return [{k: item[k] for k in differ if k in item and (k != MODEL_CODE or shared[item.get("model")] > 1)} for item in items]


def words(key: str, value: Any) -> str:
    """'train.rounds', 20 -> '20 rounds'; hyperparameters and other values: 'p=2'."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if key == "model":
        return models.title(text)
    if key == MODEL_CODE:
        return f"code {text[:6]}"
    if key in ("data.content", "partition.content", "partition hash"):
        return f"{key.removesuffix('.content')} {text[:8]}"
    if key in _ITEMS:
        return _ONE[key] if text == "1" and key in _ONE else _ITEMS[key].format(text)
    return f"{key.rpartition('.')[2]}={text}"


def prefix(number: float) -> tuple[str, int]:
    """The largest of PREFIXES that the number reaches, and its factor: 3e7 -> ('M', 1000000)."""
    return max(((name, factor) for name, factor in PREFIXES.items() if factor <= number), key=lambda one: one[1], default=("", 1))


def number(value: float, form: str) -> str:
    """The value in this format, but '12,345' instead of '1.234e+04'."""
    text = format(value, form)
    return f"{value:,.0f}" if "e+" in text else text


def counted(number: int, thing: str) -> str:
    """'run' -> '1 run' or '2 runs'."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def between(numbers: Collection[int], thing: str) -> str:
    """{3, 5}, 'run' -> '3 to 5 runs'; '3 runs' where all are the same."""
    low, high = min(numbers), max(numbers)
    return f"{low} to {high} {thing}s" if low < high else counted(high, thing)


def some(titles: Sequence[str], most: int = 4) -> str:
    """'MNIST / Cifar10 and 3 more'."""
    rest = len(titles) - most
    return " / ".join(titles[:most]) + (f" and {rest} more" if rest > 0 else "")
