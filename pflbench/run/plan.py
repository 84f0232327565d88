"""Completes the options of `run` to specifications, one for each method, dataset and seed, with the papers' protocol as default.

Nothing is trained here. Data are hashed, since their content is part of a run's key.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pflbench import data, methods, models
from pflbench.errors import UserError, unknown, why
from pflbench.methods.cards import SUFFIX
from pflbench.partition import natural
from pflbench.partition.pfllib import describe
from pflbench.run.canonical import canonical
from pflbench.run.options import RunOptions
from pflbench.spec import (
    IID,
    OPTION_OF,
    DataSpec,
    Dirichlet,
    Groups,
    MethodSpec,
    Natural,
    PartitionSpec,
    Pathological,
    RunSpec,
    TrainSpec,
)

S = TypeVar("S")
Parsed = dict[str, Any]
"""Specifications of data and of PFLlib's folders, by their text on the command line."""

MAX_SEEDS = 1000
LARGEST_FLOAT32 = 3.4028234e38
ADAMW_LR = 0.001  # torch.optim.AdamW's: the papers' rates are those of SGD

_CLASSES: dict[str, Any] = {cls.model_fields["scheme"].default: cls for cls in (Pathological, Dirichlet, IID, Groups, Natural)}
SCHEMES: dict[str, dict[str, str]] = {
    name: {OPTION_OF.get(field, field): field for field in cls.model_fields if field != "scheme"}
    for name, cls in _CLASSES.items()
} | {"pfllib": {}}
"""Of each scheme the options (as fields of RunOptions) -> fields of its specification. It refuses all other options."""

# Label -> scheme, the option that stands in brackets, and its type.
_LABELLED: dict[str, tuple[str, str, Callable[[str], float]]] = {
    "Dir": ("dirichlet", "beta", float),
    "Pathological": ("pathological", "classes_per_client", int),
    "Groups": ("groups", "groups", int),
}


def plan(wanted: RunOptions, parsed: Parsed | None = None) -> list[RunSpec]:
    """All validated runs, ordered by dataset, seed, method, so that comparable results come together.

    parsed: a cache of data and partitions for callers of many plans, since reading them takes time.
    Raises UserError for unknown names, values out of range and options of another partition.
    """
    if not wanted.methods:
        raise UserError("No method given.", f"Add -m/--method, one or more of: {', '.join(sorted(methods.names()))}.")
    names = _names(wanted)
    settings, seeds = _settings(wanted.settings, names), seed_list(wanted)
    places = _places(wanted, {} if parsed is None else parsed)
    trained = [methods.spec(name, settings[name], wanted.preset) for name in names]
    specs = [
        _run(wanted, dataset, partition, method, seed) for dataset, partition in places for seed in seeds for method in trained
    ]
    warnings(specs)  # for its errors
    return specs


def partition_options(label: str) -> dict[str, Any]:
    """The fields of RunOptions for a partition's label: "Dir(0.1)", "Pathological(2)", "Groups(5)", "IID", "Natural".

    Raises UserError for another label.
    """
    if label.casefold() in ("iid", "natural"):
        return {"partition": label.casefold()}
    for title, (scheme, option, read) in _LABELLED.items():
        if match := re.fullmatch(rf"{title}\((\d+(?:\.\d+)?)\)", label, re.IGNORECASE):
            with suppress(ValueError):
                return {"partition": scheme, option: read(match[1])}
    raise UserError(f"Unknown partition '{label}'.", "Write Dir(0.1), Pathological(2), Groups(5), IID or Natural.")


def warnings(specs: Sequence[RunSpec]) -> list[str]:
    """The methods' warnings about the protocol, each once. Raises UserError for combinations that cannot work."""
    for spec in specs:
        _require_optimizer(spec)
        _require_upload(spec)
    return list(dict.fromkeys(f"{s.method.name}: {text}" for s in specs for text in methods.make(s.method).check(s.train)))


def _require_optimizer(spec: RunSpec) -> None:
    """Raises UserError for another optimizer than plain SGD with a method that has a step of its own."""
    cls = methods.load(spec.method.name)
    if spec.train.plain_sgd or not cls.optimizer_refused:
        return
    asked = "weight decay" if spec.train.optimizer == "sgd" else f"--optimizer {spec.train.optimizer}"
    fitting = ", ".join(name for name in methods.METHODS if not methods.card(name).optimizer_refused)
    raise UserError(f"{cls.title} does not work with {asked}: {cls.optimizer_refused}.", f"Methods that do: {fitting}.")


