"""What a run *is*: everything that decides its numbers, validated, immutable, with a canonical JSON form and a key.

Where a run is executed (device, executor, worker count) is recorded with its results but is no part of the key:
the same specification gives the same numbers everywhere, within the stated tolerance.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

Value = bool | int | float | str | None

# Where own data lies on one machine is no property of the run: `content`, the hash of that data, stands for it in the key.
_NOT_IN_KEY = {"path", "test_labels"}

LARGEST_COUNT = 2**31 - 1  # that a column of the database holds, on a server


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def later(default: Value, **limits: Any) -> Any:
    """A field that is newer than stored runs: left out at its default, which is how they were trained, so that keys stay."""
    return Field(default, exclude_if=lambda value: value == default, **limits)


# Between a dataset's name and the first digits of a content that is not the official one.
OTHER_CONTENT = ", other content "


class DataSpec(Spec):
    """A dataset of the table of contents (`name`, `variant`) or own data (`folder`, `npz`, `csv`, ...: `path`).

    content: SHA-256 (hex) of the data; None for a dataset's official content.
    """

    name: str
    variant: str | None = None
    path: str | None = None
    content: str | None = None

    @property
    def label(self) -> str:
        if self.path is not None:
            return f"{self.name}:{PurePath(self.path).name}"
        return f"{self.named}{OTHER_CONTENT}{self.content[:6]}" if self.content else self.named

    @property
    def named(self) -> str:
        """As on the command line, whatever the content: 'mnist', 'agnews:test', 'npz:/data/own.npz'."""
        more = self.path or self.variant
        return f"{self.name}:{more}" if more else self.name


class _Partition(Spec):
    clients: int = Field(ge=1, le=LARGEST_COUNT)
    seed: int = Field(1, ge=0, le=2**32 - 1)  # NumPy's
    test_share: float = Field(0.25, gt=0, lt=1)
    central_test: bool = False  # the official test part is set aside; clients share the training part


class Pathological(_Partition):
    """methods.md 3.1: every client holds `classes_per_client` classes."""

    scheme: Literal["pathological"] = "pathological"
    classes_per_client: int = Field(ge=1)
    balanced: bool = False
    min_samples: int | None = Field(None, ge=1)

    @property
    def label(self) -> str:
        return f"Pathological({self.classes_per_client})"


class Dirichlet(_Partition):
    """methods.md 3.2: each class is spread over the clients by Dir(beta)."""

    scheme: Literal["dirichlet"] = "dirichlet"
    beta: float = Field(gt=0)
    min_samples: int | None = Field(None, ge=1)

    @property
    def label(self) -> str:
        return f"Dir({self.beta:g})"


class IID(_Partition):
    """methods.md 3.3: shuffled equal shares, or the reference code's unequal ones."""

    scheme: Literal["iid"] = "iid"
    shares: Literal["equal", "reference"] = "equal"

    @property
    def label(self) -> str:
        return "IID" if self.shares == "equal" else "IID(reference)"


class Groups(_Partition):
    """methods.md 3.4: groups of clients, each with its own dominating classes (FedAMP's practical setting)."""

    scheme: Literal["groups"] = "groups"
    groups: int = Field(5, ge=1)
    dominant_share: float = Field(0.8, gt=0, le=1)
    group_sizes: tuple[int, ...] | None = None

    @property
    def label(self) -> str:
        return f"Groups({self.groups})"


class Natural(_Partition):
    """methods.md 3.6: a client for each owner of samples."""

    scheme: Literal["natural"] = "natural"
    min_samples: int | None = Field(None, ge=1)

    @property
    def label(self) -> str:
        return "Natural"


class Pfllib(Spec):
    """A folder that PFLlib wrote: partition and data together. `kind`, `beta`, `classes_per_client` as its config.json says."""

    scheme: Literal["pfllib"] = "pfllib"
    path: str
    content: str
    clients: int = Field(ge=1)
    kind: Literal["dirichlet", "pathological", "iid", "unknown"] = "unknown"
    beta: float | None = None
    classes_per_client: int | None = None

    @property
    def label(self) -> str:
        inner = {"dirichlet": f"Dir({self.beta:g})" if self.beta else "Dir", "iid": "IID"}.get(self.kind, self.kind)
        if self.kind == "pathological" and self.classes_per_client:
            inner = f"Pathological({self.classes_per_client})"
        return f"PFLlib {inner}"


OPTION_OF = {"seed": "partition_seed", "shares": "iid_shares"}  # fields of partitions whose options of `run` have other names

PartitionSpec = Annotated[Pathological | Dirichlet | IID | Groups | Natural | Pfllib, Field(discriminator="scheme")]


