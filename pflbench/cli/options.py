"""The options that several commands share, their help and the completion of names. Names are those of `plan.Wish`.

A default of None means "the paper's value for this dataset"; the help names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.run.plan import Wish

PARTITION = "Partition"
TRAINING = "Training"
EXECUTION = "Execution"
OUTPUT = "Output"


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Completes the beginning of a name; `names` imports its table of contents only when the shell asks."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def complete_method(context: typer.Context, incomplete: str) -> list[str]:
    """Completes a method's name, those of the line's --plugin files included; says nothing where one of them is broken."""
    from pflbench.methods import names
    from pflbench.methods.outside import plugged_in

    with suppress(UserError), plugged_in(context.params.get("plugins") or ()):
        return [name for name in names(with_ala=True) if name.startswith(incomplete)]
    return []


def complete_setting(context: typer.Context, incomplete: str) -> list[str]:
    """Completes METHOD.NAME=VALUE of the methods that the line names with -m, or of the one that was begun."""
    from pflbench.methods import hyperparameters, names
    from pflbench.methods.outside import plugged_in

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
    from pflbench.data import DATASETS

    return DATASETS


def _presets() -> Iterable[str]:
    from pflbench.methods import PRESETS

    return PRESETS


def models() -> Iterable[str]:
    from pflbench.models import MODELS

    return MODELS


def _partitions() -> Iterable[str]:
    from pflbench.run.plan import SCHEMES

    return [f"{name}:" if name == "pfllib" else name for name in SCHEMES]


def _one_of(*names: str) -> Callable[[str], list[str]]:
    return completion(lambda: names)


def _clients_at_a_time(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"'{text}' is neither auto nor a number of clients, at least 1")
    return int(text)


def _runs_at_a_time(text: str) -> str:
    if text != "auto" and (not text.isdecimal() or int(text) < 1):
        raise typer.BadParameter(f"'{text}' is neither auto nor a number of runs, at least 1")
    return text


def request(given: Mapping[str, Any]) -> Wish:
    """The plan.Wish of a command's parameters, which bear the names of its fields."""
    from pflbench.run.plan import Wish

    known: dict[str, Any] = {field.name: given[field.name] for field in fields(Wish) if field.name in given}
    known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return Wish(**known)


def _plug_in(context: typer.Context, files: list[Path]) -> list[Path]:
    if files:
        from pflbench.methods.outside import plugged_in

        context.with_resource(plugged_in(files))
    return files


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Db = Annotated[
    str,
    typer.Option("--db", envvar="PFLBENCH_DB", metavar="PATH|URL", help="Results database: a file or a SQLAlchemy URL."),
]
DataDir = Annotated[Path, typer.Option("--data-dir", envvar="PFLBENCH_DATA", metavar="PATH", help="Where datasets lie.")]
DEFAULT_DB = "pflbench.db"
DEFAULT_DATA = Path("data")

Methods = Annotated[
    list[str],
    typer.Option("--method", "-m", metavar="NAME", autocompletion=complete_method, help="A method; repeat for several."),
]
Plugins = Annotated[
    list[Path],
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        is_eager=True,
        callback=_plug_in,
        help="A file with methods of your own; repeatable. PFLBENCH_PLUGINS, separated as in PATH, names further ones.",
    ),
]
Datasets = Annotated[
    list[str],
    typer.Option(
        "--dataset",
        "-d",
        metavar="NAME",
        autocompletion=completion(dataset_names),
        help="A dataset (see `pflbench data list`), folder:PATH, npz:PATH or csv:PATH; repeat for several. Default: digits.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", autocompletion=completion(models), help="Default: the paper's model for the dataset."),
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="METHOD.NAME=VALUE",
        autocompletion=complete_setting,
        help="A hyperparameter (see `pflbench methods show`), e.g. fedala.p=2; repeatable.",
    ),
]
Ala = Annotated[
    bool,
    typer.Option("--ala", help="Plug ALA into each method, as in Table 4; the same as -m NAME+ala."),
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion(_presets),
        help="A set of hyperparameters, below --set; fedala2022: what PFLlib did when the FedALA paper was written; "
        "heurfedamp2021: the values of HeurFedAMP's authors.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Of initialisation, batches and sampling. Default: 0.")]
Seeds = Annotated[str | None, typer.Option(metavar="LIST", help="Several runs of each method: 0-4 or 0,2,5.")]

Partition = Annotated[
    str | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="SCHEME",
        autocompletion=completion(_partitions),
        help="dirichlet, pathological, iid, groups or pfllib:PATH (a folder PFLlib wrote). Default: dirichlet.",
        rich_help_panel=PARTITION,
    ),
]
Clients = Annotated[int | None, typer.Option(help="Number of clients. Default: 20 (digits: 10).", rich_help_panel=PARTITION)]
Beta = Annotated[
    float | None,
    typer.Option(help="dirichlet: smaller is more heterogeneous. Default: 0.1.", rich_help_panel=PARTITION),
]
ClassesPerClient = Annotated[
    int | None,
    typer.Option(help="pathological: classes a client holds. Default: 2 of 10, 10 of 100.", rich_help_panel=PARTITION),
]
Balanced = Annotated[
    bool | None,
    typer.Option(
        "--balanced/--unbalanced",
        help="pathological: equal shares of a class. Default: unbalanced.",
        rich_help_panel=PARTITION,
    ),
]
Least = Annotated[
    int | None,
    typer.Option(
        help="dirichlet, pathological: fewest samples of a client. Default: 40, or half an equal share if that is less.",
        rich_help_panel=PARTITION,
    ),
]
IidShares = Annotated[
    str | None,
    typer.Option(
        metavar="equal|reference",
        autocompletion=_one_of("equal", "reference"),
        help="iid: equal shares, or PFLlib's unequal ones. Default: equal.",
        rich_help_panel=PARTITION,
    ),
]
Groups = Annotated[int | None, typer.Option(help="groups: number of groups of clients. Default: 5.", rich_help_panel=PARTITION)]
DominantShare = Annotated[
    float | None,
    typer.Option(help="groups: share of a client's samples from its group's classes. Default: 0.8.", rich_help_panel=PARTITION),
]
GroupSizes = Annotated[
    str | None,
    typer.Option(metavar="N,N,...", help="groups: samples per client of each group. Default: equal.", rich_help_panel=PARTITION),
]
PartitionSeed = Annotated[
    int | None, typer.Option(help="The same for all --seeds, as in the paper. Default: 1.", rich_help_panel=PARTITION)
]
TestShare = Annotated[
    float | None,
    typer.Option(help="Share of each client's samples it tests on. Default: 0.25.", rich_help_panel=PARTITION),
]
CentralTest = Annotated[
    bool | None,
    typer.Option(
        "--central-test",
        help="Set the official test part aside: clients share the rest, and the one global model is tested on it as well.",
        rich_help_panel=PARTITION,
    ),
]

