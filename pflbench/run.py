"""The round loop: the only place that knows data, engine, method and store at once."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sqlalchemy
import torch

from pflbench import checkpoint, environment, methods
from pflbench.checkpoint import Checkpoints, Snapshot
from pflbench.engine import rng
from pflbench.engine.batched import BatchedExecutor
from pflbench.engine.executor import Executor
from pflbench.engine.federation import Federation, Scores
from pflbench.engine.flat import Flat
from pflbench.engine.loop import LoopExecutor
from pflbench.engine.samples import Samples
from pflbench.errors import Diverged, UserError
from pflbench.methods.base import Method
from pflbench.models import build
from pflbench.setting import Setting, load_setting
from pflbench.spec import RunSpec
from pflbench.store import write
from pflbench.store.failures import sqlite_path
from pflbench.store.records import RoundRecord, RunRow
from pflbench.store.schema import now


@dataclass(frozen=True)
class Execution:
    """How a run is executed; recorded with it, no part of its key."""

    device: str = "auto"
    engine: Literal["auto", "loop", "batched"] = "auto"
    workers: int | None = None  # loop on a CPU: clients side by side; None: one per core
    chunk: int | None = None  # batched: clients at a time; None: the whole cohort


@dataclass(frozen=True)
class Progress:
    """What `execute` reports. accuracy and best are in [0, 1], seconds those of the round."""

    run_id: int
    kind: Literal["started", "resumed", "round", "finished", "exists"]
    round: int
    rounds: int
    accuracy: float | None = None
    best: float | None = None
    seconds: float = 0.0


def execute(
    spec: RunSpec,
    store: sqlalchemy.Engine,
    data_root: Path,
    how: Execution = Execution(),
    *,
    force: bool = False,
    checkpoint_every: float = 30.0,
    command: str = "",
) -> Generator[Progress, None, None]:
    """Runs a specification, or resumes it, or says that it is done; every "round" is reported after its commit.

    checkpoint_every: seconds between checkpoints. KeyboardInterrupt marks the run `interrupted`, keeps a checkpoint and passes
    on; so do errors, which mark it `failed` or `diverged`.
    """
    method = methods.make(spec.method)
    device = find_device(how.device)
    where = checkpoint.folder(sqlite_path(store.url))
    with checkpoint.locked(where, spec.key), _exact_arithmetic(device), _memory(how, device):
        found = None if force else write.find_run(store, spec.key)
        if found and found.status == "finished":
            yield Progress(found.id, "exists", spec.train.rounds, spec.train.rounds)
            return
        if found and found.status == "diverged":
            raise Diverged(found.message or "The run diverged.", f"It is stored as run {found.id}; --force runs it anew.")
        environment.reset_peak_memory()
        setting = load_setting(spec, data_root)
        fed = federation(spec, setting, device, how)
        try:
            if found is None:
                write.create_run(store, spec, environment.describe())
                found = write.find_run(store, spec.key)
                assert found is not None
            checkpoints = Checkpoints(where, found.id, owner=f"{found.key}/{found.attempt}/{found.created_at}")
            _begin(store, found.id, setting, fed, command)
            loop = _Loop(spec, method, fed, store, found, checkpoints, checkpoint_every)
            with _marked(store, spec, loop):
                yield from loop.run()
        finally:
            fed.executor.close()


def find_device(name: str) -> torch.device:
    """ "auto" is the first GPU if there is one, else the CPU. A GPU that is not there is a UserError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"Unknown device '{name}'.", "Valid: auto, cpu, cuda, cuda:0, cuda:1, ...") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"Device '{name}' is not supported.", "Valid: auto, cpu, cuda, cuda:0, cuda:1, ...")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"Device '{name}' was asked for, but PyTorch sees {count or 'no'} GPU{'s' if count > 1 else ''} here.",
                        "Use --device cpu, or install a CUDA build of PyTorch.")  # fmt: skip
    return device


def federation(spec: RunSpec, setting: Setting, device: torch.device, how: Execution) -> Federation:
    """The clients of a specification on a device, with the initial model of its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.torch_seed(spec.seed, "model"))
        arrays = setting.arrays
        module = build(spec.model, tuple(arrays.x.shape[1:]), len(arrays.classes), arrays.vocabulary)
    flat = Flat(module)
    samples = Samples(arrays.x, arrays.y, getattr(torch, spec.train.dtype), device)
    engine = how.engine if how.engine != "auto" else ("loop" if device.type == "cpu" else "batched")
    looped = engine == "loop"
    executor: Executor = LoopExecutor(flat, samples, how.workers) if looped else BatchedExecutor(flat, samples, how.chunk)
    fed = Federation(flat, executor, spec.train, setting.partition.train, setting.partition.test, spec.seed)
    if not fed.batches(fed.nobody_left_out(), 1).steps().any():
        executor.close()
        raise UserError(
            f"No client has a single batch to train on (batch size {spec.train.batch_size}, drop-last {spec.train.drop_last}).",
            "Choose another --batch-size or --drop-last, or fewer clients; BatchNorm needs batches of at least 2.",
        )
    return fed


@contextmanager
def _exact_arithmetic(device: torch.device) -> Iterator[None]:
    """On a GPU float32 means float32, and the same command gives the same numbers: cuDNN's defaults promise neither."""
    if device.type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@contextmanager