# Options of training that mean something under some choices of another one only.
DEPENDS_ON: dict[str, tuple[str, tuple[str, ...]]] = {
    "momentum": ("optimizer", ("momentum",)),
    "optimizer_state": ("optimizer", ("momentum", "adamw")),
    "lr_step_every": ("lr_schedule", ("step",)),
    "lr_gamma": ("lr_schedule", ("step",)),
}


class TrainSpec(Spec):
    """The shared protocol (methods.md 0.2, 0.5, 2.2, 2.3)."""

    rounds: int = Field(ge=1, le=LARGEST_COUNT)
    local_epochs: int = Field(1, ge=1)
    batch_size: int = Field(10, ge=1)
    lr: float = Field(gt=0)
    join_ratio: float = Field(1.0, gt=0, le=1)
    eval_every: int = Field(1, ge=1)
    evaluate: Literal["participants", "all"] = "participants"
    drop_last: Literal["auto", "always", "never"] = "auto"
    bn_buffers: Literal["local", "average", "reset"] = "local"
    dtype: Literal["float32", "float64", "tf32"] = "float32"  # tf32: float32, but for the factors of products
    optimizer: Literal["sgd", "momentum", "adamw"] = "sgd"
    momentum: float | None = Field(None, gt=0, lt=1)
    weight_decay: float | None = Field(None, ge=0)
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    lr_schedule: Literal["constant", "cosine", "step"] = "constant"
    lr_step_every: int | None = Field(None, ge=1)
    lr_gamma: float | None = Field(None, gt=0, lt=1)
    val_share: float = later(0.0, ge=0, lt=1)  # of each client's training samples, for validation
    eval_repeats: int = later(1, ge=1)  # readings of a test that is random (methods.md 2.10)
    new_clients: int = later(0, ge=0)  # the partition's last clients, which never join (methods.md 2.13)
    new_every: int = later(0, ge=0)  # rounds between their tests; 0: after the last round alone
    new_epochs: int = later(5, ge=0)  # of adaptation; they are tested after each
    new_samples: int | None = later(None, ge=1)  # that each adapts on, at most
    # Behaviour of clients (methods.md 2.14).
    join_ratio_low: float | None = later(None, gt=0, le=1)  # each round's ratio is drawn from [join_ratio_low, join_ratio]
    dropout: float = later(0.0, ge=0, lt=1)
    slowest: float = later(1.0, ge=1)  # how many times slower the slowest device may be than the fastest
    flops_per_second: float | None = later(None, gt=0)  # of the fastest device
    bandwidth: float | None = later(None, gt=0)  # bytes per second, each way
    latency: float = later(0.0, ge=0)  # seconds, each way
    deadline: float | None = later(None, gt=0)  # simulated seconds
    upload: str = later("full")  # full, int8 or topk:SHARE

    @property
    def floats(self) -> Literal["float32", "float64"]:
        """The type of all tensors."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def tests_outsiders(self) -> bool:
        """Whether clients outside a round's cohort are tested in it, and therefore initialised as well."""
        return self.evaluate == "all" and not self.everyone_joins

    @property
    def everyone_joins(self) -> bool:
        """Whether every cohort is all clients."""
        return self.join_ratio == 1 and self.join_ratio_low is None

    @property
    def mean_join_ratio(self) -> float:
        return self.join_ratio if self.join_ratio_low is None else (self.join_ratio_low + self.join_ratio) / 2

    @property
    def has_clock(self) -> bool:
        """Whether rounds take simulated seconds."""
        return self.flops_per_second is not None or self.bandwidth is not None or self.latency > 0

    @property
    def kept_share(self) -> float | None:
        """The share of an upload's entries that topk keeps; None for another form of uploads."""
        form, _, share = self.upload.partition(":")
        return float(share) if form == "topk" else None

    @property
    def plain_sgd(self) -> bool:
        """Whether local training is w <- w - lr * g, at whatever rate."""
        return self.optimizer == "sgd" and not self.weight_decay

    def lr_of(self, t: int) -> float:
        """The rate of local training in round t = 1, 2, ... (methods.md 2.3)."""
        if self.lr_schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * (t - 1) / self.rounds)) / 2
        if self.lr_step_every and self.lr_gamma:
            return self.lr * self.lr_gamma ** ((t - 1) // self.lr_step_every)
        return self.lr

    @model_validator(mode="before")
    @classmethod
    def _follows(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        found = dict(values)
        if found.get("join_ratio_low") == found.get("join_ratio", 1.0):
            found["join_ratio_low"] = None  # a ratio drawn from one number
        whole = found.get("join_ratio", 1.0) == 1 and found.get("join_ratio_low") is None
        if whole and found.get("evaluate") in (None, "participants"):
            found["evaluate"] = "all"  # the two rules are one: it must not split keys
        # PyTorch's defaults, written out. Without AdamW a decay of 0 is none: it must not split keys either.
        usual = {"momentum": ("momentum", 0.9), "adamw": ("weight_decay", 0.01), "step": ("lr_gamma", 0.1)}
        for choice in (found.get("optimizer"), found.get("lr_schedule")):
            if isinstance(choice, str) and choice in usual and found.get(usual[choice][0]) is None:
                found |= dict([usual[choice]])
        if found.get("optimizer") != "adamw" and found.get("weight_decay") == 0:
            found["weight_decay"] = None
        return found

    @model_validator(mode="after")
    def _go_together(self) -> TrainSpec:
        for name, (owner, choices) in DEPENDS_ON.items():
            value, default = getattr(self, name), type(self).model_fields[name].default
            of, flag = f"--{owner.replace('_', '-')}", f"--{name.replace('_', '-')}"
            if value != default and getattr(self, owner) not in choices:
                raise ValueError(f"{flag} goes with {of} {' or '.join(choices)}, but that is {getattr(self, owner)}")
            if value is None and getattr(self, owner) in choices:
                raise ValueError(f"{of} {getattr(self, owner)} needs {flag}")
        for name in ("new_every", "new_epochs", "new_samples"):
            if not self.new_clients and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"--{name.replace('_', '-')} needs --new-clients")
        if self.join_ratio_low is not None and self.join_ratio_low > self.join_ratio:
            raise ValueError(f"--join-ratio-low {self.join_ratio_low:g} is above --join-ratio {self.join_ratio:g}")
        if self.slowest > 1 and self.flops_per_second is None:
            raise ValueError("--slowest needs --flops-per-second, the speed of the fastest device")
        if self.deadline is not None and not self.has_clock:
            raise ValueError("--deadline needs a clock: --flops-per-second, --bandwidth or --latency")
        return self

    @field_validator("upload")
    @classmethod
    def _form_of_uploads(cls, text: str) -> str:
        form, _, share = text.partition(":")
        with suppress(ValueError):
            if form == "topk" and 0 < float(share) <= 1:
                return f"topk:{float(share):.12g}"  # one key for 0.1 and 0.10
        if text not in ("full", "int8"):
            raise ValueError("it is none of full, int8 and topk:SHARE with a share above 0, at most 1")
        return text


LATER = {name: field.default for name, field in TrainSpec.model_fields.items() if field.exclude_if}
"""The fields of TrainSpec that are left out of JSON at their default, and these."""


class MethodSpec(Spec):
    """A method, the version of its implementation and its hyperparameters, defaults written out."""

    name: str
    version: int = 1
    hyperparameters: dict[str, Value] = Field(default_factory=dict)
    test_labels: bool = False  # whether clients adapt on labelled test data; follows from the hyperparameters


class OwnModel(Spec):
    """A model that is not built in. path: of its file; None: of an installed package. content: SHA-256 (hex) of its code."""

    path: str | None = None
    content: str


class RunSpec(Spec):
    """One run. `key` identifies it; `protocol` identifies the runs it may stand beside in one table row or cell."""

    data: DataSpec
    partition: PartitionSpec
    model: str
    train: TrainSpec
    method: MethodSpec
    seed: int = Field(0, ge=0, le=2**63 - 1)  # the database's
    own_model: OwnModel | None = None  # whose name is `model`

    @property
    def training_clients(self) -> int:
        """N: the partition's clients without the new ones."""
        return self.partition.clients - self.train.new_clients

    @model_validator(mode="after")
    def _someone_joins(self) -> RunSpec:
        if self.training_clients < 1:
            raise ValueError(f"--new-clients {self.train.new_clients} of {self.partition.clients} clients leaves nobody to train")
        if int(self.train.join_ratio * self.training_clients) == 0:
            scale = 1000 * 10 ** len(str(self.training_clients))  # digits enough for a ratio that, rounded up, selects only one
            raise ValueError(
                f"join ratio {self.train.join_ratio:g} of {self.training_clients} clients selects nobody; "
                f"{math.ceil(scale / self.training_clients) / scale:g} selects one"
            )
        return self

    def canonical(self) -> dict[str, Any]:
        """All that decides the run's numbers, as plain JSON types."""
        plain: dict[str, Any] = _without_paths(self.model_dump(mode="json"))
        return plain

    @property
    def key(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical JSON."""
        return _digest(self.canonical())

    @property
    def protocol(self) -> str:
        """As `key`, without method and seed: runs with the same protocol are comparable."""
        return _digest({name: part for name, part in self.canonical().items() if name not in ("method", "seed")})


def from_stored(plain: Any) -> RunSpec | None:
    """The specification that stored JSON is; None where it is none, or does not say each of its fields."""
    try:
        found = RunSpec.model_validate(plain)
    except ValidationError:
        return None
    return found if found.model_dump(mode="json") == plain else None


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_paths(v) for k, v in value.items() if k not in _NOT_IN_KEY}
    return value


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
