"""Submits a stored sweep to Slurm: a job array of workers (`pflbench sweep work`), which take runs from the database."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.run.execution import Execution
from pflbench.spec import RunSpec
from pflbench.sweep.choose_executor import ExecutorOptions, needed, require_shared

HOUR = 60  # default time limit of a worker, in minutes; after it the job is requeued
LARGEST_ARRAY = 1000  # workers: Slurm's default limit
PATIENCE = 60  # seconds to wait for sbatch
# Options of sbatch that options of pflbench set.
ELSEWHERE = {
    "array": "--jobs says how many workers there are at a time.",
    "cpus-per-task": "--cpus-per-job says how many cores a worker has.",
}
# 90 seconds before the time limit Slurm signals the shell only: the worker writes its checkpoint and the job is requeued.
# When Slurm ends a job, it signals all processes, and the shell waits for the worker.
SCRIPT = """#!/bin/bash
{setup}
{worker} &
worker=$!
trap 'again=yes; kill -TERM $worker' USR1
trap : TERM
while kill -0 $worker 2>/dev/null; do wait $worker; code=$?; done
if [ "$again" ]; then scontrol requeue $SLURM_JOB_ID; fi
exit $code
"""


def submit(
    asked: ExecutorOptions,
    name: str,
    specs: Sequence[RunSpec],
    store: Engine,
    data_dir: Path,
    how: Execution,
    worker: Sequence[str],
    limit: int | None = None,
) -> str:
    """Submits a job array of workers for runs of the sweep `name`, at most `limit`, and returns its number.

    worker: the command without its options. Options of sbatch in `asked` take precedence over the memory and GPUs chosen here.
    Raises UserError without Slurm, and if sbatch refuses the job.
    """
    require_shared(store, how)
    setup, given = options(asked.slurm)
    cores = asked.cpus_per_job or 1
    command = ["sbatch", "--parsable", f"--job-name=pflbench-{name}", f"--time={HOUR}", "--requeue", "--open-mode=append"]
    command.append("--signal=B:USR1@90")
    gpus = int(how.device.startswith("cuda") if asked.gpus_per_job is None else asked.gpus_per_job)
    if gpus and not any(option.startswith(("--gres", "--gpus")) for option in given):
        command.append(f"--gpus-per-node={gpus}")
    if not gpus and how.pack == 1 and not any(option.startswith("--mem") for option in given):
        size = 2 * needed(specs, data_dir, how)  # twice the estimate: Slurm kills jobs that exceed it
        command.append(f"--mem={-(-size // 2**20)}M")
    workers = min(LARGEST_ARRAY, len(specs) if limit else min(len(specs), asked.jobs or len(specs)))
    at_once = f"%{asked.jobs}" if asked.jobs else ""
    command += [*given, f"--cpus-per-task={cores}", f"--array=0-{workers - 1}{at_once}"]
    worker = [*worker, "--cpus-per-job", str(cores), *(["--limit", "1"] if limit else [])]
    url, environment = store.url.render_as_string(hide_password=False), dict(os.environ)
    if store.url.password:  # no file may contain it
        environment["PFLBENCH_DB"] = url
    else:
        worker += ["--db", url]
    script = SCRIPT.format(setup="\n".join(setup), worker=shlex.join(worker))
    try:
        done = subprocess.run(command, input=script, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except FileNotFoundError:
        raise UserError("There is no Slurm here: sbatch is not to be found.", "Give the command on a node that has it.") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"Slurm has not answered for {PATIENCE} seconds.", "Look whether it took the job: squeue --me") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line and not line.startswith("Try ")] or ["sbatch failed"]
        raise UserError(f"Slurm takes no job: {said[-1]}", "--slurm KEY=VALUE says what sbatch is told.")
    return done.stdout.strip().partition(";")[0]


def options(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits "KEY=VALUE" or "KEY" into lines to execute before the worker (`setup`) and options of sbatch.

    Raises UserError for other forms, and for options that pflbench sets.
    """
    setup, asked = [], []
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("_", "-").lstrip("-")
        if not name or bool(equals) != bool(value):
            raise UserError(f"--slurm {text}: expected KEY=VALUE.", "For example --slurm partition=gpu --slurm time=4:00:00.")
        if name in ELSEWHERE:
            raise UserError(f"--slurm {name} is not possible.", ELSEWHERE[name])
        if name == "setup":
            setup.append(value)
        else:
            asked.append(f"--{name}{equals}{value}")
    return setup, asked
