"""`pflbench doctor --gpu`, and what a first run on a GPU checks of it before it goes the fast way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from pflbench.cli.console import duration, message, print_json, print_table, say
from pflbench.cli.progress import data_view
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.contract.device import Pace
    from pflbench.run.execution import Execution
    from pflbench.run.verdict import Check, CheckResult
    from pflbench.spec import RunSpec

FLOATS = ("float64", "float32")


def checkup(name: str, as_json: bool) -> None:
    """Makes all checks of a GPU, keeps what is found and prints it. Exit code 1 if something failed."""
    from pflbench.contract import device as contract
    from pflbench.run import verdict
    from pflbench.run.execution import find_device

    device = find_device(name)
    if device.type == "cpu":
        raise UserError("There is no GPU here that PyTorch can use.", "`pflbench doctor` shows what was found.")
    about, begun = verdict.identity(device), time.monotonic()
    if not as_json:
        message(", ".join(f"{word} {told}".removeprefix("device ") for word, told in about.items()))
    found, problem = _check(contract.whole(), device, quiet=as_json)
    failed = [check for check, said in found.items() if said.status == "failed"]
    paths = verdict.fast_paths(found)
    fastest = next((way for way in ("captured", "batched") if "cnn, 1 channel" in paths[way]), None)
    speed = contract.speed(device, "captured" if fastest == "captured" else "batched") if fastest else None
    seconds = time.monotonic() - begun
    if as_json:
        checks = [{**asdict(check), **asdict(said)} for check, said in found.items()]
        print_json({**about, "checks": checks, "fast_paths": paths, "speed": speed and asdict(speed), "seconds": seconds})
    else:
        print_table(("check", *FLOATS), _rows(found))
        say(*_summary(paths, speed), sep="\n")
        message(f"{len(found)} checks in {duration(seconds)}, {len(failed)} failed.")
    if problem:
        message(f"Note: {problem}")
    if failed:
        raise typer.Exit(1)


def check_first(specs: Sequence[RunSpec], how: Execution, quiet: bool) -> None:
    """Makes the checks that say how these runs should be executed, where the GPU has not passed them yet. On a CPU nothing.

    Says so where only the driver keeps a GPU from being used. Raises UserError where the check has left a GPU that this process
    can no longer use.
    """
    from pflbench.run import verdict
    from pflbench.run.execution import find_device, why_no_gpu

    if note := why_no_gpu(how.device):
        message(f"Note: {note}")
    device = find_device(how.device)
    wanted = verdict.missing(specs, device, how)
    if not wanted:
        return
    from pflbench.contract import device as contract

    about, begun = verdict.identity(device), time.monotonic()
    if not quiet:
        message(
            f"Note: {about['device']} is checked first, which it has not been with driver {about['driver']}, PyTorch "
            f"{about['torch']} and this pflbench: {len(wanted)} small trainings. {verdict.SKIP}=off leaves that out."
        )
    found, problem = _check(wanted, device, quiet)
    good = sum(said.status == "passed" for said in found.values())
    if not quiet:
        message(f"Note: {good} of {len(found)} checks passed, in {duration(time.monotonic() - begun)}.")
    if problem:
        message(f"Note: {problem}")
    if not contract.usable(device):
        raise UserError(
            f"{about['device']} cannot be used any more by this process: a check has failed that badly.",
            "The same command goes on, in a slower way. `pflbench doctor --gpu` shows more.",
        )


def _check(wanted: Sequence[Check], device: Any, quiet: bool) -> tuple[dict[Check, CheckResult], str]:
    """What was found, in the order of what was wanted, and why it could not be kept, if so."""
    from pflbench.contract import device as contract
    from pflbench.run import verdict

    found: dict[Check, CheckResult] = {}
    with data_view(quiet) as progress:
        try:
            for number, (check, said) in enumerate(contract.check(wanted, device), start=1):
                found[check] = said
                if progress is not None:
                    progress("checks of the GPU", number, len(wanted))
        finally:
            problem = verdict.keep(device, found)
    return {check: found[check] for check in wanted}, problem


def _rows(found: dict[Check, CheckResult]) -> list[tuple[str, ...]]:
    """A line for each check, whatever its floats."""
    named: dict[str, dict[str, str]] = {}
    for check, said in found.items():
        named.setdefault(", ".join(filter(None, (check.what, check.way))), {})[check.floats] = str(said)
    return [(name, *(said.get(floats, "") for floats in FLOATS)) for name, said in named.items()]


def _summary(paths: dict[str, list[str]], speed: Pace | None) -> list[str]:
    from pflbench.run.verdict import PACKING, TF32

    words: list[Any] = [f"{way}: {'; '.join(paths[way]) or 'nothing'}" for way in ("batched", "captured")]
    words += [f"{name}: {'yes' if paths[name] else 'no'}" for name in (PACKING, TF32)]
    lines = ["Fast ways that passed:", *(f"  {line}" for line in words)]
    if speed is not None:
        here, alone = f"{speed.steps:,.0f} steps/s {speed.way}", f"{speed.loop:,.0f} one client after another"
        lines.append(f"FedAvg, CNN, 20 clients: {here}, {alone}: {speed.steps / speed.loop:.1f} times as fast.")
    return lines