def _require_upload(spec: RunSpec) -> None:
    """Raises UserError for compressed uploads of a method that would compress the client's own model with them."""
    cls = methods.load(spec.method.name)
    if spec.train.upload != "full" and cls.upload_refused:
        raise UserError(
            f"{cls.title} does not work with --upload {spec.train.upload}: {cls.upload_refused}.",
            f"Leave out --upload, or -m {spec.method.name}.",
        )


def preset_notes(wanted: RunOptions) -> list[str]:
    """The methods that a preset does not change, and values that it leaves out since they use test labels (methods.md 0.6)."""
    names, preset = _names(wanted), wanted.preset
    if preset is None:
        return []
    settings = _settings(wanted.settings, names)
    left_out = {name: methods.load(name).presets_on_test_labels.get(preset, {}) for name in names}
    same = [n for n in names if not left_out[n] and methods.spec(n, {}, preset) == methods.spec(n, {})]
    unchanged = [f"--preset {preset} changes nothing of {', '.join(same)}."] if same else []
    return unchanged + [
        f"--preset {preset} leaves {name} as it is: {item}={value} adapts on test labels. Ask for it: --set {name}.{item}={value}"
        for name in names
        for item, value in left_out[name].items()
        if item not in settings[name]
    ]


def _names(wanted: RunOptions) -> tuple[str, ...]:
    if wanted.preset is not None and wanted.preset not in methods.PRESETS:
        raise unknown("preset", wanted.preset, methods.PRESETS)
    names = [method_name(name, wanted.ala) for name in wanted.methods]
    for name in names:
        methods.load(name)
    return tuple(dict.fromkeys(names))


def _places(wanted: RunOptions, parsed: Parsed) -> list[tuple[DataSpec, PartitionSpec]]:
    """Data and partition of each dataset. A PFLlib folder contains its data: -d then only names the dataset."""
    scheme, _, path = (wanted.partition or "dirichlet").partition(":")
    if scheme not in SCHEMES:
        raise unknown("partition", scheme, [*_CLASSES, "pfllib:PATH"])
    for option in (name for options in SCHEMES.values() for name in options):
        if getattr(wanted, option) is not None and option not in SCHEMES[scheme]:
            owners = " and ".join(name for name, options in SCHEMES.items() if option in options)
            raise UserError(f"{_flag(option)} does not belong to --partition {scheme}.", f"It belongs to {owners}.")
    if scheme == "pfllib":
        return [_pfllib(wanted, path, parsed)]
    if path:
        raise UserError(f"--partition {scheme} takes no path.", "Only pfllib does: --partition pfllib:PATH.")
    names = dict.fromkeys(wanted.datasets or ("digits",))
    for text in names:
        if text not in parsed:
            parsed[text] = data.parse(text, wanted.data_dir)
    return [(parsed[text], _partition(wanted, scheme, parsed[text])) for text in names]


def _run(wanted: RunOptions, dataset: DataSpec, partition: PartitionSpec, method: MethodSpec, seed: int) -> RunSpec:
    defaults = data.defaults(dataset, wanted.data_dir)
    model, own = models.find(wanted.model or defaults.model)
    given = _given(wanted, {name: name for name in TrainSpec.model_fields})
    of_dataset = own or (dataset.name in data.DATASETS and model == defaults.model)
    lr = defaults.lr if of_dataset else models.learning_rate(model)
    lr = ADAMW_LR if wanted.optimizer == "adamw" else lr
    train = _make(TrainSpec, {"rounds": defaults.rounds, "lr": lr, **given})
    _require_floats(train, method)
    fields = {"data": dataset, "partition": partition, "model": model, "train": train, "method": method, "seed": seed}
    return canonical(_make(RunSpec, {**fields, "own_model": own}), wanted.data_dir)


def _require_floats(train: TrainSpec, method: MethodSpec) -> None:
    """Raises UserError for values that are finite in Python but infinite in the arithmetic of the run."""
    values = {"--lr": train.lr, "--weight-decay": train.weight_decay}
    for name, value in {**values, **{f"{method.name}.{name} =": v for name, v in method.hyperparameters.items()}}.items():
        if train.floats == "float32" and isinstance(value, (int, float)) and abs(value) > LARGEST_FLOAT32:
            raise UserError(f"{name} {value:g} is larger than any number of float32.", "It would be infinite in the run.")


def _partition(wanted: RunOptions, scheme: str, dataset: DataSpec) -> PartitionSpec:
    defaults = data.defaults(dataset, wanted.data_dir)
    own: dict[str, dict[str, Any]] = {
        "dirichlet": {"beta": defaults.beta},
        "pathological": {"classes_per_client": defaults.classes_per_client},
    }
    given = _given(wanted, SCHEMES[scheme])
    if scheme == "natural" and "clients" not in given:
        arrays = data.load(dataset, wanted.data_dir)
        owner = arrays.owner if arrays.owner is None or not wanted.central_test else arrays.owner[: arrays.train_size]
        own["natural"] = {"clients": len(natural.owners(owner, wanted.min_samples)[1])}
    if "group_sizes" in given:
        given["group_sizes"] = given["group_sizes"].split(",")
    made: PartitionSpec = _make(_CLASSES[scheme], {"clients": defaults.clients, **own.get(scheme, {}), **given}, SCHEMES[scheme])
    return made


