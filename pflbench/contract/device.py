"""What every device must keep: whichever way, the numbers of the loop executor on a CPU in float64.

Of a GPU that nobody has seen this says what may be believed of it: `doctor --gpu` makes all checks, a first run those that it
needs. All is made on small federations with data of their own. What is found is kept by `run.verdict`.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract import small
from pflbench.engine import devices
from pflbench.engine.batched.program import MIXED, OTHER_NUMBERS
from pflbench.engine.federation import Federation
from pflbench.engine.packed.executor import Pack
from pflbench.errors import UserError
from pflbench.methods.base import Method
from pflbench.run.checkpoint import Checkpoints, Snapshot
from pflbench.run.execution import exact_arithmetic
from pflbench.run.places import Folder
from pflbench.run.round import UPDATE, CommunicationRound, rounds
from pflbench.run.verdict import (
    MEMORY,
    PACKING,
    PRODUCTS,
    RESUME,
    TF32,
    WITH_EVERY_MODEL,
    Check,
    CheckResult,
    Floats,
    Way,
)

CPU = torch.device("cpu")
MODELS = ("mlp", "cnn, 1 channel", "cnn, 3 channels", "resnet20", "fasttext")  # of `doctor --gpu`
METHODS = ("fedamp", "apple", "pfedme", "fedphp")
WAYS: tuple[Way, ...] = ("loop", "batched", "captured")

# Differences are norms, by the norm of what is right. float32 is 3e-6 off at most on a CPU, in all methods and models here but
# residual networks: among their many ReLUs some lies within rounding of its kink, and they are up to 8e-5 off. Factors of TF32,
# with 10 bits of fraction, make it 8e-5 to 2e-3; for a ResNet with group norm that is 3e-4, which the products alone would show.
EXACT = 1e-9
SINGLE, DEEP = 5e-5, 5e-4
# Of products alone: 6e-7 is what float32 has on a CPU, 3e-4 what TF32 makes of it. The fast convolutions of a GPU are in between.
PRODUCT = {"float64": 1e-12, "float32": 3e-5}
TF32_OFF = 5e-3

FEW = {"finetune_cap": "2", "max_init_epochs": "2"}  # of hyperparameters: passes that no check needs more of
CLIENTS: dict[str, Any] = {"n": (6, 8, 5, 10), "lr": 0.02}
MANY = (10,) * 48  # samples of clients, for which memory is too little
SCARCE = 0.8  # of what they take
SPEED: dict[str, Any] = {"n": (100,) * 20, "shape": (1, 28, 28), "batch_size": 10, "lr": 0.005, "dtype": "float32"}

Numbers = dict[str, Tensor]  # in float64 on the CPU


@dataclass(frozen=True)
class Pace:
    """Steps per second, all clients' counted: of FedAvg with the CNN on 20 clients, in float32."""

    way: Way
    steps: float
    loop: float


def whole() -> list[Check]:
    """The checks of `doctor --gpu`."""
    both: tuple[Floats, ...] = ("float64", "float32")
    wide = [Check(what, way, floats) for what in (*MODELS, *METHODS) for way in WAYS for floats in both]
    wide += [Check(what, way, floats) for what in (PACKING, MEMORY) for way in WAYS[1:] for floats in both]
    return [*(Check(what, "", floats) for what in (PRODUCTS, RESUME) for floats in both), Check(TF32, "", "float32"), *wide]


def check(wanted: Iterable[Check], device: torch.device) -> Iterator[tuple[Check, CheckResult]]:
    """Makes checks, those of captured steps last: a capture that fails may leave a GPU that other work fails on."""
    try:
        for one in sorted(wanted, key=lambda one: ("", *WAYS).index(one.way)):
            yield one, _found(one, device)
    finally:
        _reference.cache_clear()


def usable(device: torch.device) -> bool:
    """Whether this process can go on with it. Some errors of a GPU are all that a process gets from it from then on."""
    try:
        devices.of(device).empty_cache()
        return float(torch.ones(8, device=device).sum()) == 8.0
    except RuntimeError:
        return False