Rounds = Annotated[int | None, typer.Option("--rounds", "-r", help="Default: 2000 (digits: 50).", rich_help_panel=TRAINING)]
LocalEpochs = Annotated[int | None, typer.Option(help="Default: 1.", rich_help_panel=TRAINING)]
BatchSize = Annotated[int | None, typer.Option(help="Default: 10.", rich_help_panel=TRAINING)]
Lr = Annotated[
    float | None,
    typer.Option(help="Local learning rate. Default: the paper's for model and dataset.", rich_help_panel=TRAINING),
]
JoinRatio = Annotated[
    float | None, typer.Option(help="Share of the clients that join a round. Default: 1.", rich_help_panel=TRAINING)
]
EvalEvery = Annotated[int | None, typer.Option(help="Evaluate every so many rounds. Default: 1.", rich_help_panel=TRAINING)]
Evaluate = Annotated[
    str | None,
    typer.Option(
        metavar="participants|all",
        autocompletion=_one_of("participants", "all"),
        help="Whom to evaluate when --join-ratio is below 1; all: the others as if they had joined. Default: participants.",
        rich_help_panel=TRAINING,
    ),
]
DropLast = Annotated[
    str | None,
    typer.Option(
        metavar="auto|always|never",
        autocompletion=_one_of("auto", "always", "never"),
        help="Drop a client's last partial batch; auto keeps it if it is the only one. Default: auto.",
        rich_help_panel=TRAINING,
    ),
]
BnBuffers = Annotated[
    str | None,
    typer.Option(
        metavar="local|average|reset",
        autocompletion=_one_of("local", "average", "reset"),
        help="What becomes of BatchNorm's running statistics. Default: local.",
        rich_help_panel=TRAINING,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="float32|float64|tf32",
        autocompletion=_one_of("float32", "float64", "tf32"),
        help="Default: float32. tf32: faster products on a GPU, with 10 bits of each factor's fraction.",
        rich_help_panel=TRAINING,
    ),
]

Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda[:N]",
        autocompletion=_one_of("auto", "cpu", "cuda"),
        help="auto: a GPU if there is one.",
        rich_help_panel=EXECUTION,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="auto|loop|batched",
        autocompletion=_one_of("auto", "loop", "batched"),
        help="loop: clients side by side on CPU cores; batched: all clients in one program. auto: loop on CPU, batched on GPU.",
        rich_help_panel=EXECUTION,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="loop: clients trained side by side. Default: all cores.", rich_help_panel=EXECUTION),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        metavar="auto|N",
        parser=_clients_at_a_time,
        help="batched: clients at a time; auto (default): as many as there is memory for.",
        rich_help_panel=EXECUTION,
    ),
]
Pack = Annotated[
    str | None,
    typer.Option(
        metavar="auto|N",
        parser=_runs_at_a_time,
        autocompletion=_one_of("auto"),
        help="batched: runs that differ in the seed alone train together; auto (default on a GPU): as many as there is memory "
        "for. Default on a CPU: 1.",
        rich_help_panel=EXECUTION,
    ),
]
Capture = Annotated[
    str,
    typer.Option(
        metavar="auto|graph|compile|none",
        autocompletion=_one_of("auto", "graph", "compile", "none"),
        help="batched: how a step becomes one call. graph: a CUDA graph (auto on a GPU); compile: torch.compile; none (auto on a "
        "CPU): as it is.",
        rich_help_panel=EXECUTION,
    ),
]
Convolution = Annotated[
    str,
    typer.Option(
        metavar="auto|grouped|unfolded",
        autocompletion=_one_of("auto", "grouped", "unfolded"),
        help="batched: convolutions of all clients as one in groups, or as products of matrices. auto: on a GPU the faster one, "
        "measured; on a CPU grouped.",
        rich_help_panel=EXECUTION,
    ),
]
CheckpointEvery = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0, help="Shortest time between two checkpoints.", rich_help_panel=EXECUTION),
]
Trajectory = Annotated[
    str | None,
    typer.Option(
        metavar="CLIENT:FROM-TO",
        help="Keep this client's models at the start and end of these rounds, for `plot trajectory`: very large.",
        rich_help_panel=EXECUTION,
    ),
]
ObserveEvery = Annotated[
    int,
    typer.Option(
        metavar="ROUNDS",
        min=0,
        help="Keep what a method observes (weights, attention, strategies: large) every so many rounds. Default: never.",
        rich_help_panel=EXECUTION,
    ),
]
