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
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.run.plan import RunOptions

Given = Mapping[str, Any]
"""The values of a group's options, by field."""
Group = Mapping[str, Parameter]
"""Options as parameters of a command, by field."""


def method_names(context: typer.Context) -> Iterable[str]:
    """For the completion of a method, also of --plugin files; nothing if a file is broken."""
    from pflbench.methods import names
    from pflbench.plugins.methods import plugged_in

    with suppress(UserError), plugged_in(context.params.get("plugins") or ()):
        return names(with_ala=True)
    return ()


def complete_setting(context: typer.Context, incomplete: str) -> list[str]:
    """Completes METHOD.NAME=VALUE for the methods of -m, or for the method that was typed."""
    from pflbench.methods import hyperparameters, names
    from pflbench.plugins.methods import plugged_in

    method, dot, _ = incomplete.partition(".")
    offered: list[str] = []
    with suppress(UserError), plugged_in(context.params.get("plugins") or ()):
        asked = [method] if dot else context.params.get("methods") or ()
        offered = [f"{one}.{hyper.name}=" for one in asked for hyper in hyperparameters(one)]
        offered = offered or [f"{one}." for one in names(with_ala=True)]
    return offered


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


def auto_or_number(text: str | int) -> int | None:
    if text == "auto":
        return None
    if not str(text).isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"'{text}' is neither auto nor a number, at least 1")
    return int(text)


def _share(text: str) -> float | str:
    """Of a GPU. Typer shows the default by this, too."""
    if text == "auto":
        return text
    with suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise typer.BadParameter(f"'{text}' is neither auto nor a share of a GPU, at most 1: a run uses one")


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


def without(options: Group, *names: str) -> Group:
    return {name: option for name, option in options.items() if name not in names}


def group(panel: str | None = None, **options: tuple[Any, Any]) -> Group:
    """A panel of the help. options: annotated type and default by field."""
    for kind, _ in options.values():
        kind.__metadata__[0].rich_help_panel = panel
    return {
        name: Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    }


def option(kind: Any, help: str, *flags: str, default: Any = None, complete: Any = None, **more: Any) -> tuple[Any, Any]:
    """Annotated type and default of an option. complete: gives the names to complete it with.

    It is called only when the shell asks, since it may import much. Typer keeps the names that begin as what was typed.
    """
    if complete:
        more = {"metavar": "NAME", **more}
    kind = kind | None if default is None else kind
    return Annotated[kind, typer.Option(*flags, help=help, autocompletion=complete, **more)], default


def flag(help: str, *flags: str) -> tuple[Any, Any]:
    return Annotated[bool, typer.Option(*flags, help=help)], False


def several(help: str, *flags: str, kind: Any = str, **more: Any) -> tuple[Any, Any]:
    """An option that may be repeated."""
    return option(list[kind], help, *flags, default=[], **more)


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
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

