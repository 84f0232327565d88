"""The checks of `doctor --gpu`: in whichever way, a device must give the numbers of the loop executor on a CPU in float64.

They are made on federations as runs have them, with made-up data.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract import small
from pflbench.contract.as_run import (
    CLIENTS,
    RIGHT,
    Floats,
    Numbers,
    Way,
    closed,
    federation,
    federations,
    method,
    played,
    rounds,
    run,
    tensors_of,
)
from pflbench.engine import devices, memory
from pflbench.engine.batched.chunks import SHARE
from pflbench.engine.batched.program import MIXED, OTHER_NUMBERS
from pflbench.engine.federation import Federation
from pflbench.engine.packed.packed_executor import Pack
from pflbench.engine.requests import Executor
from pflbench.errors import UserError
from pflbench.run import round as one_round
from pflbench.run.arithmetic import exact_arithmetic
from pflbench.run.checkpoint import Checkpoints, Snapshot
from pflbench.run.memory_estimate import footprint, readable
from pflbench.run.places import Folder

CPU = torch.device("cpu")
PRODUCTS, TF32, RESUME, MEMORY, PACKING = "products", "tf32", "resume", "out of memory", "packing"
ESTIMATE = "estimate of memory"
MODELS = ("mlp", "cnn, 1 channel", "cnn, 3 channels", "resnet18", "fasttext")
WAYS: tuple[Way, ...] = get_args(Way)[1:]

# Differences are norms, by the norm of what is right. float32 is 4e-6 off at most on a CPU, in all methods and models here but
# ResNet-18: its BatchNorm over ten samples of one pixel multiplies what rounding leaves, and it is 5e-4 off. Factors of
# TF32, with 10 bits of fraction, make it 8e-5 to 2e-3, which the products alone show as well.
EXACT = 1e-9
SINGLE, DEEP = 5e-5, 1e-2
# Of products alone: 6e-7 is what float32 has on a CPU, 3e-4 what TF32 makes of it. The fast convolutions of a GPU are in between.
PRODUCT = {"float64": 1e-12, "float32": 3e-5}
TF32_OFF = 5e-3

LARGE = "resnet18"  # of MODELS that with the most parameters
MANY = (10,) * 48  # samples of clients, for which memory is too little
SCARCE = 0.8  # of what they take


@dataclass(frozen=True)
class Check:
    """what: a model, a method (on a small model), or one of the words above.

    way: how clients are computed; "" where that does not matter; "deterministic": captured, twice, with --deterministic.
    """

    what: str
    way: Way
    floats: Floats

    def __str__(self) -> str:
        return f"{', '.join(filter(None, (self.what, self.way)))} in {self.floats}"


@dataclass(frozen=True)
class CheckResult:
    """off: by how much the numbers differ, and how much is allowed; None where there are none. why: of what did not pass."""

    status: Literal["passed", "failed", "not supported"]
    off: float | None = None
    allowed: float | None = None
    why: str = ""

    def __str__(self) -> str:
        differs = "" if self.off is None or self.allowed is None else f"off by {self.off:.1e}, {self.allowed:.0e} allowed"
        return self.status if self.status == "passed" else f"{self.status}: {'; '.join(filter(None, (differs, self.why)))}"


@dataclass(frozen=True)
class Pace:
    """Steps per second of FedAvg with the CNN in float32, all 20 clients' counted: computed together, and one after another."""

    together: float
    alone: float


def whole() -> list[Check]:
    """The checks of `doctor --gpu`."""
    both: tuple[Floats, ...] = ("float64", "float32")
    found = [*(Check(PRODUCTS, "", floats) for floats in both), Check(TF32, "", "float32"), Check(RESUME, "", "float64")]
    for model in MODELS:
        found += [Check(model, way, floats) for way in WAYS[:3] for floats in both]
        found.append(Check(model, "deterministic", "float32"))
    found += [Check(name, "captured", "float64") for name in methods.METHODS]
    found += [Check(what, way, "float64") for what in (PACKING, MEMORY) for way in ("batched", "captured")]
    return [*found, Check(ESTIMATE, "captured", "float32")]


