"""A job on a machine that the command does not run on: what has to be right there before its runs are made."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from pflbench.errors import UserError
from pflbench.run import verdict
from pflbench.run.execution import find_device
from pflbench.sweep.jobs import Job, RunOutcome, make, placed

PATIENCE = 180.0  # seconds in which the lock of a process that was killed elsewhere should be free
PAUSE = 1.0


def make_away(job: Job, folder: Path, cores: int, *, again: bool) -> list[RunOutcome]:
    """As `make`, in the command's folder, where there is one here, and on a GPU that was checked.

    cores: those that are the job's. again: its first worker was killed, and may seem to be at the runs for a while.
    """
    with suppress(OSError):
        os.chdir(folder)
    until = time.monotonic() + PATIENCE * again
    try:
        while True:
            outcomes = make(job, prepared=lambda: _prepared(job, cores))
            if time.monotonic() > until or all(outcome.state != "elsewhere" for outcome in outcomes):
                return outcomes
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        return [RunOutcome(spec.key, "interrupted") for spec in job.specs]


def _prepared(job: Job, cores: int) -> Job:
    """The job as this machine makes it."""
    device = find_device(job.how.device)
    wanted = verdict.missing(job.specs, device, job.how)
    if wanted:
        from pflbench.contract import device as contract

        verdict.keep(device, dict(contract.check(wanted, device)))
        if not contract.usable(device):
            raise UserError(
                "A check of the GPU has failed so badly that it cannot be used.", "--retry-failed takes a slower way."
            )
    return placed(job, str(device), cores)
