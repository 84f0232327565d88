"""The round loop: the only place that knows data, engine, method and store at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sqlalchemy
import torch

from pflbench import environment, methods
from pflbench.engine import devices
from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import COUNTERS, Federation
from pflbench.errors import Diverged, UserError
from pflbench.methods.base import Method
from pflbench.run import central, evaluation
from pflbench.run.checkpoint import Checkpoints, Snapshot
from pflbench.run.execution import Execution, exact_arithmetic, federation, find_device, memory_errors
from pflbench.run.record import Account
from pflbench.run.setting import Setting, load_setting
from pflbench.spec import RunSpec
from pflbench.store import locks, partitions, runs, write
from pflbench.store.failures import sqlite_path
from pflbench.store.runs import Run
from pflbench.store.schema import now
from pflbench.store.write import RoundRecord

TRAFFIC = "traffic"  # artifact [N, 4] of every round: what each client sent and received, in the order of COUNTERS


@dataclass(frozen=True)
class Progress:
    """What `execute` reports. accuracy and best are in [0, 1], seconds those of the round; news: what the user should know."""

    run_id: int
    kind: Literal["started", "resumed", "round", "finished", "exists"]
    round: int
    rounds: int
    accuracy: float | None = None
    best: float | None = None
    seconds: float = 0.0
    news: tuple[str, ...] = ()


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
    device = find_device(how.device)

    def federate(setting: Setting) -> Federation:
        return federation(spec, setting, device, how)

    with exact_arithmetic(device, spec.train.dtype), memory_errors(how, device):
        yield from rounds(spec, store, data_root, how, federate, force, checkpoint_every, command)


def rounds(
    spec: RunSpec,
    store: sqlalchemy.Engine,
    data_root: Path,
    how: Execution,
    federate: Callable[[Setting], Federation],
    force: bool,
    checkpoint_every: float,
    command: str,
) -> Generator[Progress, None, None]:
    """As `execute`, on what `federate` makes. The device's arithmetic and its memory errors are the caller's."""
    method = methods.make(spec.method)
    where = locks.folder(sqlite_path(store.url))
    with locks.locked(where, spec.key):
        found = None if force else runs.newest(store, spec.key)
        if found:
            _refuse_changed_file(found, spec)
        if found and found.status == "finished":
            yield Progress(found.id, "exists", spec.train.rounds, spec.train.rounds)
            return
        if found and found.status == "diverged":
            raise Diverged(found.message or "The run diverged.", f"It is stored as run {found.id}; --force runs it anew.")
        environment.reset_peak_memory()
        setting = load_setting(spec, data_root)
        fed = federate(setting)
        try:
            if setting.central is not None:
                central.require_global_model(spec.method.name, method, fed)
            if found is None:
                method.init(fed.at(0))  # what does not go with the model is refused before there is a row
                write.create_run(store, spec, environment.describe())
                found = runs.newest(store, spec.key)
                assert found is not None
            checkpoints = Checkpoints(where, found.id, owner=f"{found.key}/{found.attempt}/{found.created_at}")
            described = _begin(store, found, setting, fed, command, how.scale, methods.record(spec.method.name))
            loop = _Loop(spec, method, fed, store, found, checkpoints, checkpoint_every, setting.central, how, described)
            with _marked(store, spec, loop):
                yield from loop.run()
        finally:
            fed.executor.close()


class _Loop:
    """The rounds of one run. Row t of the database has the cost of round t and the accuracy after it."""

    def __init__(
        self,
        spec: RunSpec,
        method: Method,
        fed: Federation,
        store: sqlalchemy.Engine,
        row: Run,
        checkpoints: Checkpoints,
        checkpoint_every: float,
        central_samples: np.ndarray | None,
        how: Execution,
        environment: dict[str, Any],
    ) -> None:
        self.spec, self.method, self.fed, self.store, self.run_id = spec, method, fed, store, row.id
        self.checkpoints, self.checkpoint_every, self.central_samples = checkpoints, checkpoint_every, central_samples
        self.observe_every, self.follow = how.observe_every, how.follow
        self.rounds_stored = 0 if row.last_round is None else row.last_round + 1
        self.snapshot: Snapshot | None = None
        self.best: float | None = None
        self.saved_at = time.monotonic()
        self.account = Account(store, row.id, environment, fed.executor)

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
        self.account.keep(last=True)
        write.update_run(self.store, self.run_id, status="finished", finished_at=now(), message=None)
        self.checkpoints.remove()
        yield self._progress("finished", rounds)

    def _round(self, t: int, state: Any, received: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Round t's update, the reception of round t + 1 (its cost belongs to that round's row), E1, and the commit.

        received: the cost of round t's reception. Round 0 has neither: it is the initial model.
        """
        self.fed.executor.begin_round(t)
        begun = self.fed.executor.clock()
        cost: dict[str, Any] = {}
        seen: dict[str, np.ndarray] = {}
        if t > 0:
            now_t = self._at(t, row=t)
            now_t.followed = self.follow.client if self.follow and self.follow.first <= t <= self.follow.last else None
            S = now_t.cohort(t)
            with self._clock() as update:
                now_t.reset_buffers(S, self.method.shared_slots)
                state = self.method.update(now_t, state, S)
                now_t.average_buffers(S, self.method.shared_slots)
            self.account.note(now_t.ledger.notes)
            cost, seen = self._cost(now_t, received, update.seconds, len(S)), now_t.ledger.artifacts
        following = self._at(t + 1, row=t)
        S = following.cohort(t + 1)
        # Kept only for those that are tested without being in the cohort: states are large.
        before = state if self.spec.train.initialised == "all" else None
        with self._clock() as receive:
            state = self.method.receive(following, state, S)
        self.account.note(following.ledger.notes)
        evaluated = t % self.spec.train.eval_every == 0 or t == self.spec.train.rounds
        results = self._evaluate(following, before, state, S) if evaluated else {}
        # What reception of round t + 1 shows was seen at this E1.
        artifacts = {**seen, **following.ledger.artifacts}
        write.write_round(self.store, self.run_id, RoundRecord(round=t, **cost, **results, artifacts=artifacts))
        self.account.keep()
        if "accuracy" in results:
            self.best = max(results["accuracy"], self.best or 0.0)
        carried = {
            "seconds_receive": receive.seconds,
            "traffic": following.ledger.traffic.by_client().tolist(),
            "best": self.best,
            "accuracy": results.get("accuracy"),
            "seconds": self.fed.executor.clock() - begun,
        }
        self.snapshot = Snapshot(t, state, {k: v.clone() for k, v in self.fed.buffers.items()}, carried)
        # Where a checkpoint is large, less often: it should cost no more than a fiftieth of the time.
        interval = max(self.checkpoint_every, 50 * self.checkpoints.seconds) if self.checkpoint_every else 0.0
        if t < self.spec.train.rounds and time.monotonic() - self.saved_at >= interval:
            self.save()
        return state, carried

    def _at(self, t: int, row: int) -> Federation:
        """The federation in round t; what it observes goes to a row of the database."""
        fed = self.fed.at(t)
        fed.observing = self.observe_every > 0 and row % self.observe_every == 0
        return fed

    def save(self) -> None:
        """Keeps the last whole round as the checkpoint."""
        if self.snapshot is not None:
            self.checkpoints.save(self.snapshot)
            self.saved_at = time.monotonic()

    def _cost(self, fed: Federation, received: dict[str, Any], seconds: float, participants: int) -> dict[str, Any]:
        """Round t's columns: its reception and its update together."""
        ledger, word = fed.ledger, self.fed.dtype.itemsize
        traffic = ledger.traffic.by_client() + np.array(received["traffic"], dtype=np.int64)
        ledger.observe(TRAFFIC, traffic)
        sent = dict(zip(COUNTERS, traffic.sum(axis=0).tolist(), strict=True))
        return {
            **sent,
            "bytes_up": word * (sent["params_up"] + sent["scalars_up"]),
            "bytes_down": word * (sent["params_down"] + sent["scalars_down"]),
            "seconds_receive": received["seconds_receive"],
            "seconds_update": seconds,
            # What is tested may be a copy that is not trained in a round's update, only made from what is.
            "train_loss": ledger.train_loss.get(self.method.slot, ledger.train_loss.get("model")),
            "participants": participants,
            "peak_memory": devices.peak(self.fed.device),
        }

    def _evaluate(self, fed: Federation, before: Any, state: Any, S: torch.Tensor) -> dict[str, Any]:
        """E1's columns. The time that takes includes initialising those who are only tested."""
        with self._clock() as evaluate:
            series = evaluation.evaluate(self.method, fed, before, state, S)
            scores = series.pop(evaluation.HEADLINE)
            on_central = central.evaluate(self.method, fed, state, self.central_samples)
        if not scores:
            return {"seconds_evaluate": evaluate.seconds, "series": on_central}
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
            "series": {**{name: (s.accuracy, s.mean_loss) for name, s in series.items()}, **on_central},
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
            self.account.news(),
        )

    @contextmanager
    def _clock(self) -> Iterator[_Clock]:
        clock = _Clock()
        begun = self.fed.executor.clock()
        yield clock
        clock.seconds = self.fed.executor.clock() - begun


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


