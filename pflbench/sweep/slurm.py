"""Submits a stored sweep to Slurm: a job array of workers (`pflbench sweep work`), which take runs from the database."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from pflbench.errors import UserError

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
    name: str,
    given: Sequence[str],
    worker: Sequence[str],
    workers: int,
    *,
    at_a_time: int | None = None,
    cores: int = 1,
    gpus: int = 0,
    bytes: int = 0,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Submits the job array and returns its number.

    name: of the sweep. given: options of sbatch, as "partition=gpu". worker: the command. cores, gpus, bytes of memory: of each
    worker, unless `given` sets them. variables: added to the environment.

    Raises UserError without Slurm, and if sbatch refuses the job.
    """
    setup, asked = options(given)
    usual = [f"--job-name=pflbench-{name}", f"--time={HOUR}", "--requeue", "--open-mode=append", "--signal=B:USR1@90"]
    if bytes and not any(option.startswith("--mem") for option in asked):
        usual.append(f"--mem={-(-bytes // 2**20)}M")
    if gpus and not any(option.startswith(("--gres", "--gpus")) for option in asked):
        usual.append(f"--gpus-per-node={gpus}")
    at_once = f"%{at_a_time}" if at_a_time else ""
    ours = [f"--cpus-per-task={cores}", f"--array=0-{min(workers, LARGEST_ARRAY) - 1}{at_once}"]
    command = ["sbatch", "--parsable", *usual, *asked, *ours]
    script = SCRIPT.format(setup="\n".join(setup), worker=shlex.join(worker))
    environment = {**os.environ, **(variables or {})}
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
