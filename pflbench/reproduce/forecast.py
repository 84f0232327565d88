"""Forecasts time, memory and disk of runs before they start.

Times come from the rounds in the database, else from a few batches of each client, measured with random streams of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from sqlalchemy import Engine

from pflbench.partition import Partition
from pflbench.reproduce.goal import Wanted
from pflbench.reproduce.progress import BASELINE, Clock, Outlook, RunProgress, progress_of
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.device import find_device
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData, load_federation_data
from pflbench.run.memory_estimate import footprint
from pflbench.run.prepared import prepare
from pflbench.run.round import rounds
from pflbench.spec import RunSpec
from pflbench.store.rounds import Speed, speeds
from pflbench.store.runs import ALL

LONG = 300.0  # seconds: shorter runs get no forecast
ROUNDS = 3  # of a measurement, whose last round counts: ALA has its initial stage in the second; one without a test follows
BATCHES = (1, 5)  # of each client: two measurements give the time per sample and the constant part
PATIENCE = 4.0  # seconds after which a measurement goes no further
# Below these (samples x parameters, and steps) nothing is measured.
SMALL_WORK, SMALL_STEPS = 2e9, 20_000
ROUND_BYTES, CLIENT_BYTES = 700, 90  # of a row of `round` with its indexes and traffic; of each client in it


@dataclass(frozen=True)
class Forecast:
    """Needs of the unfinished runs. seconds: None if not known. memory, disk: bytes."""

    runs: int
    seconds: float | None
    measured: bool
    memory: int | None
    disk: int


def forecast(
    specs: Sequence[RunSpec], engine: Engine, data_dir: Path, how: Execution, tell: Callable[[str], None]
) -> Forecast | None:
    """The forecast of these runs; None if they take less than LONG or are too small to measure.

    tell: called with a line before each measurement, which takes seconds.
    """
    left = [one for one in progress_of(engine, [Wanted(spec, {}) for spec in specs]) if one.rounds_left]
    if _small(left, data_dir, len(left)):
        return None
    times = [one.seconds for one in _with_times(left, engine, data_dir, how, tell)]
    seconds = None if None in times else sum(value for value in times if value is not None)
    if seconds is not None and seconds < LONG:
        return None
    needs = [need for spec in _settings(left) if (need := footprint(spec, load_federation_data(spec, data_dir), how))]
    rows = sum(one.rounds_left * (ROUND_BYTES + CLIENT_BYTES * one.wanted.spec.partition.clients) for one in left)
    # A checkpoint is the method's state; only that of the run under way is kept.
    disk = rows + max((need.models // 2 for need in needs), default=0)
    measured = any(one.seconds is None for one in left)
    return Forecast(len(left), seconds, measured, max((need.total for need in needs), default=None), disk)


def timed(outlook: Outlook, engine: Engine, data_dir: Path, how: Execution, tell: Callable[[str], None]) -> Outlook:
    """The outlook with the time of every run ahead: measured where the database does not tell it. tell: as in `forecast`."""
    if _small([one for one in outlook.ahead if one.seconds is None], data_dir, 1):
        return outlook
    found = {one.wanted.spec.key: one for one in _with_times(outlook.ahead, engine, data_dir, how, tell)}
    return replace(outlook, progress=tuple(found.get(one.wanted.spec.key, one) for one in outlook.progress))


def _with_times(
    runs: Sequence[RunProgress], engine: Engine, data_dir: Path, how: Execution, tell: Callable[[str], None]
) -> list[RunProgress]:
    """Measures what the times of these runs need: mostly FedAvg's, once for each dataset, model and cohort."""
    unknown = [one for one in runs if one.seconds is None]
    found = speeds(engine, ALL, {BASELINE, *(one.wanted.spec.method.name for one in unknown)}) if unknown else []
    for spec in _settings(unknown):
        here = [one for one in unknown if (one.wanted.spec.data, one.wanted.spec.partition) == (spec.data, spec.partition)]
        for one in sorted(here, key=lambda one: one.wanted.spec.method.name != BASELINE):
            if Clock(found).left(one) is None:
                tell(f"Measuring a round of {one.wanted.spec.method.name} on {spec.data.label} ...")
                found.append(_measure(one.wanted.spec, load_federation_data(spec, data_dir), how))
    return [replace(one, seconds=Clock(found).left(one)) if one.seconds is None else one for one in runs]


def _settings(runs: Sequence[RunProgress]) -> list[RunSpec]:
    """One run of each data and partition."""
    return list({(one.wanted.spec.data, one.wanted.spec.partition): one.wanted.spec for one in runs}.values())


def _small(runs: Sequence[RunProgress], data_dir: Path, times: int) -> bool:
    """Whether in every setting so many of these runs take seconds on any machine."""
    for spec in _settings(runs):
        setting = load_federation_data(spec, data_dir)
        samples = sum(map(len, setting.partition.train)) * spec.train.local_epochs * spec.train.rounds * times
        with torch.device("meta"):
            model = setting.model(spec)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if samples * parameters >= SMALL_WORK or samples / spec.train.batch_size >= SMALL_STEPS:
            return False
    return True


def _measure(spec: RunSpec, setting: FederationData, how: Execution) -> Speed:
    """Seconds of a round, extrapolated from rounds on one batch of each client, and on five where that is quick."""
    clients = int(spec.train.join_ratio * spec.training_clients)
    whole = sum(map(len, setting.partition.train))
    points = [_timed(spec, setting, how, BATCHES[0])]
    if ROUNDS * points[0][1] * BATCHES[1] < 2 * PATIENCE:
        points.append(_timed(spec, setting, how, BATCHES[1]))
    (few, quick), (samples, seconds) = points[0], points[-1]
    slope = (seconds - quick) / (samples - few) if samples > few else 0.0
    if slope <= 0:
        slope = seconds / samples
    taken = max(0.0, seconds - slope * samples) + slope * whole
    return Speed(spec.method.name, spec.data.label, spec.model, clients, spec.train.local_epochs, taken)


def _timed(spec: RunSpec, setting: FederationData, how: Execution, batches: int) -> tuple[int, float]:
    """Training samples, and seconds of a round on so many batches of each client: the mean over tested and untested rounds."""
    device, threads, size = find_device(how.device), torch.get_num_threads(), batches * spec.train.batch_size
    sides = setting.partition
    cut = Partition(tuple(part[:size] for part in sides.train), tuple(part[: max(1, size // 3)] for part in sides.test))
    begun, every = time.monotonic(), spec.train.eval_every
    tested = untested = 0.0
    with exact_arithmetic(device, spec.train.dtype, how.deterministic):
        run = prepare(spec, replace(setting, partition=cut), device, replace(how, save_artifacts_every=0, follow=None))
        fed = run.federation()
        try:
            for this, scores, _ in islice(rounds(run.method, fed, untested=(ROUNDS + 1,)), ROUNDS + (every > 1)):
                untested = sum(this.seconds.values())  # that of a tested round if patience ends first
                if scores:
                    tested = untested
                if time.monotonic() - begun > PATIENCE:
                    break
        finally:
            fed.executor.close()
            torch.set_num_threads(threads)
    return sum(map(len, cut.train)), untested + (tested - untested) / every