def _memory(how: Execution, device: torch.device) -> Iterator[None]:
    """Out of GPU memory is the user's to mend."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        hint = "--chunk N trains N clients at a time (try a quarter of the cohort)"
        if how.engine == "loop":
            hint = "A smaller --batch-size or model needs less"
        raise UserError(
            f"Out of GPU memory on {device}.", f"{hint}, --device cpu none. The same command resumes the run."
        ) from None


class _Loop:
    """The rounds of one run. Row t of the database has the cost of round t and the accuracy after it."""

    def __init__(
        self,
        spec: RunSpec,
        method: Method,
        fed: Federation,
        store: sqlalchemy.Engine,
        row: RunRow,
        checkpoints: Checkpoints,
        checkpoint_every: float,
    ) -> None:
        self.spec, self.method, self.fed, self.store, self.run_id = spec, method, fed, store, row.id
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.rounds_stored = 0 if row.last_round is None else row.last_round + 1
        self.snapshot: Snapshot | None = None
        self.best: float | None = None
        self.saved_at = time.monotonic()

    def run(self) -> Iterator[Progress]:
        rounds = self.spec.train.rounds
        resumed = self.checkpoints.load(self.method.init(self.fed.at(0)), self.fed.device)
        if resumed and resumed.t >= self.rounds_stored:
            # A power failure can take the database's last commits and leave a later checkpoint: its rounds would be missing.
            resumed = None
        write.rewind(self.store, self.run_id, resumed.t if resumed else -1)
        if resumed:
            self.snapshot = resumed
            # A copy: training changes buffers in place, and this snapshot may have to be saved once more.
            self.fed.buffers.update({slot: rows.clone() for slot, rows in resumed.buffers.items()})
            state, carried = resumed.state, resumed.carried
            self.best = carried["best"]
            yield self._progress("resumed", resumed.t)
        else:
            yield self._progress("started", 0)
            state, carried = self._round(0, self.method.init(self.fed.at(0)), {})
            yield self._progress("round", 0, carried)
        for t in range(resumed.t + 1 if resumed else 1, rounds + 1):
            state, carried = self._round(t, state, carried)
            yield self._progress("round", t, carried)
        write.update_run(self.store, self.run_id, status="finished", finished_at=now(), message=None)
        self.checkpoints.remove()
        yield self._progress("finished", rounds)

    def _round(self, t: int, state: Any, received: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Round t's update, the reception of round t + 1 (its cost belongs to that round's row), E1, and the commit.

        received: the cost of round t's reception. Round 0 has neither: it is the initial model.
        """
        begun = time.perf_counter()
        cost: dict[str, Any] = {}
        if t > 0:
            now_t = self.fed.at(t)
            S = now_t.cohort(t)
            with self._clock() as update:
                now_t.reset_buffers(S, self.method.shared_slots)
                state = self.method.update(now_t, state, S)
                now_t.average_buffers(S, self.method.shared_slots)
            cost = self._cost(now_t, received, update.seconds, len(S))
        following = self.fed.at(t + 1)
        S = following.cohort(t + 1)
        with self._clock() as receive:
            state = self.method.receive(following, state, S)
        evaluated = t % self.spec.train.eval_every == 0 or t == self.spec.train.rounds
        results = self._evaluate(following, state, S) if evaluated else {}
        # What reception of round t + 1 shows was seen at this E1.
        write.write_round(self.store, self.run_id, RoundRecord(round=t, **cost, **results, artifacts=following.ledger.artifacts))
        if "accuracy" in results:
            self.best = max(results["accuracy"], self.best or 0.0)
        ledger = following.ledger
        carried = {
            "seconds_receive": receive.seconds,
            "params_up": ledger.params_up,
            "params_down": ledger.params_down,
            "scalars_up": ledger.scalars_up,
            "scalars_down": ledger.scalars_down,
            "best": self.best,
            "accuracy": results.get("accuracy"),
            "seconds": time.perf_counter() - begun,
        }
        self.snapshot = Snapshot(t, state, {k: v.clone() for k, v in self.fed.buffers.items()}, carried)
        # Where a checkpoint is large, less often: it should cost no more than a fiftieth of the time.
        interval = max(self.checkpoint_every, 50 * self.checkpoints.seconds) if self.checkpoint_every else 0.0
        if t < self.spec.train.rounds and time.monotonic() - self.saved_at >= interval:
            self.save()
        return state, carried

    def save(self) -> None:
        """Keeps the last whole round as the checkpoint."""
        if self.snapshot is not None:
            self.checkpoints.save(self.snapshot)
            self.saved_at = time.monotonic()

    def _cost(self, fed: Federation, received: dict[str, Any], seconds: float, participants: int) -> dict[str, Any]:
        """Round t's columns: its reception and its update together."""
        ledger, word = fed.ledger, self.fed.dtype.itemsize
        sent = {
            name: received[name] + getattr(ledger, name) for name in ("params_up", "params_down", "scalars_up", "scalars_down")
        }
        return {
            **sent,
            "bytes_up": word * (sent["params_up"] + sent["scalars_up"]),
            "bytes_down": word * (sent["params_down"] + sent["scalars_down"]),
            "seconds_receive": received["seconds_receive"],
            "seconds_update": seconds,
            "train_loss": ledger.train_loss.get(self.method.slot),
            "participants": participants,
            "peak_memory": self._peak_memory(),
        }

    def _evaluate(self, fed: Federation, state: Any, S: torch.Tensor) -> dict[str, Any]:
        """E1: what clients would use now, each on its own test data (methods.md 0.2, 2.1)."""
        who = S if self.spec.train.evaluate == "participants" else torch.arange(fed.size, device=fed.device)
        with self._clock() as evaluate:
            scores = fed.evaluate(self.method.deployed(state), who, self.method.slot)
            series = {name: fed.evaluate(models, who, slot) for name, (models, slot) in self.method.series(state).items()}
        if not scores:
            return {"seconds_evaluate": evaluate.seconds}
        for tested in (scores, *series.values()):
            _refuse_non_finite(tested, fed.t)
        each = scores.correct / scores.total
        return {
            "accuracy": scores.accuracy,
            "accuracy_mean": float(each.mean()),
            "accuracy_std": float(each.std()),
            "test_loss": scores.mean_loss,
            "seconds_evaluate": evaluate.seconds,
            "clients": scores.clients,
            "correct": scores.correct,
            "total": scores.total,
            "loss": scores.loss,
            "series": {name: (s.accuracy, s.mean_loss) for name, s in series.items()},
        }

    def _progress(self, kind: Any, t: int, carried: dict[str, Any] | None = None) -> Progress:
        told = carried or {}
        return Progress(
            self.run_id,
            kind,
            t,
            self.spec.train.rounds,
            told.get("accuracy"),
            self.best,
            float(told.get("seconds") or 0.0),
        )

    def _peak_memory(self) -> int:
        if self.fed.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.fed.device)
        return environment.peak_resident_memory()

    @contextmanager
    def _clock(self) -> Iterator[_Clock]:
        clock = _Clock()
        begun = self._synchronised()
        yield clock
        clock.seconds = self._synchronised() - begun

    def _synchronised(self) -> float:
        if self.fed.device.type == "cuda":
            torch.cuda.synchronize(self.fed.device)
        return time.perf_counter()


