"""The options of `run` and those that several commands share, each declared once, under the name of the field that it fills.

The fields are those of `plan.RunOptions` and of `run.execution.Execution`. None as default means "the paper's value for this
dataset", which the help names. The decorator `taking` gives a command groups of options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.run.plan import RunOptions

Given = Mapping[str, Any]
"""The values of a group's options, by field."""
Group = Mapping[str, Parameter]
"""Options as parameters of a command, by field."""


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Completes a name. `names` is called only when the shell asks, since it may import much."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def complete_method(context: typer.Context, incomplete: str) -> list[str]:
    """Completes a method's name, also of --plugin files; nothing if a file is broken."""
    from pflbench.methods import names
    from pflbench.plugins.methods import plugged_in

    with suppress(UserError), plugged_in(context.params.get("plugins") or ()):
        return [name for name in names(with_ala=True) if name.startswith(incomplete)]
    return []


def complete_setting(context: typer.Context, incomplete: str) -> list[str]:
    """Completes METHOD.NAME=VALUE for the methods of -m, or for the method that was typed."""
    from pflbench.methods import hyperparameters, names
    from pflbench.plugins.methods import plugged_in

    method, dot, rest = incomplete.partition(".")
    name, equals, _ = rest.partition("=")
    offered: list[str] = []
    with suppress(UserError), plugged_in(context.params.get("plugins") or ()):
        asked = [method] if dot else [one for one in context.params.get("methods") or () if one.startswith(method)]
        if not asked:
            offered = [f"{one}." for one in names(with_ala=True)]
        for one in asked:
            for hyper in hyperparameters(one):
                values = hyper.words if equals and hyper.name == name else ("",)
                offered += [f"{one}.{hyper.name}={value}" for value in values]
    return [text for text in offered if text.startswith(incomplete)]


def dataset_names() -> Iterable[str]:
    from pflbench.data import names

    return names()


def _presets() -> Iterable[str]:
    from pflbench.methods import PRESETS

    return PRESETS


def models() -> Iterable[str]:
    from pflbench.models import names

    return names()


def _partitions() -> Iterable[str]:
    from pflbench.run.plan import SCHEMES

    return [f"{name}:" if name == "pfllib" else name for name in SCHEMES]


def _clients_at_a_time(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"'{text}' is neither auto nor a number of clients, at least 1")
    return int(text)


def _plug_in(context: typer.Context, files: list[Path]) -> list[Path]:
    if files:
        from pflbench.plugins.methods import plugged_in

        context.with_resource(plugged_in(files))
    return files


def run_options(given: Given) -> RunOptions:
    """The plan.RunOptions of given values."""
    from pflbench.run.plan import RunOptions

    known: dict[str, Any] = {field.name: given[field.name] for field in fields(RunOptions) if field.name in given}
    known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return RunOptions(**known)


def taking(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: replaces the parameter of each group's name by the group's options, and passes their values to it."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [
            parameter.replace(kind=Parameter.KEYWORD_ONLY)
            for name, own in signature.parameters.items()
            for parameter in (groups[name].values() if name in groups else (own,))
        ]

        @wraps(command)
        def taken(**given: Any) -> None:
            command(**{name: {field: given.pop(field) for field in group} for name, group in groups.items()}, **given)

        taken.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        taken.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return taken

    return decorate


def only(*names: str, **defaults: Any) -> Group:
    """Some of all options, with other defaults if given."""
    return {name: ALL[name].replace(default=defaults.get(name, ALL[name].default)) for name in names}


def group(panel: str | None, **options: tuple[Any, Any, Any]) -> Group:
    """A panel of the help. options: type, default and typer.Option by field."""
    for _, _, option in options.values():
        option.rich_help_panel = panel
    return annotated(**{name: (Annotated[kind, option], default) for name, (kind, default, option) in options.items()})


def annotated(**options: tuple[Any, Any]) -> Group:
    """Options without a panel: annotated type and default by field."""
    return {
        name: Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    }


def _paper(kind: Any, *flags: str, **more: Any) -> tuple[Any, Any, Any]:
    """An option whose default is the paper's value."""
    return kind | None, None, typer.Option(*flags, **more)


def among(*names: str, shown: str = "") -> dict[str, Any]:
    """Completion and help of an option with a few valid words."""
    return {"metavar": shown or "|".join(names), "autocompletion": completion(lambda: names)}


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Db = Annotated[
    str,
    typer.Option("--db", envvar="PFLBENCH_DB", metavar="PATH|URL", help="Results database: a file or a SQLAlchemy URL."),
]
DataDir = Annotated[Path, typer.Option("--data-dir", envvar="PFLBENCH_DATA", metavar="PATH", help="Folder of the datasets.")]
Download = Annotated[
    bool,
    typer.Option(
        "--download/--no-download",
        envvar="PFLBENCH_DOWNLOAD",
        help="Download missing datasets; their size is printed first.",
    ),
]
DEFAULT_DB = "pflbench.db"
DEFAULT_DATA = Path("data")

