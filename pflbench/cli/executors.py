"""The options that say who makes the runs of a sweep: `--executor local|ray|slurm`, and what goes with each."""

from __future__ import annotations

import typer

from pflbench.cli import options as o
from pflbench.cli.making import runs_at_a_time

PANEL = "Executors"


def _share(text: str) -> float | str | None:
    """Of a GPU. Typer shows the default by this, too."""
    if text == "auto":
        return text
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"'{text}' is neither auto nor a share of a GPU, at most 1: a run uses one")
    return share


EXECUTORS = o.group(
    PANEL,
    executor=(
        str | None,
        None,
        typer.Option(
            **o.among("local", "ray", "slurm"),
            help="Who makes the runs: processes of this machine, a Ray cluster, a Slurm cluster. Default: local, or what the "
            "sweep was begun with.",
        ),
    ),
    jobs=(
        int | None,
        None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="auto|N",
            parser=runs_at_a_time,
            help="Runs, or packs, at a time. auto (default): one for each core, or each GPU, as memory allows; on a cluster as "
            "many as there is room for.",
        ),
    ),
    cpus_per_job=(
        int | None,
        None,
        typer.Option(metavar="N", min=1, help="Cores of each. Default: locally an equal share of all, on a cluster 1."),
    ),
    gpus_per_job=(
        str | None,
        None,
        typer.Option(
            metavar="auto|SHARE",
            parser=_share,
            help="Of a GPU for each: 0.5 puts two on one; auto: as many as fit by what the runs need of its memory. Default: 1.",
        ),
    ),
    ray_address=(
        str | None,
        None,
        typer.Option(
            metavar="HOST:PORT",
            help="ray: the head of the cluster. Default: RAY_ADDRESS, else one that runs here, else a new one.",
        ),
    ),
    slurm=(
        list[str],
        [],
        typer.Option(
            metavar="KEY=VALUE",
            help="slurm: an option of sbatch, as partition=gpu, account=..., time=4:00:00, constraint=...; setup='module load "
            "cuda': a command before the worker; repeatable. Default: time=60; what is not done by then goes on in another job.",
        ),
    ),
)