def _refuse_changed_file(found: Run, spec: RunSpec) -> None:
    """A plug-in's author may forget to raise its version: other code must neither go on with a run nor pass for what made it."""
    before, present = (record.get("sha256") for record in (found.environment.get("plugin", {}), methods.record(spec.method.name)))
    if before is not None and before != present:
        raise UserError(
            f"The file of method '{spec.method.name}' has changed since run {found.id} was made with it, its version has not.",
            "Raise `version` in the class if results change; --force runs it anew.",
        )


def _begin(
    store: sqlalchemy.Engine,
    run: Run,
    setting: Setting,
    fed: Federation,
    command: str,
    scale: str | None,
    plugin: dict[str, str],
) -> dict[str, Any]:
    """Marks the run as running. Returns what was written down of where and how it is made, with notes of earlier rounds."""
    device = fed.device
    described = {
        **environment.describe(),
        "command": command,
        "torch_threads": torch.get_num_threads(),
        "data": setting.content,
    }
    if scale is not None:
        described["scale"] = scale
    if plugin:
        described["plugin"] = plugin
    if "notes" in run.environment:
        described["notes"] = run.environment["notes"]
    described |= devices.software(device)
    if device.type != "cpu":  # of a CPU, what loading the data has taken counts
        devices.reset_peak(device)
    write.update_run(
        store,
        run.id,
        status="running",
        message=None,
        started_at=now(),
        finished_at=None,
        partition_id=partitions.save(store, setting.record),
        parameters=fed.flat.size,
        engine=fed.executor.name,
        device=devices.name(device),
        environment=described,
    )
    return described


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
        loop.account.keep(last=True)
        write.update_run(store, loop.run_id, status="diverged", message=message, finished_at=now())
        loop.checkpoints.remove()
        raise Diverged(message, error.hint) from None
    except torch.OutOfMemoryError:
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
        loop.account.keep(last=True)
        write.update_run(store, loop.run_id, status=status, message=message, finished_at=now())