def _pfllib(wanted: RunOptions, path: str, parsed: Parsed) -> tuple[DataSpec, PartitionSpec]:
    if not path:
        raise UserError("--partition pfllib needs a folder.", "Write --partition pfllib:PATH.")
    if len(set(wanted.datasets)) > 1:
        raise UserError(
            f"--partition pfllib:{path} holds one dataset, but -d names {len(set(wanted.datasets))}.",
            "Give one -d: it names the dataset for the model, the learning rate and the table.",
        )
    if (named := f"pfllib:{path}") not in parsed:
        parsed[named] = describe(Path(path).expanduser().absolute())
    partition = parsed[named]
    name = wanted.datasets[0] if wanted.datasets else _known_name(Path(path).resolve().name)
    if name.partition(":")[0] in data.SOURCES:
        raise UserError(
            f"--partition pfllib:{path} brings its own data, but -d names other data: {name}.",
            f"With pfllib, -d is one of: {', '.join(sorted(data.DATASETS))}.",
        )
    dataset = data.named(name)
    return dataset, partition


def _known_name(folder: str) -> str:
    """The dataset of a folder's name, such as "MNIST" or "TinyImagenet"."""
    for name, dataset in data.DATASETS.items():
        if re.sub(r"\W|_", "", folder.lower()) in (re.sub(r"\W", "", title.lower()) for title in (name, dataset.title)):
            return name
    raise UserError(
        f"The PFLlib folder '{folder}' does not have the name of a known dataset.",
        f"Name it with -d, one of: {', '.join(sorted(data.DATASETS))}.",
    )


def _given(wanted: RunOptions, options: Mapping[str, str]) -> dict[str, Any]:
    """The given options, under the names of the specification's fields."""
    return {field: value for option, field in options.items() if (value := getattr(wanted, option)) is not None}


def method_name(text: str, ala: bool) -> str:
    """The method's name, with +ala if ALA is plugged into it."""
    name = methods.in_any_case(text)
    return f"{name}{SUFFIX}" if ala and not name.endswith(SUFFIX) else name


def setting(text: str) -> tuple[str, str, str]:
    """Method, hyperparameter and value of a --set. Raises UserError for another form or an unknown method."""
    target, equals, value = text.partition("=")
    method, dot, parameter = target.strip().partition(".")
    if not (equals and dot and method and parameter):
        raise UserError(f"--set {text}: expected method.name=value.", "For example --set fedala.p=2.")
    method = methods.in_any_case(method)
    methods.load(method)
    return method, parameter, value.strip()


def _settings(texts: tuple[str, ...], names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for text in texts:
        method, parameter, value = setting(text)
        if method not in names and f"{method}{SUFFIX}" in names:
            method += SUFFIX
        if method not in names:
            raise UserError(f"--set {text}: {method} is not run by this command.", f"Add -m {method}, or drop the --set.")
        found[method][parameter] = value
    return found


def seed_list(wanted: RunOptions) -> list[int]:
    """The seeds of --seed and --seeds."""
    if wanted.seeds is None:
        return [0 if wanted.seed is None else wanted.seed]
    if wanted.seed is not None:
        raise UserError("--seed and --seeds exclude each other.", "Write --seed 3 for one run, --seeds 0-4 for several.")
    found: dict[int, None] = {}
    for part in wanted.seeds.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MAX_SEEDS:
            raise UserError(
                f"--seeds {wanted.seeds}: '{part}' is no seed, and no rising range of at most {MAX_SEEDS}.", "Write 0-4 or 0,2,5."
            )
        found.update(dict.fromkeys(range(first, last + 1)))
    return list(found)


def _make(kind: Callable[..., S], values: dict[str, Any], options: Mapping[str, str] | None = None) -> S:
    """The specification. Raises UserError that names the option. options: option -> field where the names differ."""
    option_of = {field: option for option, field in (options or {}).items()}
    try:
        return kind(**values)
    except ValidationError as error:
        details = error.errors()
    if not details[0]["loc"]:
        raise UserError(f"{why(details[:1]).capitalize()}.")
    field = details[0]["loc"][0]
    reason = why(detail for detail in details if detail["loc"][:1] == (field,))
    raise UserError(f"{_flag(option_of.get(str(field), str(field)))} {details[0]['input']} is not possible: {reason}.")


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