def speed(device: torch.device, way: Way) -> Pace:
    """How fast all clients at once are, captured or not, beside one after another."""
    steps = {engine: _steps_per_second(engine, device) for engine in (way, "loop")}
    return Pace(way, steps[way], steps["loop"])


def _steps_per_second(engine: Way, device: torch.device) -> float:
    fed = _federation("cnn", engine, device, **SPEED)
    try:
        with exact_arithmetic(device):
            made = rounds(_method("fedavg"), fed)
            seconds = min([next(made)[0][UPDATE] for _ in range(4)][1:])
        return int(fed.batches(fed.nobody_left_out()).steps().sum()) / seconds
    finally:
        fed.executor.close()


def _found(one: Check, device: torch.device) -> CheckResult:
    made = {PRODUCTS: _products, TF32: _tf32, RESUME: _resume, PACKING: _packing, MEMORY: _memory}
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
    deep = one.what.startswith("resnet")
    return _compared(numbers, expected, _allowed(one.floats, deep), refused)


@cache
def _reference(what: str) -> Numbers:
    try:
        return _trained(what, "loop", "float64", CPU)[0]
    except Exception as error:
        raise UserError(f"it cannot be made on a CPU either, in a small federation: {error}") from error


def _trained(what: str, way: Way, floats: Floats, device: torch.device) -> tuple[Numbers, list[str]]:
    """What a model's or a method's rounds give; and why steps were not captured, where they should have been."""
    model, of_shape, channels = what.partition(", ")
    is_model = bool(of_shape) or model in small.SHAPES
    settings = {**CLIENTS, "shape": (int(channels.split()[0]), 16, 16)} if of_shape else CLIENTS
    numbers: Numbers = {}
    refused: list[str] = []
    for name in WITH_EVERY_MODEL if is_model else (what,):
        fed = _federation(model if is_model else "mlp", way, device, dtype=floats, **settings)
        try:
            with exact_arithmetic(device, floats):
                numbers |= {f"{name}: {value}": number for value, number in _played(_method(name), fed, 2).items()}
            if way == "captured":
                refused += _refused(fed)
        finally:
            fed.executor.close()
    return numbers, refused


def _packing(one: Check, device: torch.device) -> CheckResult:
    """Two seeds, apart on the CPU and together on the device."""
    how: dict[str, Any] = {**CLIENTS, "join_ratio": 0.7}
    numbers: list[Numbers] = []
    expected: list[Numbers] = []
    for seed in (0, 1):
        alone = _federation("mlp", "loop", CPU, seed=seed, **how)
        with exact_arithmetic(CPU):
            expected.append(_played(_method("fedala"), alone, 2))
        alone.executor.close()
    feds = [_federation("mlp", one.way, device, seed=seed, dtype=one.floats, **how) for seed in (0, 1)]
    inner = feds[0].executor
    feds[1].executor.close()
    pack = Pack(inner, 2)
    try:
        for fed, own in zip(feds, pack.executors, strict=True):
            fed.executor = own
        with exact_arithmetic(device, one.floats):
            together = dict(pack.together([_work_of(fed) for fed in feds]))
        numbers = [together[seed] for seed in (0, 1)]
        refused = _refused(feds[0]) if one.way == "captured" else []
    finally:
        inner.close()
    named = [{f"seed {seed}: {k}": v for seed in (0, 1) for k, v in of[seed].items()} for of in (numbers, expected)]
    return _compared(named[0], named[1], _allowed(one.floats), refused)


