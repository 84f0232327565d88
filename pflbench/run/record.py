"""Stores a run in the database: its status, its execution, and its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sqlalchemy
import torch

from pflbench import environment, methods, models, plain
from pflbench.engine import devices
from pflbench.engine.batched.convolutions import CONVOLUTIONS
from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import COUNTERS, Federation
from pflbench.engine.memory import Shortage
from pflbench.errors import Diverged
from pflbench.run import gpu_check
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData
from pflbench.run.round import EVALUATION, RECEPTION, UPDATE, CommunicationRound
from pflbench.run.testing import HEADLINE
from pflbench.spec import RunSpec
from pflbench.store import partitions, write
from pflbench.store.database import reading
from pflbench.store.failures import patiently
from pflbench.store.locks import RequireOwned
from pflbench.store.run_writer import RunWriter
from pflbench.store.runs import Run
from pflbench.store.schema import now
from pflbench.store.write import RoundRecord

FALLBACK = (
    "Some training steps run without a CUDA graph, with the same results: {reason}. "
    "Python launches each of their kernels, which is slower the smaller the model is."
)
TRAFFIC = "traffic"  # artifact [N, 4] of every round: what each client sent and received, in the order of COUNTERS


class RunRecord:
    """The record of one run. Some of it is known only during training: notes, shortages of memory, uncaptured steps."""

    def __init__(self, store: sqlalchemy.Engine, row: Run, fed: Federation, hold: RequireOwned) -> None:
        self.run_id = row.id
        self.rounds_stored = patiently(lambda: write.whole_rounds(store, row.id))
        self._store, self._fed = store, fed
        self._started_at = now()
        self._writer = RunWriter(store, row, self._started_at, hold)
        self._environment: dict[str, Any] = {}
        self._whole = False
        self._notes: dict[str, str] = dict(row.environment.get("notes", {}))
        self._forced: dict[str, Any] | None = row.environment.get("forced")
        self._untold: list[str] = []
        # Shortages of memory with their rounds; how many of the executor's are stored, and how many were reported.
        self._shortages: list[dict[str, Any]] = row.environment.get("chunk", {}).get("out_of_memory", [])
        self._shortages_kept = self._shortages_told = 0
        self._always_deterministic = self.rounds_stored == 0 or row.environment.get("deterministic", False)
        self._fallbacks_told: set[str] = set()

    def begin(self, spec: RunSpec, data: FederationData, how: Execution) -> None:
        """Marks the run as running and stores environment and execution. Notes of earlier rounds stay."""
        fed = self._fed
        described = {
            **environment.describe(how.record_host),
            "command": how.command,
            "torch_threads": torch.get_num_threads(),
            "data": data.content,
        }
        known = {
            "scale": how.scale,
            "plugin": methods.record(spec.method.name),
            "model": models.record(spec.model, spec.own_model),
            "notes": dict(self._notes),
            "forced": self._forced,
            "gpu_check": gpu_check.in_short(fed.device),
            "deterministic": how.deterministic and self._always_deterministic,
        }
        self._whole = how.record_host
        told = described | {name: value for name, value in known.items() if value} | devices.software(fed.device)
        self._environment = self._told(told | self._executed())
        columns = {
            "status": "running",
            "message": None,
            "started_at": self._started_at,
            "finished_at": None,
            "partition_id": patiently(lambda: partitions.save(self._store, data.record)),
            "parameters": fed.flat.size,
            "engine": fed.executor.name,
            "device": devices.name(fed.device),
            "environment": self._environment,
        }
        patiently(lambda: self._writer.begin(**columns))

    def has(self, t: int, measured: Mapping[str, float | None]) -> bool:
        """Whether all rounds up to t are stored, and t with these numbers."""

        def found() -> bool:
            with reading(self._store) as connection:
                return write.has_round(connection, self.run_id, t, **measured)

        return t < self.rounds_stored and patiently(found)

    def rewind(self, last_round: int) -> None:
        """Removes later rounds, and restores the number of clients at a time that memory allowed at that round."""
        patiently(lambda: self._writer.rewind(last_round))
        self.rounds_stored = last_round + 1
        self._shortages = [one for one in self._shortages if one.get("round", 0) <= last_round]
        self._fed.executor.remember([Shortage(one["work"], one["clients"], one["then"]) for one in self._shortages])
        self._shortages_kept = self._shortages_told = len(self._fed.executor.shortages())

    def note(self, notes: Mapping[str, str]) -> None:
        """Adds a round's notes, by name; the first note of a name stays."""
        new = {name: text for name, text in notes.items() if name not in self._notes}
        self._notes |= new
        self._untold += new.values()

    def keep(self, record: RoundRecord) -> None:
        """Stores a round, then changed notes and changes of execution. Waits for a server that cannot be reached."""
        patiently(lambda: self._writer.round(record))
        patiently(self._keep_environment)
        self.rounds_stored = record.round + 1

    def end(self, status: str, message: str | None = None) -> None:
        """Stores how the run ended. Waits for a server that cannot be reached if the run is complete."""

        def write_all() -> None:
            self._keep_environment(last=True)
            self._writer.change(status=status, message=self._told(message), finished_at=now())

        if status in ("finished", "diverged"):
            patiently(write_all)
        else:
            write_all()

    def news(self) -> tuple[str, ...]:
        """New warnings, each once: notes, shortages of memory, and why steps were not captured."""
        told, self._untold = self._untold, []
        new = self._fed.executor.shortages()[self._shortages_told :]
        self._shortages_told += len(new)
        told += [in_words(new)] if new else []
        apart = self._fed.executor.record().get("steps", {}).get("apart", {}).keys() - self._fallbacks_told
        self._fallbacks_told |= apart
        return (*told, *map(uncaptured, sorted(apart)))

    def _keep_environment(self, last: bool = False) -> None:
        known = {**self._environment, **self._told(self._executed(last))}
        if self._notes:
            known["notes"] = self._told(dict(self._notes))
        if known != self._environment:
            self._writer.change(environment=known)
            self._environment = known

    def _told(self, value: Any) -> Any:
        """The value without names and paths of the machine, unless they were asked for."""
        return value if self._whole else plain.privately(value)

    def _executed(self, last: bool = False) -> dict[str, Any]:
        """The executor's record; the pack's part only at the end."""
        told = {name: value for name, value in self._fed.executor.record().items() if last or name != "pack"}
        if "chunk" in told:
            new = told["chunk"]["out_of_memory"][self._shortages_kept :]
            self._shortages_kept += len(new)
            self._shortages += [{**one, "round": self.rounds_stored} for one in new]
            told["chunk"] = {**told["chunk"], "out_of_memory": list(self._shortages)}
        return told


