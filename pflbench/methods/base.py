"""What a method is: state in, state out. The round loop calls init once, then receive and update in every round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as _dataclass
from torch import Tensor

if TYPE_CHECKING:
    from pflbench.engine.federation import Federation

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


def method(cls: type) -> Any:
    """Decorator: a frozen dataclass whose hyperparameters are validated when it is made."""
    return _dataclass(frozen=True, config=_CONFIG)(cls)


def hyper(default: Any, help: str, *, search: tuple[Any, ...] = (), **limits: Any) -> Any:
    """A hyperparameter: its default, what it is, the paper's search range, and limits (gt, ge, lt, le)."""
    return Field(default, description=help, json_schema_extra={"search": list(search)}, **limits)


class Method(ABC):
    """A federated method.

    The state is a frozen dataclass of tensors with everything the method carries from round to round; it is the checkpoint.
    """

    title: ClassVar[str]
    authors: ClassVar[str]
    venue: ClassVar[str]
    algorithm: ClassVar[str]  # where it is defined, e.g. "Algorithm 1"
    category: ClassVar[str]
    version: ClassVar[int] = 1  # raise it whenever a change alters results: it is part of a run's key
    slot: ClassVar[str] = "model"  # which of a client's models is evaluated: its BatchNorm buffers are used
    shared_slots: ClassVar[tuple[str, ...]] = ("model",)  # which of them travel, should BatchNorm buffers do so (4.3)

    @abstractmethod
    def init(self, fed: Federation) -> Any:
        """The state before round 1."""

    @abstractmethod
    def receive(self, fed: Federation, s: Any, S: Tensor) -> Any:
        """Server -> clients of cohort S: download and local initialisation. E1 evaluates what `deployed` says after this."""

    @abstractmethod
    def update(self, fed: Federation, s: Any, S: Tensor) -> Any:
        """Local training, upload, aggregation."""

    @abstractmethod
    def deployed(self, s: Any) -> Tensor:
        """The models that clients would use now: [N, P], or [P] where all use the same."""

    def series(self, s: Any) -> dict[str, tuple[Tensor, str]]:
        """Further models to evaluate beside the headline: name -> (models as in `deployed`, slot)."""
        return {}