def _resume(one: Check, device: torch.device) -> CheckResult:
    """Four rounds, and two with two more from a checkpoint of the first two."""

    def federation() -> Federation:
        return _federation("batchnorm", "batched", device, dtype=one.floats, **CLIENTS)

    method, straight, half, resumed = _method("fedala"), federation(), federation(), federation()
    with exact_arithmetic(device, one.floats), TemporaryDirectory() as folder:
        expected = small.train(method, straight, 4)
        checkpoints = Checkpoints(Folder(Path(folder)), "1", owner="check")
        checkpoints.save(Snapshot(2, small.train(method, half, 2), half.buffers, {}))
        loaded = checkpoints.load(method.init(resumed), device)
        if loaded is None:
            return CheckResult("failed", why="a checkpoint is not read again")
        resumed.buffers.update(loaded.buffers)
        found = small.train(method, resumed, 2, loaded.state, start=3)
    return _compared(_state(found, resumed), _state(expected, straight), _allowed(one.floats))


def _memory(one: Check, device: torch.device) -> CheckResult:
    """More clients at a time than there is memory for: fewer at a time, and the same numbers."""
    if device.type == "cpu" or not hasattr(devices.of(device), "set_per_process_memory_fraction"):
        return CheckResult("not supported", why="PyTorch cannot limit its memory")
    many: dict[str, Any] = {**CLIENTS, "n": MANY}
    alone = _federation("cnn", "loop", CPU, **many)
    with exact_arithmetic(CPU):
        expected = _played(_method("fedavg"), alone, 1)
    alone.executor.close()

    def played() -> tuple[Numbers, int]:
        fed = _federation("cnn", one.way, device, dtype=one.floats, **many)
        try:
            with exact_arithmetic(device, one.floats):
                return _played(_method("fedavg"), fed, 1), len(fed.executor.shortages())
        finally:
            fed.executor.close()

    devices.reset_peak(device)
    played()
    gc.collect()
    with _limited(device, int(SCARCE * devices.of(device).max_memory_allocated(device))):
        numbers, shortages = played()
    if not shortages:
        return CheckResult("not supported", why="its memory could not be made scarce")
    return _compared(numbers, expected, _allowed(one.floats))


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


# -- federations and their numbers --------------------------------------------------------------------------------------


def _federation(model: str, engine: str, device: torch.device, **settings: Any) -> Federation:
    with torch.random.fork_rng(devices=[]):
        return small.federation(model, engine, device=str(device), **settings)


def _method(name: str) -> Method:
    few = {h.name: FEW[h.name] for h in methods.hyperparameters(name) if h.name in FEW}
    return methods.make(methods.spec(name, few))


def _played(method: Method, fed: Federation, count: int) -> Numbers:
    """All that rounds give: losses, scores, and at the end the state and BatchNorm's buffers."""
    state, found = method.init(fed.at(0)), {}
    for t in range(1, count + 1):
        now = CommunicationRound(method, fed, t)
        before, state = state, now.receive(state)
        scores, _ = now.evaluate(before, state)
        state = now.update(state)
        for slot, tested in scores.items():
            found[f"round {t}: test loss {slot}"] = torch.from_numpy(tested.loss)
            found[f"round {t}: correct {slot}"] = torch.from_numpy(tested.correct)
        for slot, loss in now.training.ledger.train_loss.items():
            found[f"round {t}: training loss {slot}"] = torch.tensor(loss)
    return {name: value.double() for name, value in found.items()} | _state(state, fed)


def _work_of(fed: Federation) -> Generator[Numbers, None, None]:
    """A run's work for a pack, which is a generator."""
    yield _played(_method("fedala"), fed, 2)


def _state(state: Any, fed: Federation) -> Numbers:
    buffers = {f"buffers {slot}": rows for slot, rows in fed.buffers.items()}
    return {name: value.cpu().double() for name, value in {**small.tensors(state), **buffers}.items()}


def _refused(fed: Federation) -> list[str]:
    steps = fed.executor.record()["steps"]
    return [why for why in steps["apart"] if why != MIXED] or ([] if steps["programs"] else ["no step was captured"])


def _allowed(floats: Floats, deep: bool = False) -> float:
    return EXACT if floats == "float64" else DEEP if deep else SINGLE


def _compared(found: Numbers, expected: Numbers, allowed: float, refused: Iterable[str] = ()) -> CheckResult:
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