def check(wanted: Iterable[Check], device: torch.device) -> Iterator[tuple[Check, CheckResult]]:
    """Makes checks, those of captured steps last: a capture that fails may leave a GPU that other work fails on."""
    try:
        for one in sorted(wanted, key=lambda one: ("", *WAYS).index(one.way)):
            yield one, _found(one, device)
    finally:
        _reference.cache_clear()


def pace(device: torch.device) -> Pace:
    return Pace(_steps_per_second("captured", device), _steps_per_second("loop", device))


def _steps_per_second(way: Way, device: torch.device) -> float:
    with exact_arithmetic(device), closed(fed := run("cnn, 3 channels", way, "float32", device).federation()):
        play = one_round.rounds(method("fedavg"), fed)
        seconds = min([next(play)[0][one_round.UPDATE] for _ in range(4)][1:])
        return int(fed.batches(fed.all_trainable()).steps().sum()) / seconds


def _found(one: Check, device: torch.device) -> CheckResult:
    made = {PRODUCTS: _products, TF32: _tf32, RESUME: _resume, PACKING: _packing, MEMORY: _memory, ESTIMATE: _estimate}
    try:
        return made.get(one.what, _training)(one, device)
    except UserError as error:
        return CheckResult("not supported", why=error.message)
    except Exception as error:  # whatever a device does: that is what is asked for
        return CheckResult("failed", why=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    finally:
        gc.collect()


# -- arithmetic ---------------------------------------------------------------------------------------------------------


def _products(one: Check, device: torch.device) -> CheckResult:
    return _judged(_off_in(one.floats, one.floats, device), PRODUCT[one.floats])


def _tf32(one: Check, device: torch.device) -> CheckResult:
    """It must be what it says, and float32 must be itself again afterwards."""
    off = _off_in("tf32", one.floats, device)
    if off <= PRODUCT[one.floats]:
        return CheckResult("not supported", why="products are those of float32: this GPU has no TF32")
    after = _off_in(one.floats, one.floats, device)
    return _judged(off, TF32_OFF) if after <= PRODUCT[one.floats] else _judged(after, PRODUCT[one.floats], "float32 after it")


def _off_in(arithmetic: str, floats: Floats, device: torch.device) -> float:
    """How far products of matrices and convolutions, in groups as well, and their gradients are from those in float64."""
    with exact_arithmetic(CPU):
        expected = _multiplied(torch.device("cpu"), torch.float64)
    with exact_arithmetic(device, arithmetic):
        found = _multiplied(device, getattr(torch, floats))
    return max(_distance(a, b) for a, b in zip(found, expected, strict=True))


def _multiplied(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device, dtype).requires_grad_()  # drawn in float32: the same in both

    found = []
    matrices, images = (made(8, 64, 256), made(8, 256, 48)), made(4, 24, 20, 20)
    for kernels, groups in ((made(32, 24, 5, 5), 1), (made(32, 6, 5, 5), 4), (made(32, 24, 3, 3), 1)):
        out = F.conv2d(images, kernels, groups=groups)
        found += [out, *torch.autograd.grad(out.square().sum(), (images, kernels))]
    product = matrices[0] @ matrices[1]
    found += [product, matrices[0][0] @ matrices[1][0], *torch.autograd.grad(product.square().sum(), matrices)]
    return [value.detach().cpu().double() for value in found]


# -- training -----------------------------------------------------------------------------------------------------------


def _training(one: Check, device: torch.device) -> CheckResult:
    expected = _reference(one.what)
    numbers, refused = _trained(one.what, one.way, one.floats, device)
    if one.way == "deterministic":
        again, _ = _trained(one.what, one.way, one.floats, device)
        if others := [name for name, value in numbers.items() if not torch.equal(again[name], value)]:
            return CheckResult("failed", why=f"other bits the second time: {others[0]}")
    deep = one.what.startswith("resnet")
    return _compared(numbers, expected, _allowed(one.floats, deep), refused)


@cache
def _reference(what: str) -> Numbers:
    return _trained(what, "loop", "float64", CPU)[0]


def _trained(what: str, way: Way, floats: Floats, device: torch.device) -> tuple[Numbers, list[str]]:
    """What a model's or a method's rounds give; and why steps were not captured, where they should have been."""
    numbers: Numbers = {}
    with exact_arithmetic(device, floats, deterministic=way == "deterministic"):
        feds = federations(what, way, floats, device)
        with closed(*feds.values()) as executor:
            for name, fed in feds.items():
                numbers |= {f"{name}: {value}": number for value, number in played(method(name), fed, 2).items()}
            return numbers, _refused(executor, way)


def _packing(one: Check, device: torch.device) -> CheckResult:
    """Two seeds, apart on the CPU and together on the device."""

    def seeds(way: Way, on: torch.device, floats: Floats) -> list[Federation]:
        return [federation("mlp", way, on, seed=seed, dtype=floats, join_ratio=0.7, **CLIENTS) for seed in (0, 1)]

    def work(fed: Federation) -> Generator[Numbers, None, None]:
        yield played(method("fedala"), fed, 2)

    with exact_arithmetic(CPU):
        apart = [played(method("fedala"), fed, 2) for fed in seeds("loop", CPU, "float64")]
    feds = seeds(one.way, device, one.floats)
    with exact_arithmetic(device, one.floats), closed(*feds) as inner:
        pack = Pack(inner, 2)
        for fed, own in zip(feds, pack.executors, strict=True):
            fed.executor = own
        together = dict(pack.together([work(fed) for fed in feds]))
        refused = _refused(inner, one.way)
    found, expected = ({f"seed {seed}: {k}": v for seed in (0, 1) for k, v in of[seed].items()} for of in (together, apart))
    return _compared(found, expected, _allowed(one.floats), refused)


def _resume(one: Check, device: torch.device) -> CheckResult:
    """Four rounds, and two with two more from a checkpoint of the first two."""
    fedala = method("fedala")
    straight, half, resumed = (federation("batchnorm", "batched", device, dtype=one.floats, **CLIENTS) for _ in range(3))
    with exact_arithmetic(device, one.floats), TemporaryDirectory() as folder:
        expected = small.train(fedala, straight, 4)
        checkpoints = Checkpoints(Folder(Path(folder)), "1", owner="check")
        checkpoints.save(Snapshot(2, small.train(fedala, half, 2), half.buffers, {}))
        loaded = checkpoints.load(fedala.init(resumed), device)
        if loaded is None:
            return CheckResult("failed", why="a checkpoint is not read again")
        resumed.buffers.update(loaded.buffers)
        found = small.train(fedala, resumed, 2, loaded.state, start=3)
    return _compared(tensors_of(found, resumed), tensors_of(expected, straight), _allowed(one.floats))


def _memory(one: Check, device: torch.device) -> CheckResult:
    """More clients at a time than there is memory for: fewer at a time, and the same numbers, by steps that are captured anew.

    Memory becomes too little after a round, when all is captured; or is so from the beginning.
    """
    if device.type == "cpu" or not hasattr(devices.of(device), "set_per_process_memory_fraction"):
        return CheckResult("not supported", why="PyTorch cannot limit its memory")
    fedavg, many = method("fedavg"), {**CLIENTS, "n": MANY}
    with exact_arithmetic(CPU):
        expected = played(fedavg, federation("cnn", "loop", CPU, **many), 2)

    def said(fed: Federation, numbers: Numbers) -> CheckResult:
        if not fed.executor.shortages():
            return CheckResult("not supported", why="its memory could not be made scarce")
        if refused := _refused(fed.executor, one.way):
            return CheckResult("failed", why=refused[0])
        return _compared(numbers, expected, _allowed(one.floats))

    with exact_arithmetic(device, one.floats):
        with closed(fed := federation("cnn", one.way, device, dtype=one.floats, **many)):
            _forget_peak(device)
            play = rounds(fedavg, fed, 2)
            next(play)
            peak = devices.of(device).max_memory_allocated(device)
            # What a round takes: two copies of all models, and one more where clients train.
            more = int(2.5 * fed.size * fed.flat.size * fed.dtype.itemsize)
            memory.release(device)
            with _limited(device, devices.of(device).memory_reserved(device) + more):
                found = said(fed, next(play))
        if found.status != "passed":
            return found
        del play
        gc.collect()
        again = federation("cnn", one.way, device, dtype=one.floats, **many)
        with closed(again), _limited(device, int(SCARCE * peak)):
            return said(again, played(fedavg, again, 2))


def _estimate(one: Check, device: torch.device) -> CheckResult:
    """What a run takes, beside what it was thought to need: by that it is decided how many clients are computed at a time."""
    if device.type == "cpu":
        return CheckResult("not supported", why="a CPU keeps no captured steps")
    of = run(LARGE, one.way, one.floats, device)
    needed = footprint(of.spec, of.data, of.how)
    assert needed is not None
    with exact_arithmetic(device, one.floats), closed(fed := of.federation()):
        _forget_peak(device)
        played(method("fedavg"), fed, 2)
        taken = devices.of(device).max_memory_reserved(device)
    if taken * SHARE <= needed.total:
        return CheckResult("passed")
    return CheckResult("failed", why=f"{LARGE} took {readable(taken)}, and {readable(needed.total)} were expected")


def _forget_peak(device: torch.device) -> None:
    """Makes the peak of memory begin anew, without what earlier work has left in PyTorch's cache."""
    memory.release(device)
    devices.reset_peak(device)


@contextmanager
def _limited(device: torch.device, most: int) -> Iterator[None]:
    """Inside, all tensors of this process can have no more than so many bytes of the device: more is torch.OutOfMemoryError."""
    gpu = devices.of(device)
    before = gpu.get_per_process_memory_fraction(device) if hasattr(gpu, "get_per_process_memory_fraction") else 1.0
    gpu.empty_cache()
    gpu.set_per_process_memory_fraction(min(1.0, most / gpu.mem_get_info(device)[1]), device)
    try:
        yield
    finally:
        gpu.set_per_process_memory_fraction(before, device)


def _refused(executor: Executor, way: Way) -> list[str]:
    """Why steps were not captured that should have been."""
    if way not in ("captured", "deterministic"):
        return []
    steps = executor.record()["steps"]
    return [why for why in steps["apart"] if why != MIXED] or ([] if steps["programs"] else ["no step was captured"])


def _allowed(floats: Floats, deep: bool = False) -> float:
    return EXACT if floats == "float64" else DEEP if deep else SINGLE


def _compared(found: Numbers, expected: Numbers, allowed: float, refused: Iterable[str] = ()) -> CheckResult:
    expected = {name: value for name, value in expected.items() if allowed <= EXACT or RIGHT not in name}
    if found.keys() != expected.keys():
        return CheckResult("failed", why=f"only one has {', '.join(sorted(found.keys() ^ expected.keys())[:3])}")
    off, where = max((_distance(found[name], value), name) for name, value in expected.items())
    if not off <= allowed:
        return _judged(off, allowed, where)
    if wrong := [why for why in refused if OTHER_NUMBERS in why]:
        return CheckResult("failed", off, allowed, wrong[0])
    return next((CheckResult("not supported", off, allowed, why) for why in refused), _judged(off, allowed))


def _judged(off: float, allowed: float, where: str = "") -> CheckResult:
    if off <= allowed:
        return CheckResult("passed", off, allowed)
    return CheckResult("failed", off, allowed, where) if off < float("inf") else CheckResult("failed", why=f"no numbers: {where}")


def _distance(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, by that of what is expected; infinite where there are no numbers."""
    if found.shape != expected.shape or not bool(found.isfinite().all()):
        return float("inf")
    size = float(expected.norm())
    return float((found - expected).norm()) / (size or 1.0)
