"""Stores a run in the database: its status, its execution, and its rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sqlalchemy
import torch

from pflbench import environment, methods, models, plain
from pflbench.engine import devices
from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import COUNTERS, Federation
from pflbench.engine.memory import Shortage
from pflbench.errors import Diverged
from pflbench.run import gpu_check
from pflbench.run.execution import Execution
from pflbench.run.prepared import Prepared
from pflbench.run.round import EVALUATION, HEADLINE, RECEPTION, UPDATE, VALIDATION, CommunicationRound
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
SURVIVORS = "survivors"  # artifact [c] of rounds that lose clients: the others of the cohort


class RunRecord:
    """The record of one run. Some of it is known only during training: notes, shortages of memory, uncaptured steps."""

    def __init__(self, store: sqlalchemy.Engine, row: Run, run: Prepared, fed: Federation, require_owned: RequireOwned) -> None:
        """Marks the run as running and stores environment and execution. Notes of earlier rounds stay."""
        spec, how, before, started_at = run.spec, run.how, row.environment, now()
        self.run_id = row.id
        self.rounds_stored = patiently(lambda: write.whole_rounds(store, row.id))
        self._store, self._fed, self._whole = store, fed, how.record_host
        self._writer = RunWriter(store, row, started_at, require_owned)
        self._notes: dict[str, str] = dict(before.get("notes", {}))
        self._shortages: list[dict[str, Any]] = before.get("chunk", {}).get("out_of_memory", [])  # with their rounds
        self._told = set(messages(before))
        always = self.rounds_stored == 0 or before.get("deterministic", False)
        known = {
            "scale": how.scale,
            "plugin": methods.record(spec.method.name),
            "model": models.record(spec.model, spec.own_model),
            "notes": self._notes,
            "forced": before.get("forced"),
            "gpu_check": gpu_check.in_short(fed.device),
            "deterministic": how.deterministic and always,
        }
        self._environment = self._private(
            {
                **environment.describe(self._whole),
                "command": how.command,
                "torch_threads": torch.get_num_threads(),
                "data": run.data.content,
                **{name: value for name, value in known.items() if value},
                **({"cuda": torch.version.cuda} if fed.device.type == "cuda" else {}),
                **self._executed(),
            }
        )
        columns = {
            "status": "running",
            "message": None,
            "started_at": started_at,
            "finished_at": None,
            "partition_id": patiently(lambda: partitions.save(store, run.data.record)),
            "parameters": fed.flat.model_size,
            "engine": fed.executor.name,
            "device": devices.name(fed.device),
            "environment": self._environment,
        }
        patiently(lambda: self._writer.change(**columns))

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
        if self._fed.executor.chunks is not None:
            self._fed.executor.chunks.remember([Shortage(one["work"], one["clients"], one["then"]) for one in self._shortages])

    def note(self, notes: Mapping[str, str]) -> None:
        """Adds a round's notes, by name; the first note of a name stays."""
        self._notes = {**self._notes, **notes, **self._notes}

    def keep(self, record: RoundRecord) -> None:
        """Stores a round, then changed notes and changes of execution. Waits for a server that cannot be reached."""
        patiently(lambda: self._writer.round(record))
        patiently(self._keep_environment)
        self.rounds_stored = record.round + 1

    def end(self, status: str, message: str | None = None) -> None:
        """Stores how the run ended. Waits for a server that cannot be reached if the run is complete."""

        def write_all() -> None:
            self._keep_environment(last=True)
            self._writer.change(status=status, message=self._private(message), finished_at=now())

        if status in ("finished", "diverged"):
            patiently(write_all)
        else:
            write_all()

    def news(self) -> tuple[str, ...]:
        """New messages, each once."""
        new = [text for text in messages({**self._executed(), "notes": self._notes}) if text not in self._told]
        self._told.update(new)
        return tuple(new)

    def _keep_environment(self, last: bool = False) -> None:
        notes = {"notes": self._notes} if self._notes else {}
        known = {**self._environment, **self._private({**self._executed(last), **notes})}
        if known != self._environment:
            self._writer.change(environment=known)
            self._environment = known

    def _private(self, value: Any) -> Any:
        """The value without names and paths of the machine, unless they were asked for."""
        return value if self._whole else plain.privately(value)

    def _executed(self, last: bool = False) -> dict[str, Any]:
        """The executor's record; the pack's part only at the end."""
        known = {name: value for name, value in self._fed.executor.record().items() if last or name != "pack"}
        if "chunk" in known:
            new = known["chunk"]["out_of_memory"][len(self._shortages) :]
            self._shortages += [{**one, "round": self.rounds_stored} for one in new]
            known["chunk"] = {**known["chunk"], "out_of_memory": list(self._shortages)}
        return known


