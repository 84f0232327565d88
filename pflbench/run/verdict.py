"""What is known of the user's own GPU: which ways of computing gave the right numbers there, and which of them a run takes.

A verdict is of a device by its name, its driver, this PyTorch and this code. It belongs to the machine, on which there may be
many results databases: so it is kept in a file of the user's. Who makes the checks is `contract.device`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

import pflbench
from pflbench import methods
from pflbench.engine import devices
from pflbench.spec import RunSpec
from pflbench.store.files import aside
from pflbench.store.schema import now

if TYPE_CHECKING:
    from pflbench.run.execution import Execution

FILE, SKIP = "PFLBENCH_GPU_VERDICTS", "PFLBENCH_GPU_CHECK"  # another file; "off": no check
NVIDIA = Path("/proc/driver/nvidia/version")
KEPT = 16  # verdicts, the newest: each change of the code makes another one
UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError)  # RuntimeError: there is no home
CHECKED_CODE = ("engine", "methods", "models", "contract")

Way = Literal["", "loop", "batched", "captured", "deterministic"]
Floats = Literal["float64", "float32"]
Status = Literal["passed", "failed", "not supported"]

PRODUCTS, TF32, RESUME, MEMORY, PACKING = "products", "tf32", "resume", "out of memory", "packing"
ESTIMATE = "estimate of memory"
WITH_EVERY_MODEL = ("fedavg", "fedala")  # the methods that a model is checked with
SHAPES_OF = {"cnn": ("cnn, 1 channel", "cnn, 3 channels")}


@dataclass(frozen=True)
class Check:
    """what: a model, a method on the MLP, or one of the words above. way: how it is computed; "" where that does not matter."""

    what: str
    way: Way
    floats: Floats

    def __str__(self) -> str:
        return f"{', '.join(filter(None, (self.what, self.way)))} in {self.floats}"


@dataclass(frozen=True)
class CheckResult:
    """off: by how much the numbers differ, and how much is allowed; None where there are none. why: of what did not pass."""

    status: Status
    off: float | None = None
    allowed: float | None = None
    why: str = ""

    def __str__(self) -> str:
        differs = "" if self.off is None or self.allowed is None else f"off by {self.off:.1e}, {self.allowed:.0e} allowed"
        return self.status if self.status == "passed" else f"{self.status}: {'; '.join(filter(None, (differs, self.why)))}"


CheckResults = Mapping[Check, CheckResult]


@dataclass(frozen=True)
class Belief:
    """What a run makes of a verdict. how: as it is executed; notes: what it does not do for that reason; resumes: whether it may
    go on from a checkpoint; told: for its record.
    """

    how: Execution
    notes: tuple[str, ...] = ()
    resumes: bool = True
    told: str | None = None


# -- what a run does ----------------------------------------------------------------------------------------------------


def believed(spec: RunSpec, device: torch.device, how: Execution) -> Belief:
    """How a run is executed on a device, by what is known of it. On a CPU, as it was asked for."""
    if device.type == "cpu":
        return Belief(how)
    if left_out():
        return Belief(how, told=f"left out ({SKIP}=off)")
    findings, problem = read(device)
    belief = choose(spec, how, findings)
    return replace(belief, notes=(*belief.notes, problem)) if problem else belief


def left_out() -> bool:
    """Whether the user has asked for no check."""
    return os.environ.get(SKIP) == "off"


def missing(specs: Iterable[RunSpec], device: torch.device, how: Execution) -> list[Check]:
    """The checks that say how these runs should be executed, and have not been made. None on a CPU."""
    if device.type == "cpu" or left_out():
        return []
    findings, _ = read(device)
    return [check for check in dict.fromkeys(one for spec in specs for one in needed(spec, how)) if check not in findings]


def subjects(model: str) -> tuple[str, ...]:
    """What is checked of a model."""
    return SHAPES_OF.get(model, (model,))


def needed(spec: RunSpec, how: Execution) -> list[Check]:
    """The checks that say how a run should be executed on a GPU: of its model and its method, in its floats."""
    floats: Floats = "float64" if spec.train.dtype == "float64" else "float32"
    ways: list[Way] = ["loop"] if how.engine == "loop" else ["loop", "batched", "captured"]
    if how.capture == "none":
        ways.remove("captured")
    found = [Check(PRODUCTS, "", floats), Check(RESUME, "", floats)]
    if spec.train.dtype == "tf32":
        found.append(Check(TF32, "", "float32"))
    found += [Check(MEMORY, way, floats) for way in ways[1:]]
    if how.pack != 1:
        found += [Check(PACKING, way, floats) for way in ways[1:]]
    # The code of a method or model from outside may be another one tomorrow.
    own = spec.method.name in WITH_EVERY_MODEL or methods.record(spec.method.name)
    whats = [*(() if spec.own_model else subjects(spec.model)), *(() if own else (spec.method.name,))]
    return found + [Check(what, way, floats) for what in whats for way in ways]


def fast_paths(findings: CheckResults) -> dict[str, list[str]]:
    """What was found right, in all floats that were tried: by way of computing the models and methods, and `packing`, `tf32`."""

    def right(what: str, way: Way) -> bool:
        said = [found.status for check, found in findings.items() if (check.what, check.way) == (what, way)]
        return bool(said) and set(said) == {"passed"}

    ways: tuple[Way, ...] = ("batched", "captured")
    whats = dict.fromkeys(check.what for check in findings if check.way and check.what not in (MEMORY, PACKING))
    found: dict[str, list[str]] = {way: [what for what in whats if right(what, way)] for way in ways}
    return {**found, PACKING: [way for way in ways if right(PACKING, way)], TF32: [PRODUCTS] if right(TF32, "") else []}


def choose(spec: RunSpec, how: Execution, findings: CheckResults) -> Belief:
    """The way that is asked for; where it was left to us, the fastest one that nothing speaks against."""
    wanted = needed(spec, how)
    against = {check: findings[check] for check in wanted if check in findings and _speaks_against(check, findings[check])}

    def of(*ways: Way, packing: bool = False) -> dict[Check, CheckResult]:
        return {check: said for check, said in against.items() if check.way in ways and (check.what == PACKING) == packing}

    notes, chosen = [], how
    if how.engine != "loop" and (batched := of("batched")):
        if how.engine == "auto":
            chosen = replace(how, engine="loop", capture="auto", chunk=None, pack=1)
        notes.append(_note(batched, "clients are computed one after another, which is slower", how.engine, "--engine batched"))
    if chosen.engine != "loop" and (captured := of("captured")):
        if how.capture == "auto":
            chosen = replace(chosen, capture="none")
        notes.append(_note(captured, "steps are not captured, which is slower", how.capture, "--capture graph"))
    if chosen.engine != "loop" and (packed := of("batched", "captured", packing=True)):
        if how.pack is None:
            chosen = replace(chosen, pack=1)
        asked = "auto" if how.pack is None else f"--pack {how.pack}"
        notes.append(_note(packed, "runs are made one after another", asked, asked))
    anyway = of("", "loop")
    resume = {check: anyway.pop(check) for check in list(anyway) if check.what == RESUME}
    if resume:
        notes.append(_note(resume, "an interrupted run begins anew"))
    if anyway:
        notes.append(_note(anyway, "no way of computing on it is known to be right; --device cpu is"))
    if unknown := sum(check not in findings for check in wanted):
        notes.append(f"{unknown} of {len(wanted)} checks of this GPU have not been made: `pflbench doctor --gpu` makes them.")
    told = "; ".join(notes) or "passed"
    return Belief(chosen, tuple(notes), not resume, told)


def _speaks_against(check: Check, found: CheckResult) -> bool:
    """What cannot be captured is better left alone; that something cannot be tried says nothing."""
    own = check.what not in (MEMORY, PACKING)
    return found.status == "failed" or (found.status == "not supported" and check.way == "captured" and own)


def _note(against: CheckResults, then: str, asked: str = "auto", option: str = "") -> str:
    """One line: what was found, of several the first, and what follows."""
    (check, found), *others = against.items()
    more = f" (and {len(others)} more)" if others else ""
    then = f"{then}." if asked == "auto" else f"done all the same, as {option} says."
    return f"The check of this GPU: {check} {found}{more}: {then} `pflbench doctor --gpu` shows all, and checks anew."


# -- what is kept -------------------------------------------------------------------------------------------------------

_known: dict[tuple[str, ...], dict[Check, CheckResult]] = {}  # what this process has found: a file cannot always be written


def identity(device: torch.device) -> dict[str, str]:
    """What a verdict is about."""
    return {
        "device": devices.name(device),
        "driver": driver(device),
        "torch": torch.__version__,
        "code": _code(),
    }


def driver(device: torch.device) -> str:
    """Its driver's version; of an NVIDIA GPU whose driver is not to be seen from here, the CUDA it is for; or "unknown"."""
    told = getattr(devices.of(device), "get_device_properties", lambda _: None)(device)
    if found := getattr(told, "driver_version", None):
        return str(found)
    if device.type != "cuda":
        return "unknown"
    with suppress(OSError):
        if version := re.search(r"\d+\.\d[\d.]*", NVIDIA.read_text()):
            return version[0]
    cuda = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    return f"CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "unknown"