def as_begun(how: Execution, begun: Run | None, device: torch.device) -> Execution:
    """With the choices that were measured when the run started on a device of this name, unless the command names others.

    With other choices a resumed run would end with other last digits.
    """
    if begun is None or how.deterministic or begun.device != devices.name(device):
        return how
    record = begun.environment
    convolution = record.get("steps", {}).get("convolution")
    if how.convolution == "auto" and convolution in CONVOLUTIONS:
        how = replace(how, convolution=convolution)
    return replace(how, estimate=record.get("chunk", {}).get("estimate"))


def cost(this: CommunicationRound) -> dict[str, Any]:
    """The columns of a round's cost, reception and update together. The traffic of each client becomes an artifact."""
    ledger, word = this.training.ledger, this.training.dtype.itemsize
    ledger.observe(TRAFFIC, this.traffic)
    sent = dict(zip(COUNTERS, this.traffic.sum(axis=0).tolist(), strict=True))
    return {
        **sent,
        "bytes_up": word * (sent["params_up"] + sent["scalars_up"]),
        "bytes_down": word * (sent["params_down"] + sent["scalars_down"]),
        "seconds_receive": this.seconds[RECEPTION],
        "seconds_update": this.seconds[UPDATE],
        # The tested model may be a copy that is not trained itself.
        "train_loss": ledger.train_loss.get(this.method.tested_model, ledger.train_loss.get("model")),
        "participants": len(this.S),
        "peak_memory": devices.peak(this.training.device),
    }


def tested(this: CommunicationRound, series: Mapping[str, Scores], central: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """The columns of a round's E1. Raises Diverged for a loss that is not finite."""
    scores, seconds = series[HEADLINE], this.seconds[EVALUATION]
    if not scores:
        return {"seconds_evaluate": seconds, "series": central}
    for one in series.values():
        _refuse_non_finite(one, this.t)
    each = scores.correct / scores.total
    return {
        "accuracy": scores.accuracy,
        "accuracy_mean": float(each.mean()),
        "accuracy_std": float(each.std()),
        "test_loss": scores.mean_loss,
        "seconds_evaluate": seconds,
        "clients": scores.clients,
        "correct": scores.correct,
        "total": scores.total,
        "loss": scores.loss,
        "series": {**{name: (s.accuracy, s.mean_loss) for name, s in series.items() if name != HEADLINE}, **central},
    }


def _refuse_non_finite(scores: Scores, t: int) -> None:
    bad = ~np.isfinite(scores.loss)
    if bad.any():
        raise Diverged(
            f"client {int(scores.clients[bad][0])} has a non-finite test loss before training in round {t}",
            "A smaller --lr usually helps.",
        )


def uncaptured(reason: str) -> str:
    """A sentence that says why steps are not captured."""
    return FALLBACK.format(reason=reason.removeprefix("not captured: "))


def in_words(shortages: Sequence[Shortage]) -> str:
    """One sentence for each kind of work: of several shortages the first number and the last."""
    by_work: dict[str, list[Shortage]] = {}
    for shortage in shortages:
        by_work.setdefault(shortage.work, []).append(shortage)
    return " ".join(
        f"Out of memory in {work} with {of[0].clients} clients at a time: {of[-1].then} at a time from here on, "
        "same results within rounding."
        for work, of in by_work.items()
    )