_PLUGIN = typer.Option(
    "--plugin",
    metavar="FILE.py",
    is_eager=True,
    callback=_plug_in,
    help="A Python file with methods of your own; repeatable. PFLBENCH_PLUGINS names more files, separated as in PATH.",
)
Plugins = Annotated[list[Path], _PLUGIN]

MAIN = group(
    None,
    methods=(
        list[str],
        Parameter.empty,
        typer.Option("--method", "-m", metavar="NAME", autocompletion=complete_method, help="A method; repeat for several."),
    ),
    plugins=(list[Path], [], _PLUGIN),
    datasets=(
        list[str],
        [],
        typer.Option(
            "--dataset",
            "-d",
            metavar="NAME",
            autocompletion=completion(dataset_names),
            help="A dataset (see `pflbench data list`), folder:PATH, npz:PATH, csv:PATH or FILE.py:NAME; repeat for several. "
            "Default: digits.",
        ),
    ),
    model=_paper(
        str,
        metavar="NAME",
        autocompletion=completion(models),
        help="A model, or your own as FILE.py:NAME. Default: the paper's model for the dataset.",
    ),
    settings=(
        list[str],
        [],
        typer.Option(
            "--set",
            metavar="METHOD.NAME=VALUE",
            autocompletion=complete_setting,
            help="A hyperparameter (see `pflbench methods show`), e.g. fedala.p=2; repeatable. In `run` and `sweep` a list means "
            "a run for each value: fedala.p=1,2,4.",
        ),
    ),
    ala=(bool, False, typer.Option("--ala", help="Plug ALA into each method, as in Table 4; the same as -m NAME+ala.")),
    preset=_paper(
        str,
        metavar="NAME",
        autocompletion=completion(_presets),
        help="A set of hyperparameters, which --set overrides. fedala2022: PFLlib's when the FedALA paper was written; "
        "heurfedamp2021: those of HeurFedAMP's authors.",
    ),
    seed=_paper(int, help="Seed for initialisation, batch order and client sampling. Default: 0."),
    seeds=_paper(str, metavar="LIST", help="Several runs of each method: 0-4 or 0,2,5."),
)
PARTITION = group(
    "Partition",
    partition=_paper(
        str,
        "--partition",
        "-p",
        metavar="SCHEME",
        autocompletion=completion(_partitions),
        help="dirichlet, pathological, iid, groups or pfllib:PATH (a folder PFLlib wrote). Default: dirichlet.",
    ),
    clients=_paper(int, help="Number of clients. Default: 20 (digits: 10)."),
    beta=_paper(float, help="dirichlet: smaller is more heterogeneous. Default: 0.1."),
    classes_per_client=_paper(int, help="pathological: classes a client holds. Default: 2 of 10, 10 of 100."),
    balanced=_paper(bool, "--balanced/--unbalanced", help="pathological: equal shares of a class. Default: unbalanced."),
    min_samples=_paper(
        int,
        help="dirichlet, pathological: fewest samples of a client. Default: 40, or half an equal share if that is less; "
        "dirichlet: what draws can reach of it.",
    ),
    iid_shares=_paper(str, **among("equal", "reference"), help="iid: equal shares, or PFLlib's unequal ones. Default: equal."),
    groups=_paper(int, help="groups: number of groups of clients. Default: 5."),
    dominant_share=_paper(float, help="groups: share of a client's samples from its group's classes. Default: 0.8."),
    group_sizes=_paper(str, metavar="N,N,...", help="groups: samples per client of each group. Default: equal."),
    partition_seed=_paper(int, help="Seed of the partition, the same for all --seeds, as in the paper. Default: 1."),
    test_share=_paper(float, help="Share of each client's samples used as its test set. Default: 0.25."),
    central_test=_paper(
        bool,
        "--central-test",
        help="Clients share only the official training part; the global model is also tested on the official test part.",
    ),
)
TRAINING = group(
    "Training",
    rounds=_paper(int, "--rounds", "-r", help="Default: 2000 (digits: 50)."),
    local_epochs=_paper(int, help="Default: 1."),
    batch_size=_paper(int, help="Default: 10."),
    lr=_paper(float, help="Local learning rate. Default: the paper's for model and dataset; adamw: 0.001."),
    join_ratio=_paper(float, help="Share of the clients that join a round. Default: 1."),
    eval_every=_paper(int, help="Evaluate every so many rounds. Default: 1."),
    evaluate=_paper(
        str,
        **among("participants", "all"),
        help="Which clients to evaluate when --join-ratio is below 1; all: also those outside the cohort, as if they had joined. "
        "Default: participants.",
    ),
    drop_last=_paper(
        str,
        **among("auto", "always", "never"),
        help="Drop a client's last partial batch; auto keeps it if it is the only one. Default: auto.",
    ),
    bn_buffers=_paper(
        str,
        **among("local", "average", "reset"),
        help="BatchNorm's running statistics: kept by each client, averaged, or reset in each round. Default: local.",
    ),
    dtype=_paper(
        str,
        **among("float32", "float64", "tf32"),
        help="Default: float32. tf32: faster matrix products on a GPU, with factors rounded to 10 bits.",
    ),
    optimizer=_paper(
        str, **among("sgd", "momentum", "adamw"), help="Optimizer for local training (PyTorch's SGD or AdamW). Default: sgd."
    ),
    momentum=_paper(float, help="momentum: the momentum factor. Default: 0.9."),
    weight_decay=_paper(float, help="sgd, momentum: as L2; adamw: decoupled. Default: 0; adamw: 0.01."),
    optimizer_state=_paper(
        str,
        **among("fresh", "kept"),
        help="momentum, adamw: reset a client's state in each round, or keep it until the client joins again. Default: fresh.",
    ),
    lr_schedule=_paper(
        str,
        **among("constant", "cosine", "step"),
        help="Schedule of the local learning rate over the rounds. cosine: half a cosine, to 0 after the last round; step: see "
        "--lr-step-every. Default: constant.",
    ),
    lr_step_every=_paper(int, metavar="ROUNDS", help="step: multiply the rate by --lr-gamma every so many rounds."),
    lr_gamma=_paper(float, help="step: the factor of the learning rate. Default: 0.1."),
)
EXECUTION = group(
    "Execution",
    device=(
        str,
        "auto",
        typer.Option(**among("auto", "cpu", "cuda", shown="auto|cpu|cuda[:N]"), help="auto: a GPU if there is one."),
    ),
    engine=(
        str,
        "auto",
        typer.Option(
            **among("auto", "loop", "batched"),
            help="loop: clients side by side on CPU cores; batched: all clients in one program. auto: loop on CPU, "
            "batched on GPU.",
        ),
    ),
    workers=_paper(int, min=1, max=1024, help="loop: clients trained side by side. Default: all cores."),
    chunk=_paper(
        int,
        metavar="auto|N",
        parser=_clients_at_a_time,
        help="batched: clients at a time; auto (default): as many as fit the memory.",
    ),
    pack=(
        int,
        1,
        typer.Option(metavar="N", min=1, help="batched: train up to N runs that differ only in the seed together."),
    ),
    capture=(
        str,
        "auto",
        typer.Option(
            **among("auto", "graph", "none"),
            help="batched: capture of training steps. graph: as CUDA graphs (auto on a GPU); none: no capture (auto on a CPU).",
        ),
    ),
    convolution=(
        str,
        "auto",
        typer.Option(
            **among("auto", "groups", "search", "unfold"),
            help="batched on a GPU: convolutions of all clients at once. groups: one convolution in groups, cuDNN chooses its "
            "algorithm by rules; search: by trying some; unfold: products of matrices; auto: the fastest, timed at the start.",
        ),
    ),
    deterministic=(
        bool,
        False,
        typer.Option(
            "--deterministic",
            help="On a GPU: the same bits from the same command, by slower deterministic operations and without choices by "
            "measurement or free memory. A CPU always gives the same bits.",
        ),
    ),
    checkpoint_every=(float, 30.0, typer.Option(metavar="SECONDS", min=0, help="Shortest time between two checkpoints.")),
    checkpoints=_paper(
        str,
        envvar="PFLBENCH_CHECKPOINTS",
        metavar="PATH|URL",
        help="Where checkpoints are stored: a folder that machines may share, or a URL of fsspec, as s3://bucket/name. "
        "Default: beside an SQLite database; with a server in ~/.local/state/pflbench.",
    ),
    save_artifacts_every=(
        int,
        0,
        typer.Option(
            metavar="ROUNDS",
            min=0,
            help="Save a method's artifacts (weights, attention, strategies: large) every so many rounds. Default: never.",
        ),
    ),
    trajectory=_paper(
        str,
        metavar="CLIENT:FROM-TO",
        help="Keep this client's models at the start and end of these rounds, for `plot trajectory`: very large.",
    ),
    record_host=(
        bool,
        False,
        typer.Option("--record-host", help="Store this machine's name and full paths with the runs. Passwords are never stored."),
    ),
    force=(bool, False, typer.Option("--force", help="Run finished runs again; the old results are kept.")),
)
ALL = {**MAIN, **PARTITION, **TRAINING, **EXECUTION}
