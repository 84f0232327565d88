"""How a run is executed: the options that are recorded with a run and are no part of its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pflbench.run.follow import Follow
from pflbench.run.options import option_field

_option: Callable[..., Any] = partial(option_field, "Execution")


@dataclass(frozen=True)
class Execution:
    """The options by field; those without a help text are no options of the command line."""

    device: str = _option("auto: a GPU if there is one.", default="auto", metavar="auto|cpu|cuda[:N]")
    engine: Literal["auto", "loop", "batched"] = _option(
        "loop: clients side by side on CPU cores; batched: all clients in one program. auto: loop on CPU, batched on GPU.",
        default="auto",
    )
    workers: int | None = _option("loop: clients trained side by side. Default: all cores.", min=1, max=1024)
    chunk: int | None = _option("batched: clients at a time; auto (default): as many as fit the memory.", metavar="auto|N")
    estimate: int | None = None  # clients at a time by the estimate of the run's first start; None: estimate now
    pack: int = _option("batched: train up to N runs that differ only in the seed together.", default=1, metavar="N", min=1)
    capture: Literal["auto", "graph", "none"] = _option(
        "batched: capture of training steps. graph: as CUDA graphs (auto on a GPU); none: no capture (auto on a CPU).",
        default="auto",
    )
    convolution: Literal["auto", "groups", "search", "unfold"] = _option(
        "batched on a GPU: convolutions of all clients at once. groups: one convolution in groups, cuDNN chooses its "
        "algorithm by rules; search: by trying some; unfold: products of matrices; auto: the fastest, timed at the start.",
        default="auto",
    )
    deterministic: bool = _option(
        "On a GPU: the same bits from the same command, by slower deterministic operations and without choices by measurement "
        "or free memory. A CPU always gives the same bits.",
        "--deterministic",
        default=False,
    )
    checkpoint_every: float = _option("Shortest time between two checkpoints.", default=30.0, metavar="SECONDS", min=0)
    checkpoints: str | None = _option(
        "Where checkpoints are stored: a folder that machines may share, or a URL of fsspec, as s3://bucket/name. "
        "Default: beside an SQLite database; with a server in ~/.local/state/pflbench.",
        envvar="PFLBENCH_CHECKPOINTS",
        metavar="PATH|URL",
    )
    save_artifacts_every: int = _option(
        "Save a method's artifacts (weights, attention, strategies: large) every so many rounds. Default: 0, never.",
        default=0,
        metavar="ROUNDS",
        min=0,
    )
    test_after_training: bool = _option(
        "In every round test the cohort's models right after local training, too: the series 'after training' (--metric "
        "after-training).",
        "--test-after-training",
        default=False,
    )
    metrics_every: int = _option(
        "Compute AUC, balanced accuracy and macro-F1 in those evaluated rounds (--eval-every) that are multiples of this, and "
        "after the last: see `table --metric` and `export measures`. Default: 0, never.",
        default=0,
        metavar="ROUNDS",
        min=0,
    )
    follow: Follow | None = None  # the client whose models are kept for a trajectory
    command: str = ""  # as typed
    record_host: bool = _option(
        "Store this machine's name and full paths with the runs. Passwords are never stored.", "--record-host", default=False
    )
    scale: str | None = None  # of `reproduce`, for whose table or figure the run is

    def engine_on(self, device: str) -> Literal["loop", "batched"]:
        """The executor, on a device such as "cpu" or "cuda:0"."""
        if self.engine == "auto":
            return "loop" if device == "cpu" else "batched"
        return self.engine

    def captures(self, device: str) -> bool:
        """Whether steps are captured on this device."""
        return self.engine_on(device) == "batched" and device != "cpu" and self.capture != "none"

    def unfolds(self, device: str) -> bool:
        """Whether convolutions may be unfolded on this device."""
        asked = "groups" if self.convolution == "auto" and self.deterministic else self.convolution
        return self.engine_on(device) == "batched" and device != "cpu" and asked in ("auto", "unfold")
