"""What the FedALA paper's Table 3 prints of time and communication: ResNet-18 on Tiny-ImageNet, minutes on their GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from pflbench.papers import values
from pflbench.report import paper
from pflbench.report.paper import Place
from pflbench.report.tables import TABLES
from pflbench.store.runs import Select

# Parameters that a client sends and receives in a round (methods.md 1.18): of Table 3, and of the methods that it lacks. Sigma:
# those of a model; alpha_f: the share of its feature extractor; M: the models that a client receives.
_OTHERS = {"local": "0", "heurfedamp": "2 Σ", "feddeper": "2 Σ", "elastic": "3 Σ"}


@dataclass(frozen=True)
class Printed:
    """Of a method; times in seconds. initial: ALA's initial stage. multiple: communication over Sigma, None for FedRep's."""

    total: float
    initial: float | None
    iteration: float
    multiple: float | None

    @property
    def rounds(self) -> float:
        """Iterations until convergence, which total and iteration imply."""
        return (self.total - (self.initial or 0.0)) / self.iteration


@cache
def printed() -> dict[str, Printed]:
    """By method."""
    found: dict[str, dict[str, float]] = {}
    for value in values():
        if value.table == "table3" and value.mean is not None:
            found.setdefault(paper.name(value.method), {})[value.metric] = value.mean
    return {
        method: Printed(
            60 * own["total_time_min"],
            60 * own["total_time_min_initial_stage"] if "total_time_min_initial_stage" in own else None,
            60 * own["time_per_iter_min"],
            own.get("comm_params_per_iter_in_units_of_Sigma"),
        )
        for method, own in found.items()
    }


@cache
def _formulas() -> dict[str, str]:
    said = {paper.name(v.method): v.setting["formula"] for v in values() if v.table == "table3" and "formula" in v.setting}
    plain = {m: f.replace("alpha_f", "α_f").replace("Sigma", "Σ").replace("*", " ").replace("+", " + ") for m, f in said.items()}
    return {**plain, **_OTHERS}


def formula(method: str) -> str:
    """'2 Σ'; plugging in ALA changes nothing. Nothing for a plug-in's method."""
    return _formulas().get(method.partition("+ala")[0], "")


def differences(spec: dict[str, Any]) -> tuple[str, ...] | None:
    """What sets a run's protocol apart from the table's; None where dataset, model or partition is another."""
    (place,) = _places()
    if not paper.is_at(spec, place):
        return None
    return paper.differences(spec, Select("best"), place)


def _places() -> tuple[Place, ...]:
    return TABLES["overhead"].places
