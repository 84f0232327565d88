"""What Slurm is told and asked: the options of sbatch, and the queue as its commands show it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pflbench.errors import UserError, unknown

HOUR = 60  # minutes of a job where no time is given: it goes on after them
TIMEOUTS = 100  # times that a job is requeued at its time limit
PATIENCE = 30  # seconds for an answer
# What other options say, or what a job here cannot be.
ELSEWHERE = {
    "cpus_per_task": "--cpus-per-job says how many cores a job has.",
    "array_parallelism": "--jobs says how many jobs there are at a time.",
    "nodes": "A job here has one node and one task.",
    "ntasks_per_node": "A job here has one node and one task.",
}
# Beyond sbatch, what the workers decide.
OURS = {"additional_parameters", "num_gpus", "cpus_per_gpu", "use_srun", "stderr_to_stdout", *ELSEWHERE}
LISTS = ("setup", "teardown", "srun_args")


def executor(folder: Path, name: str, given: Sequence[str], cores: int, gpus: int, bytes: int) -> Any:
    """submitit's, which keeps its files in a folder that all nodes see.

    given: "partition=gpu" and so on. cores, gpus, bytes of memory: of a job, where they are not given. Raises UserError without
    submitit or Slurm, and for what sbatch cannot be told.
    """
    try:
        import submitit
    except ModuleNotFoundError:
        raise UserError("--executor slurm needs submitit.", 'pip install "pflbench[slurm]"') from None
    try:
        found = submitit.SlurmExecutor(folder=folder, max_num_timeout=TIMEOUTS)
    except RuntimeError:
        raise UserError("There is no Slurm here: srun is not to be found.", "Give the command on a node that has it.") from None
    asked = parameters(given, found._valid_parameters())
    usual = {"time": HOUR, "job_name": f"pflbench-{name}", "cpus_per_task": cores, "additional_parameters": {"requeue": True}}
    if bytes and not asked.keys() & {"mem", "mem_per_cpu", "mem_per_gpu"}:
        usual["mem"] = f"{-(-bytes // 2**20)}MB"
    if gpus and not asked.keys() & {"gres", "gpus_per_node", "gpus_per_task"}:
        usual["gpus_per_node"] = gpus
    # Since 22.05 a step has not the cores of its job by itself.
    steps = [f"--cpus-per-task={cores}", *asked.pop("srun_args", [])]
    found.update_parameters(**usual | asked, srun_args=steps)
    return found


def parameters(given: Sequence[str], valid: Iterable[str]) -> dict[str, Any]:
    """The options of sbatch as submitit takes them. Raises UserError for what is none, or is said by another option."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not equals or not value:
            raise UserError(f"--slurm {text}: expected KEY=VALUE.", "For example --slurm partition=gpu --slurm time=4:00:00.")
        if name in ELSEWHERE:
            raise UserError(f"--slurm {name} is not possible.", ELSEWHERE[name])
        if name in OURS or name not in valid:
            raise unknown("option of --slurm", name, {*valid} - OURS)
        if name in LISTS:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise UserError(f"--slurm {name} is given twice.", "Give it once.")
        elif name == "time":
            found[name] = minutes(value)
        else:
            found[name] = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
    return found


def minutes(text: str) -> int:
    """Of a time as sbatch takes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S. Raises UserError for another one."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise UserError(f"--slurm time={text} is no time.", "Minutes, or H:M:S, or D-H:M:S.")
    days, *parts = (int(part) if part else 0 for part in match.groups())
    given = sum(part is not None for part in match.groups()[1:])
    hours = match[1] is not None or given == 3
    seconds = days * 86400 + sum(part * unit for part, unit in zip(parts, (3600, 60, 1) if hours else (60, 1, 0), strict=True))
    return max(1, seconds // 60)


class SlurmQueue:
    """The user's jobs in it. Accounting, which many clusters do not have, is not needed."""

    def states(self) -> dict[str, str] | None:
        told = _said("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i %T")
        return None if told is None else dict(line.split(maxsplit=1) for line in told.splitlines())

    def interrupt(self, ids: Sequence[str]) -> None:
        if ids:
            self.take_out(ids)
            _said("scancel", "--signal=INT", *ids)

    def take_out(self, ids: Sequence[str]) -> None:
        _said("scancel", "--state=PENDING", *ids)

    def end(self, id: str) -> str:
        told = re.search(r"JobState=(\S+).*?Reason=(\S+)", _said("scontrol", "show", "job", "--oneliner", id) or "")
        return "Slurm has forgotten why" if told is None else told[1] + (f" ({told[2]})" if told[2] != "None" else "")


def _said(*command: str) -> str | None:
    """What one of Slurm's commands prints; None where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    except (OSError, subprocess.SubprocessError):
        return None