@dataclass
class _Clock:
    seconds: float = 0.0


def _refuse_non_finite(scores: Scores, t: int) -> None:
    bad = ~np.isfinite(scores.loss)
    if bad.any():
        raise Diverged(
            f"client {int(scores.clients[bad][0])} has a non-finite test loss before training in round {t}",
            "A smaller --lr usually helps.",
        )


def _begin(store: sqlalchemy.Engine, run_id: int, setting: Setting, fed: Federation, command: str) -> None:
    device = fed.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else environment.processor()
    described = {**environment.describe(), "command": command, "torch_threads": torch.get_num_threads()}
    if device.type == "cuda":
        described["cuda"] = torch.version.cuda
        torch.cuda.reset_peak_memory_stats(device)
    write.update_run(
        store,
        run_id,
        status="running",
        message=None,
        started_at=now(),
        finished_at=None,
        partition_id=write.save_partition(store, setting.record),
        parameters=fed.flat.size,
        engine=fed.executor.name,
        device=name,
        environment=described,
    )


@contextmanager
def _marked(store: sqlalchemy.Engine, spec: RunSpec, loop: _Loop) -> Iterator[None]:
    """Whatever ends a run early is written down with it, and what it has reached is kept."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        _stop(store, loop, "interrupted", None)
        raise
    except Diverged as error:
        message = f"{spec.method.name}, seed {spec.seed}: {error.message}."
        write.update_run(store, loop.run_id, status="diverged", message=message, finished_at=now())
        loop.checkpoints.remove()
        raise Diverged(message, error.hint) from None
    except torch.cuda.OutOfMemoryError:
        _stop(store, loop, "failed", "out of GPU memory")
        raise
    except Exception as error:
        _stop(store, loop, "failed", f"{type(error).__name__}: {error}"[:1000])
        raise


def _stop(store: sqlalchemy.Engine, loop: _Loop, status: str, message: str | None) -> None:
    # The first error is the one to tell: where the disk is full, these steps may fail as well.
    with suppress(OSError, RuntimeError, UserError):
        loop.save()
    with suppress(UserError, sqlalchemy.exc.SQLAlchemyError):
        write.update_run(store, loop.run_id, status=status, message=message, finished_at=now())
