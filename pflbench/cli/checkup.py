"""`pflbench doctor --gpu`, and the notes before a run on an unchecked or failed GPU."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from pflbench.cli.console import duration, message, print_json, print_records, say
from pflbench.cli.progress import bars
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.run.execution import Execution


def checkup(name: str, as_json: bool) -> None:
    """Runs all checks of a GPU, stores and prints the results. Exit code 1 if one failed."""
    from pflbench.contract import device as contract
    from pflbench.run import gpu_check
    from pflbench.run.device import find_device

    device = find_device(name)
    if device.type == "cpu":
        raise UserError("There is no GPU here that PyTorch can use.", "`pflbench doctor` shows what was found.")
    about, begun = gpu_check.identity(device), time.monotonic()
    if not as_json:
        message(", ".join(f"{word} {told}".removeprefix("device ") for word, told in about.items()))
    wanted, found = contract.whole(), {}
    with bars(quiet=as_json) as progress:
        for number, (check, said) in enumerate(contract.check(wanted, device), start=1):
            found[check] = said
            if progress is not None:
                progress("checks of the GPU", number, len(wanted))
    checks = [{"check": str(check), **asdict(check), **asdict(found[check])} for check in wanted]
    failed = [check for check, said in found.items() if said.status == "failed"]
    pace = None if failed else contract.pace(device)
    seconds = time.monotonic() - begun
    if as_json:
        print_json({**about, "checks": checks, "pace": pace and asdict(pace), "seconds": seconds})
    else:
        print_records([{"check": str(check), "result": str(found[check])} for check in wanted])
        if pace is not None:
            here, alone = f"{pace.together:,.0f} steps/s", f"{pace.alone:,.0f} one client after another"
            say(f"FedAvg, CNN, 20 clients: {here}, {alone}: {pace.together / pace.alone:.1f} times as fast.")
        message(f"{len(found)} checks in {duration(seconds)}, {len(failed)} failed.")
    try:
        gpu_check.keep(device, checks)
    except (OSError, RuntimeError) as error:
        message(f"Note: the result could not be stored for later commands: {error}")
    if failed:
        raise typer.Exit(1)


def note_unchecked(how: Execution, quiet: bool) -> None:
    """Prints a note about the GPU's check, or about a driver that prevents its use."""
    from pflbench.run import gpu_check
    from pflbench.run.device import find_device, why_no_gpu

    if not quiet and (text := why_no_gpu(how.device) or gpu_check.note(find_device(how.device))):
        message(f"Note: {text}")