MAIN = group(
    methods=option(list[str], "A method; repeat for several.", "--method", "-m", default=Parameter.empty, complete=method_names),
    plugins=several(
        "A Python file with methods of your own; repeatable. PFLBENCH_PLUGINS names more files, separated as in PATH.",
        "--plugin",
        kind=Path,
        metavar="FILE.py",
        is_eager=True,
        callback=_plug_in,
    ),
    datasets=several(
        "A dataset (see `pflbench data list`), folder:PATH, domains:PATH, npz:PATH, csv:PATH, leaf:PATH or FILE.py:NAME; "
        "repeat for several. Default: digits.",
        "--dataset",
        "-d",
        complete=dataset_names,
    ),
    model=option(str, "A model, or your own as FILE.py:NAME. Default: the paper's model for the dataset.", complete=models),
    settings=several(
        "A hyperparameter (see `pflbench methods show`), e.g. fedala.p=2; repeatable. In `run` and `sweep` a list means a run "
        "for each value: fedala.p=1,2,4.",
        "--set",
        metavar="METHOD.NAME=VALUE",
        complete=complete_setting,
    ),
    ala=flag("Plug ALA into each method, as in Table 4; the same as -m NAME+ala.", "--ala"),
    preset=option(
        str,
        "A set of hyperparameters, which --set overrides. fedala2022: PFLlib's when the FedALA paper was written; "
        "heurfedamp2021: those of HeurFedAMP's authors.",
        complete=_presets,
    ),
    seed=option(int, "Seed for initialisation, batch order and client sampling. Default: 0."),
    seeds=option(str, "Several runs of each method: 0-4 or 0,2,5.", metavar="LIST"),
)
PARTITION = group(
    "Partition",
    partition=option(
        str,
        "dirichlet, pathological, iid, groups, natural (a client for each owner of samples) or pfllib:PATH (a PFLlib folder). "
        "Default: dirichlet.",
        "--partition",
        "-p",
        metavar="SCHEME",
        complete=_partitions,
    ),
    clients=option(int, "Number of clients. Default: 20 (digits: 10); natural: all owners with enough samples."),
    beta=option(float, "dirichlet: smaller is more heterogeneous. Default: 0.1."),
    classes_per_client=option(int, "pathological: classes a client holds. Default: 2 of 10, 10 of 100."),
    balanced=option(bool, "pathological: equal shares of a class. Default: unbalanced.", "--balanced/--unbalanced"),
    min_samples=option(
        int,
        "dirichlet, pathological, natural: fewest samples of a client. Default: 40, or half an equal share if that is less; "
        "dirichlet: what draws can reach of it; natural: 2.",
    ),
    iid_shares=option(Literal["equal", "reference"], "iid: equal shares, or PFLlib's unequal ones. Default: equal."),
    groups=option(int, "groups: number of groups of clients. Default: 5."),
    dominant_share=option(float, "groups: share of a client's samples from its group's classes. Default: 0.8."),
    group_sizes=option(str, "groups: samples per client of each group. Default: equal.", metavar="N,N,..."),
    partition_seed=option(int, "Seed of the partition, the same for all --seeds, as in the paper. Default: 1."),
    test_share=option(float, "Share of each client's samples used as its test set. Default: 0.25."),
    central_test=option(
        bool,
        "Clients share only the official training part; the global model is also tested on the official test part.",
        "--central-test",
    ),
)
TRAINING = group(
    "Training",
    rounds=option(int, "Default: 2000 (digits: 50).", "--rounds", "-r"),
    local_epochs=option(int, "Default: 1."),
    batch_size=option(int, "Default: 10."),
    lr=option(float, "Local learning rate. Default: the paper's for model and dataset; adamw: 0.001."),
    join_ratio=option(float, "Share of the clients that join a round. Default: 1."),
    eval_every=option(int, "Evaluate every so many rounds. Default: 1."),
    evaluate=option(
        Literal["participants", "all"],
        "Which clients to evaluate when --join-ratio is below 1; all: also those outside the cohort, as if they had joined. "
        "Default: participants.",
    ),
    drop_last=option(
        Literal["auto", "always", "never"],
        "Drop a client's last partial batch; auto keeps it if it is the only one. Default: auto.",
    ),
    bn_buffers=option(
        Literal["local", "average", "reset"],
        "BatchNorm's running statistics: kept by each client, averaged, or reset in each round. Default: local.",
    ),
    dtype=option(
        Literal["float32", "float64", "tf32"],
        "Default: float32. tf32: faster matrix products on a GPU, with factors rounded to 10 bits.",
    ),
    optimizer=option(Literal["sgd", "momentum", "adamw"], "Optimizer for local training (PyTorch's SGD or AdamW). Default: sgd."),
    momentum=option(float, "momentum: the momentum factor. Default: 0.9."),
    weight_decay=option(float, "sgd, momentum: as L2; adamw: decoupled. Default: 0; adamw: 0.01."),
    optimizer_state=option(
        Literal["fresh", "kept"],
        "momentum, adamw: reset a client's state in each round, or keep it until the client joins again. Default: fresh.",
    ),
    lr_schedule=option(
        Literal["constant", "cosine", "step"],
        "Schedule of the local learning rate over the rounds. cosine: half a cosine, to 0 after the last round; step: see "
        "--lr-step-every. Default: constant.",
    ),
    lr_step_every=option(int, "step: multiply the rate by --lr-gamma every so many rounds.", metavar="ROUNDS"),
    lr_gamma=option(float, "step: the factor of the learning rate. Default: 0.1."),
    val_share=option(
        float,
        "Share of each client's training samples that is set aside for validation: `table accuracy --round-rule val` chooses "
        "rounds by it. Default: 0.",
    ),
    eval_repeats=option(
        int, "Readings of a test that is random, as Per-FedAvg's on one batch; their mean counts. Default: 1.", metavar="N"
    ),
    new_clients=option(
        int,
        "Set the partition's last K clients aside: they never join, and after the last round adapt what the method gives a new "
        "client. See `table new-clients`. Default: 0.",
        metavar="K",
    ),
    new_every=option(int, "--new-clients: test them every so many rounds, too. Default: after the last round.", metavar="ROUNDS"),
    new_epochs=option(int, "--new-clients: they adapt for so many epochs, and are tested after each. Default: 5."),
    new_samples=option(int, "--new-clients: at most so many training samples of each. Default: all.", metavar="N"),
)
BEHAVIOUR = group(
    "Behaviour of clients",
    join_ratio_low=option(
        float, "In each round draw the join ratio uniformly from this to --join-ratio. Default: always --join-ratio.", metavar="R"
    ),
    dropout=option(
        float, "Probability with which a client fails after its training: the round's work is lost. Default: 0.", metavar="P"
    ),
    flops_per_second=option(
        float, "Speed of the fastest device: local training then takes simulated time. Default: it takes none.", metavar="X"
    ),
    slowest=option(
        float,
        "Devices are up to so many times slower than the fastest: log-uniform, by --partition-seed. Default: 1.",
        metavar="F",
    ),
    bandwidth=option(
        float, "Bytes per second of each client's network, each way. Default: transfers take no time.", metavar="BYTES"
    ),
    latency=option(float, "Simulated latency of each client's network, each way. Default: 0.", metavar="SECONDS"),
    deadline=option(
        float, "Simulated time of a round: the work of clients that would take longer is lost. Default: none.", metavar="SECONDS"
    ),
    upload=option(
        str,
        "int8: clients send the change of a model as 8-bit integers; topk:0.01: its largest 1 %, the rest later. Default: full.",
        metavar="full|int8|topk:SHARE",
    ),
)
EXECUTION = group(
    "Execution",
    device=option(
        str, "auto: a GPU if there is one.", default="auto", complete=lambda: ("auto", "cpu", "cuda"), metavar="auto|cpu|cuda[:N]"
    ),
    engine=option(
        Literal["auto", "loop", "batched"],
        "loop: clients side by side on CPU cores; batched: all clients in one program. auto: loop on CPU, batched on GPU.",
        default="auto",
    ),
    workers=option(int, "loop: clients trained side by side. Default: all cores.", min=1, max=1024),
    chunk=option(
        int, "batched: clients at a time; auto (default): as many as fit the memory.", metavar="auto|N", parser=auto_or_number
    ),
    pack=option(int, "batched: train up to N runs that differ only in the seed together.", default=1, metavar="N", min=1),
    capture=option(
        Literal["auto", "graph", "none"],
        "batched: capture of training steps. graph: as CUDA graphs (auto on a GPU); none: no capture (auto on a CPU).",
        default="auto",
    ),
    convolution=option(
        Literal["auto", "groups", "search", "unfold"],
        "batched on a GPU: convolutions of all clients at once. groups: one convolution in groups, cuDNN chooses its "
        "algorithm by rules; search: by trying some; unfold: products of matrices; auto: the fastest, timed at the start.",
        default="auto",
    ),
    deterministic=flag(
        "On a GPU: the same bits from the same command, by slower deterministic operations and without choices by measurement "
        "or free memory. A CPU always gives the same bits.",
        "--deterministic",
    ),
    checkpoint_every=option(float, "Shortest time between two checkpoints.", default=30.0, metavar="SECONDS", min=0),
    checkpoints=option(
        str,
        "Where checkpoints are stored: a folder that machines may share, or a URL of fsspec, as s3://bucket/name. "
        "Default: beside an SQLite database; with a server in ~/.local/state/pflbench.",
        envvar="PFLBENCH_CHECKPOINTS",
        metavar="PATH|URL",
    ),
    save_artifacts_every=option(
        int,
        "Save a method's artifacts (weights, attention, strategies: large) every so many rounds. Default: 0, never.",
        default=0,
        metavar="ROUNDS",
        min=0,
    ),
    test_after_training=flag(
        "Test the cohort's models right after local training, too: the series 'after training' (--metric after-training).",
        "--test-after-training",
    ),
    metrics_every=option(
        int,
        "Compute AUC, balanced accuracy and macro-F1 in those evaluated rounds (--eval-every) that are multiples of this, and "
        "after the last: see `table --metric` and `export measures`. Default: 0, never.",
        default=0,
        metavar="ROUNDS",
        min=0,
    ),
    trajectory=option(
        str,
        "Keep this client's models at the start and end of these rounds, for `plot trajectory`: very large.",
        metavar="CLIENT:FROM-TO",
    ),
    record_host=flag("Store this machine's name and full paths with the runs. Passwords are never stored.", "--record-host"),
    force=flag("Run finished runs again; the old results are kept.", "--force"),
)
EXECUTORS = group(
    "Executors",
    executor=option(
        Literal["local", "ray", "slurm"],
        "Workers: processes of this machine, a Ray cluster, or a Slurm cluster. Default: local, or that of the sweep's first "
        "command.",
    ),
    jobs=option(
        int,
        "Runs, or packs, at a time. auto (default): one for each core or GPU, as memory allows; on a cluster as many as it has "
        "room for.",
        "--jobs",
        "-j",
        metavar="auto|N",
        parser=auto_or_number,
    ),
    cpus_per_job=option(int, "Cores of each worker. Default: locally an equal share of all, on a cluster 1.", metavar="N", min=1),
    gpus_per_job=option(
        str,
        "GPUs of each worker: 0.5 puts two on one GPU; auto: as many as fit its memory by the estimate. Default: 1.",
        metavar="auto|SHARE",
        parser=_share,
    ),
    ray_address=option(
        str,
        "ray: the head of the cluster. Default: RAY_ADDRESS, else a cluster of this machine, else a new one.",
        metavar="HOST:PORT",
    ),
    slurm=several(
        "slurm: an option of sbatch, such as partition=gpu, account=..., time=4:00:00; setup='module load cuda': a command "
        "before the worker; repeatable. Default: time=60; unfinished runs continue in another job.",
        metavar="KEY=VALUE",
    ),
)
Plugins = MAIN["plugins"].annotation
Checkpoints = EXECUTION["checkpoints"].annotation
ALL = {**MAIN, **PARTITION, **TRAINING, **BEHAVIOUR, **EXECUTION}