def as_begun(how: Execution, begun: Run | None, device: torch.device) -> Execution:
    """With the choices that were measured when the run started on a device of this name, unless the command names others.

    With other choices a resumed run would end with other last digits.
    """
    if begun is None or how.deterministic or begun.device != devices.name(device):
        return how
    record = begun.environment
    convolution = record.get("steps", {}).get("convolution")
    if how.convolution == "auto" and convolution:
        how = replace(how, convolution=convolution)
    return replace(how, estimate=record.get("chunk", {}).get("estimate"))


def cost(this: CommunicationRound) -> dict[str, Any]:
    """The columns of a round's cost, reception and update together. The traffic of each client becomes an artifact."""
    ledger, lost = this.training.ledger, len(this.S) - len(this.survivors)
    ledger.observe(TRAFFIC, this.traffic)
    flops = [this.flops[phase] for phase in (RECEPTION, UPDATE)]
    if lost:
        ledger.observe(SURVIVORS, this.survivors)
    sent = dict(zip(COUNTERS, this.traffic.sum(axis=0).tolist(), strict=True))
    return {
        **sent,
        "bytes_up": int(this.bytes_up.sum()),
        "bytes_down": int(this.bytes_down.sum()),
        "flops": None if None in flops else round(sum(filter(None, flops))),
        "seconds_receive": this.seconds[RECEPTION],
        "seconds_update": this.seconds[UPDATE],
        # The tested model may be a copy that is not trained itself.
        "train_loss": ledger.train_loss.get(this.method.tested_model, ledger.train_loss.get("model")),
        "seconds_simulated": this.seconds_simulated,
        "participants": len(this.S),
        "peak_memory": devices.peak(this.training.device),
    }


def tested(this: CommunicationRound, series: Mapping[str, Scores], central: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """The columns of a round's E1. Raises Diverged for a loss that is not finite."""
    scores, seconds = series[HEADLINE], this.seconds[EVALUATION]
    if not scores:
        return {"seconds_evaluate": seconds, "series": central}
    for one in series.values():
        if not np.isfinite(one.loss).all():
            client = int(one.clients[~np.isfinite(one.loss)][0])
            raise Diverged(f"client {client} has a non-finite test loss before training in round {this.t}")
    each = scores.correct / scores.total
    validated: dict[str, Any] = {}
    if VALIDATION in series:
        mine = series[VALIDATION].of(scores.clients)
        validated = {"val_correct": mine.correct, "val_total": mine.total, "val_client_loss": mine.loss}
        if mine.total.any():
            validated |= {"val_accuracy": mine.accuracy, "val_loss": mine.mean_loss}
    return {
        **validated,
        "accuracy": scores.accuracy,
        "accuracy_mean": float(each.mean()),
        "accuracy_std": float(each.std()),
        "test_loss": scores.mean_loss,
        "seconds_evaluate": seconds,
        "clients": scores.clients,
        "correct": scores.correct,
        "total": scores.total,
        "loss": scores.loss,
        "series": {
            **{name: (s.accuracy, s.mean_loss) for name, s in series.items() if name not in (HEADLINE, VALIDATION)},
            **central,
        },
    }


def adapted(results: Sequence[Scores], first: int, t: int) -> list[dict[str, Any]]:
    """The rows of new clients after 0, 1, ... epochs of adaptation. first: the id of the first of them in the partition.

    Raises Diverged for a loss that is not finite.
    """
    rows = []
    for epochs, scores in enumerate(results):
        for client, correct, total, loss in zip(*(each.tolist() for each in vars(scores).values()), strict=True):
            if not math.isfinite(loss):
                where = f"after {epochs} epochs of adaptation in round {t}"
                raise Diverged(f"new client {first + client} has a non-finite test loss {where}")
            rows.append({"client": first + client, "epochs": epochs, "correct": correct, "total": total, "loss": loss})
    return rows


def messages(record: Mapping[str, Any]) -> list[str]:
    """What the user is told of a run's record: notes, shortages of memory, and why steps are not captured."""
    shortages = record.get("chunk", {}).get("out_of_memory", [])
    first, last = {one["work"]: one for one in reversed(shortages)}, {one["work"]: one for one in shortages}
    return [
        *record.get("notes", {}).values(),
        *(
            f"Out of memory in {work} with {first[work]['clients']} clients at a time: {one['then']} at a time from here on, "
            "same results within rounding."
            for work, one in last.items()
        ),
        *(
            FALLBACK.format(reason=text.removeprefix("not captured: "))
            for text in sorted(record.get("steps", {}).get("apart", {}))
        ),
    ]
