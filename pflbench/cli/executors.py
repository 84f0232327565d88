"""The options for the workers of a sweep: `--executor local|ray|slurm`, and those of each executor."""

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
            help="Workers: processes of this machine, a Ray cluster, or a Slurm cluster. Default: local, or that of the sweep's "
            "first command.",
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
            help="Runs, or packs, at a time. auto (default): one for each core or GPU, as memory allows; on a cluster as many as "
            "it has room for.",
        ),
    ),
    cpus_per_job=(
        int | None,
        None,
        typer.Option(metavar="N", min=1, help="Cores of each worker. Default: locally an equal share of all, on a cluster 1."),
    ),
    gpus_per_job=(
        str | None,
        None,
        typer.Option(
            metavar="auto|SHARE",
            parser=_share,
            help="GPUs of each worker: 0.5 puts two on one GPU; auto: as many as fit its memory by the estimate. Default: 1.",
        ),
    ),
    ray_address=(
        str | None,
        None,
        typer.Option(
            metavar="HOST:PORT",
            help="ray: the head of the cluster. Default: RAY_ADDRESS, else a cluster of this machine, else a new one.",
        ),
    ),
    slurm=(
        list[str],
        [],
        typer.Option(
            metavar="KEY=VALUE",
            help="slurm: an option of sbatch, such as partition=gpu, account=..., time=4:00:00; setup='module load "
            "cuda': a command before the worker; repeatable. Default: time=60; unfinished runs continue in another job.",
        ),
    ),
)
