"""What is measured beside one another: a method on an executor, made one way or another, on its way through the rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch

from pflbench.engine.batched import convolutions
from pflbench.engine.packed.executor import Pack
from pflbench.errors import unknown
from pflbench.run.execution import Execution, checked
from pflbench.run.prepared import prepare
from pflbench.run.round import PHASES, rounds
from pflbench.run.setting import Setting
from pflbench.spec import RunSpec

SEEDS = 5  # of a pack: the paper's runs of a method

Engine = Literal["loop", "batched", "packed"]
ENGINES = get_args(Engine)
WAYS = {"capture": ("none", "graph"), "convolution": convolutions.CONVOLUTIONS}


@dataclass(frozen=True)
class Way:
    """How an arm's rounds are made. name: as the user gives it, "batched" or "batched:none:unfold"."""

    name: str
    engine: Engine
    capture: Literal["auto", "graph", "none"] = "auto"
    convolution: Literal["auto", "groups", "search", "unfold"] = "auto"

    @property
    def runs(self) -> int:
        """Made at once."""
        return SEEDS if self.engine == "packed" else 1

    def execution(self, device: torch.device) -> Execution:
        """Raises UserError for ways that the executor or the device does not have."""
        engine: Literal["loop", "batched"] = "loop" if self.engine == "loop" else "batched"
        return checked(Execution(str(device), engine, capture=self.capture, convolution=self.convolution))


def way(name: str) -> Way:
    """Raises UserError for an unknown executor or way."""
    engine, *choices = name.split(":")
    if engine not in ENGINES:
        raise unknown("engine", engine, ["both", *ENGINES])
    found: dict[str, Any] = {}
    for choice in choices:
        kind = next((kind for kind, valid in WAYS.items() if choice in valid), None)
        if kind is None:
            raise unknown("way of computing", choice, [value for valid in WAYS.values() for value in valid])
        found[kind] = choice
    return Way(name, cast(Engine, engine), **found)


class Alone:
    """One run."""

    def __init__(self, spec: RunSpec, setting: Setting, device: torch.device, how: Execution) -> None:
        run = prepare(spec, setting, device, how)
        self.fed = run.federation()
        self._rounds = rounds(run.method, self.fed)

    def round(self) -> dict[str, float]:
        """Seconds of each phase of the next round."""
        seconds, _ = next(self._rounds)
        return seconds

    def steps(self) -> dict[str, Any] | None:
        """How its steps were made; None where there is nothing to tell."""
        return self.fed.executor.record().get("steps")

    def close(self) -> None:
        self.fed.executor.close()


class Packed:
    """As many runs as SEEDS, each with a seed of its own, as one program. The seconds are those of all together."""

    def __init__(self, spec: RunSpec, setting: Setting, device: torch.device, how: Execution) -> None:
        seeds = [prepare(spec.model_copy(update={"seed": seed}), setting, device, how) for seed in range(SEEDS)]
        made = seeds[0].executor(seeds[0].initial_model(), SEEDS)
        self.inner, self.pack = made, Pack(made, SEEDS)
        feds = [run.clients(run.initial_model(), own) for run, own in zip(seeds, self.pack.executors, strict=True)]
        self._rounds = self.pack.together([(seconds for seconds, _ in rounds(seeds[0].method, fed)) for fed in feds])

    def round(self) -> dict[str, float]:
        """Seconds of each phase, of the next round of every run."""
        each = [seconds for _, (_, seconds) in zip(range(SEEDS), self._rounds, strict=False)]
        return {phase: sum(seconds[phase] for seconds in each) for phase in PHASES}

    def steps(self) -> dict[str, Any] | None:
        return self.inner.record().get("steps")

    def close(self) -> None:
        self._rounds.close()
        self.inner.close()


def arm(way: Way, spec: RunSpec, setting: Setting, device: torch.device) -> Alone | Packed:
    return (Packed if way.engine == "packed" else Alone)(spec, setting, device, way.execution(device))
