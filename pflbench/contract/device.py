"""The checks of `doctor --gpu`: each way to train on a device must give the numbers of the loop executor on a CPU in float64.

The checks use federations as runs have them, with made-up data.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.as_run import CLIENTS, RIGHT, Floats, Numbers, Way, federation, method, methods_of, played, rounds, run
from pflbench.contract.small import federation as small
from pflbench.contract.small import in_a_pack
from pflbench.engine import devices, memory
from pflbench.engine.batched.program import MIXED, OTHER_NUMBERS
from pflbench.engine.federation import Federation
from pflbench.engine.requests import Executor
from pflbench.errors import UserError
from pflbench.run import round as one_round
from pflbench.run.arithmetic import exact_arithmetic

CPU = torch.device("cpu")
PRODUCTS, TF32, MEMORY, PACKING = "products", "tf32", "out of memory", "packing"
MODELS = ("mlp", "cnn, 1 channel", "cnn, 3 channels", "resnet18", "fasttext")
WAYS: tuple[Way, ...] = get_args(Way)[1:]

# Differences are norms, relative to the norm of the right numbers. On a CPU float32 is off by 4e-6 at most, for all methods and
# models here but ResNet-18: its BatchNorm over ten samples of one pixel amplifies rounding, to 5e-4. On an H200 cuDNN's
# convolutions of images in colour are off by up to 1e-4. TF32, with 10 bits of fraction, is off by 8e-5 to 2e-3, which the
# products alone show as well.
EXACT = 1e-9
SINGLE, CONVOLVED, DEEP = 5e-5, 3e-4, 1e-2
# Products alone: float32 on a CPU is off by 6e-7, TF32 by 3e-4. The fast convolutions of a GPU are in between.
PRODUCT = {"float64": 1e-12, "float32": 3e-5}
TF32_OFF = 5e-3

MANY = (10,) * 48  # samples of clients in the check "out of memory"


@dataclass(frozen=True)
class Check:
    """what: a model, a method (on a small model), or one of the names above.

    way: how clients are computed; "" if that does not matter; "deterministic": captured, twice, with --deterministic.
    """

    what: str
    way: Way
    floats: Floats

    def __str__(self) -> str:
        return f"{', '.join(filter(None, (self.what, self.way)))} in {self.floats}"


@dataclass(frozen=True)
class CheckResult:
    """off: the difference of the numbers, and how much is allowed; None without numbers. why: the reason, if it did not pass."""

    status: Literal["passed", "failed", "not supported"]
    off: float | None = None
    allowed: float | None = None
    why: str = ""

    def __str__(self) -> str:
        differs = "" if self.off is None or self.allowed is None else f"off by {self.off:.1e}, {self.allowed:.0e} allowed"
        return self.status if self.status == "passed" else f"{self.status}: {'; '.join(filter(None, (differs, self.why)))}"


@dataclass(frozen=True)
class Pace:
    """Steps per second of FedAvg with the CNN in float32, summed over 20 clients computed together, and one after another."""

    together: float
    alone: float


def whole() -> list[Check]:
    """The checks of `doctor --gpu`."""
    both: tuple[Floats, ...] = ("float64", "float32")
    checks = [*(Check(PRODUCTS, "", floats) for floats in both), Check(TF32, "", "float32")]
    for model in MODELS:
        checks += [Check(model, way, floats) for way in WAYS[:3] for floats in both]
        checks.append(Check(model, "deterministic", "float32"))
    checks += [Check(name, "captured", "float64") for name in methods.METHODS]
    return checks + [Check(what, way, "float64") for what in (PACKING, MEMORY) for way in ("batched", "captured")]


def check(wanted: Iterable[Check], device: torch.device) -> Iterator[tuple[Check, CheckResult]]:
    """Makes checks, those of captured steps last: after a failed capture other work on a GPU may fail."""
    try:
        for each in sorted(wanted, key=lambda each: ("", *WAYS).index(each.way)):
            yield each, _result(each, device)
    finally:
        _reference.cache_clear()


def pace(device: torch.device) -> Pace:
    return Pace(_steps_per_second("captured", device), _steps_per_second("loop", device))


def _steps_per_second(way: Way, device: torch.device) -> float:
    fed = run("cnn, 3 channels", way, "float32", device).federation()
    with exact_arithmetic(device), closing(fed.executor):
        play = one_round.rounds(method("fedavg"), fed)
        seconds = min([next(play)[0].seconds[one_round.UPDATE] for _ in range(4)][1:])
        return int(fed.batches(fed.all_trainable()).steps().sum()) / seconds


def _result(one: Check, device: torch.device) -> CheckResult:
    functions = {PRODUCTS: _products, TF32: _tf32, PACKING: _packing, MEMORY: _memory}
    try:
        return functions.get(one.what, _training)(one, device)
    except UserError as error:
        return CheckResult("not supported", why=error.message)
    except Exception as error:  # any error of a device is a failed check
        return CheckResult("failed", why=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    finally:
        gc.collect()


# -- arithmetic ---------------------------------------------------------------------------------------------------------


def _products(one: Check, device: torch.device) -> CheckResult:
    return _judged(_off_in(one.floats, one.floats, device), PRODUCT[one.floats])


def _tf32(one: Check, device: torch.device) -> CheckResult:
    """TF32 must be as exact as TF32. That float32 is exact again afterwards, all other checks show."""
    off = _off_in("tf32", one.floats, device)
    if off <= PRODUCT[one.floats]:
        return CheckResult("not supported", why="products are those of float32: this GPU has no TF32")
    return _judged(off, TF32_OFF)


def _off_in(arithmetic: str, floats: Floats, device: torch.device) -> float:
    """How far matrix products and convolutions, also in groups, and their gradients are from those in float64."""
    with exact_arithmetic(CPU):
        expected = _multiplied(CPU, torch.float64)
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
    return _compared(numbers, expected, _allowed(one.floats, one.what), refused)


@cache
def _reference(what: str) -> Numbers:
    return _trained(what, "loop", "float64", CPU)[0]


def _trained(what: str, way: Way, floats: Floats, device: torch.device) -> tuple[Numbers, list[str]]:
    """All numbers of a model's or a method's rounds; and why steps were not captured that should have been."""
    numbers: Numbers = {}
    refused: list[str] = []
    with exact_arithmetic(device, floats, deterministic=way == "deterministic"):
        for name in methods_of(what):
            fed = federation(what, way, floats, device)
            with closing(fed.executor):
                numbers |= {f"{name}: {value}": number for value, number in played(method(name), fed, 2).items()}
                refused += _refused(fed.executor, way)
    return numbers, refused


def _packing(one: Check, device: torch.device) -> CheckResult:
    """Two seeds, apart on the CPU and together on the device."""

    def seeds(way: Way, on: torch.device, floats: Floats) -> list[Federation]:
        return [small("mlp", way, device=str(on), seed=seed, dtype=floats, join_ratio=0.7, **CLIENTS) for seed in (0, 1)]

    def work(fed: Federation) -> Numbers:
        return played(method("fedala"), fed, 2)

    with exact_arithmetic(CPU):
        apart = list(map(work, seeds("loop", CPU, "float64")))
    feds = seeds(one.way, device, one.floats)
    with exact_arithmetic(device, one.floats), closing(feds[0].executor) as inner:
        together = in_a_pack(feds, work)
        refused = _refused(inner, one.way)
    found, expected = ({f"seed {seed}: {k}": v for seed in (0, 1) for k, v in of[seed].items()} for of in (together, apart))
    return _compared(found, expected, _allowed(one.floats), refused)


def _memory(one: Check, device: torch.device) -> CheckResult:
    """Memory that becomes scarce after a round, when all steps are captured: fewer clients at a time, with the same numbers."""
    if device.type == "cpu" or not hasattr(devices.of(device), "set_per_process_memory_fraction"):
        return CheckResult("not supported", why="PyTorch cannot limit its memory")
    fedavg, many = method("fedavg"), {**CLIENTS, "n": MANY}
    with exact_arithmetic(CPU):
        expected = played(fedavg, small("cnn", "loop", **many), 2)
    fed = small("cnn", one.way, device=str(device), dtype=one.floats, **many)
    with exact_arithmetic(device, one.floats), closing(fed.executor):
        play = rounds(fedavg, fed, 2)
        next(play)
        # A round takes two copies of all models, and one more for training.
        more = int(2.5 * fed.size * fed.flat.size * fed.dtype.itemsize)
        gc.collect()  # what waits for it would count as in use, and be free later
        memory.release(device)
        with _limited(device, devices.of(device).memory_reserved(device) + more):
            found = next(play)
        if fed.executor.chunks is None or not fed.executor.chunks.shortages:
            return CheckResult("not supported", why="its memory could not be made scarce")
        if refused := _refused(fed.executor, one.way):
            return CheckResult("failed", why=refused[0])
        return _compared(found, expected, _allowed(one.floats))


@contextmanager
def _limited(device: torch.device, most: int) -> Iterator[None]:
    """Inside, this process can allocate at most so many bytes on the device; more is a torch.OutOfMemoryError."""
    gpu = devices.of(device)
    before = gpu.get_per_process_memory_fraction(device)
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


def _allowed(floats: Floats, what: str = "") -> float:
    if floats == "float64":
        return EXACT
    return DEEP if what.startswith("resnet") else CONVOLVED if what.startswith("cnn") else SINGLE


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
    """The norm of the difference, relative to the norm of the expected; infinite for non-finite values or other shapes."""
    if found.shape != expected.shape or not bool(found.isfinite().all()):
        return float("inf")
    size = float(expected.norm())
    return float((found - expected).norm()) / (size or 1.0)