@cache
def _code() -> str:
    """Of what was checked, and of the checks: another version of it is not known to be right."""
    root, found = Path(pflbench.__file__).parent, hashlib.sha256()
    for path in sorted(path for room in CHECKED_CODE for path in (root / room).rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def place() -> Path:
    """The file of verdicts: $PFLBENCH_GPU_VERDICTS, else below the folder for a user's state. Raises RuntimeError without one."""
    if FILE in os.environ:
        return Path(os.environ[FILE])
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "pflbench" / "gpu.json"


def read(device: torch.device) -> tuple[dict[Check, CheckResult], str]:
    """What has been found of a device; and what is wrong with the file, which then counts as none."""
    about, problem = identity(device), ""
    found: dict[Check, CheckResult] = {}
    try:
        for verdict in _verdicts():
            if {name: verdict[name] for name in about} == about:
                found |= {Check(**one["check"]): CheckResult(**one["finding"]) for one in verdict["checks"]}
    except FileNotFoundError:
        pass
    except UNREADABLE as error:
        found, problem = {}, f"{_named()} cannot be read, and what it said of this GPU is not known ({_said(error)})."
    return found | _known.get(tuple(about.values()), {}), problem


def keep(device: torch.device, findings: CheckResults) -> str:
    """Adds to what is known of a device. Returns why it could not be kept beyond this process, "" if it was."""
    about = identity(device)
    mine = _known.setdefault(tuple(about.values()), {})
    mine.update(findings)
    all_found, _ = read(device)
    verdict = {
        **about,
        "checked_at": now(),
        "checks": [{"check": asdict(check), "finding": asdict(found)} for check, found in all_found.items()],
    }
    try:
        others = [one for one in _verdicts() if {name: one[name] for name in about} != about]
    except UNREADABLE:
        others = []
    try:
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as out:
            out.write(json.dumps({"verdicts": [verdict, *others][:KEPT]}, indent=1).encode())
    except (OSError, RuntimeError) as error:
        return f"The verdict could not be kept in {_named()}: {_said(error)}. The next command checks again."
    return ""


def _verdicts() -> Sequence[dict[str, Any]]:
    found: Sequence[dict[str, Any]] = json.loads(place().read_text(encoding="utf-8"))["verdicts"]
    return found


def _named() -> str:
    try:
        return str(place())
    except RuntimeError:
        return "the user's folder"


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
