"""The options that several commands share, each declared once: here, in `run.options.RunOptions` or in `run.execution.Execution`.

The decorator `taking` gives a command groups of options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.run.options import RunOptions

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
    """The RunOptions of given values."""
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


def declared_options(cls: type, panel: str | None, **arguments: Mapping[str, Any]) -> Group:
    """The options of a panel that a dataclass declares by `option_field`. arguments: more of `option`, by field."""
    # Typer repeats an option whose type is a list, not one whose type is a tuple.
    kinds = {name: list[str] if kind == tuple[str, ...] else kind for name, kind in get_type_hints(cls).items()}
    options = {}
    for one in fields(cls):
        declared = one.metadata
        if declared and declared["panel"] == panel:
            more = {argument: values[one.name] for argument, values in arguments.items() if one.name in values}
            default = [] if one.default == () else one.default
            options[one.name] = option(
                kinds[one.name], declared["help"], *declared["flags"], default=default, **declared["more"], **more
            )
    return group(panel, **options)


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
DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        envvar="PFLBENCH_DATA",
        metavar="PATH",
        help="Folder of the datasets.",
        callback=lambda path: path.expanduser(),  # a shell leaves `~` in --data-dir=~/data and in a quoted variable
    ),
]
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

_COMPLETED = {
    "methods": method_names,
    "datasets": dataset_names,
    "model": models,
    "preset": _presets,
    "partition": _partitions,
    "settings": complete_setting,
}
PLUGINS = group(
    plugins=several(
        "A Python file with methods of your own; repeatable. PFLBENCH_PLUGINS names more files, separated as in PATH.",
        "--plugin",
        kind=Path,
        metavar="FILE.py",
        is_eager=True,
        callback=_plug_in,
    )
)
MAIN = {**declared_options(RunOptions, None, complete=_COMPLETED), **PLUGINS}
MAIN["methods"] = MAIN["methods"].replace(default=Parameter.empty)  # required
PARTITION = declared_options(RunOptions, "Partition", complete=_COMPLETED)
TRAINING = declared_options(RunOptions, "Training")
BEHAVIOUR = declared_options(RunOptions, "Behaviour of clients")
EXECUTION = {
    **declared_options(
        Execution, "Execution", parser={"chunk": auto_or_number}, complete={"device": lambda: ("auto", "cpu", "cuda")}
    ),
    **group(
        "Execution",
        trajectory=option(
            str,
            "Keep this client's models at the start and end of these rounds, for `plot trajectory`: very large.",
            metavar="CLIENT:FROM-TO",
        ),
        force=flag("Run finished runs again; the old results are kept.", "--force"),
    ),
}
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
