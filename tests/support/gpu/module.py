"""What PyTorch gets for devices of this kind, as it has torch.cuda for others; and the plug."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
from support.gpu import captures, world
from support.gpu.dispatch import NAME, is_ours, run
from support.gpu.rules import GROW
from support.gpu.streams import Stream
from support.gpu.world import On, World, plugged
from torch.utils._device import _device_constructors
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

SHOWN = "A GPU made of Python"
Device = torch.device | str | int | None


class Module:
    """The functions of torch.cuda that a program asks of a GPU."""

    CUDAGraph = captures.Graph
    graph = captures.capture

    # -- devices ------------------------------------------------------------------------------------------------------

    def is_available(self) -> bool:
        return world.devices() > 0

    def is_initialized(self) -> bool:
        return self.is_available()

    def device_count(self) -> int:
        return world.devices()

    def current_device(self) -> int:
        return plugged().here.device if self.is_available() else 0

    def set_device(self, device: Device) -> None:
        plugged().here.device = _named_index(device)

    @contextmanager
    def device(self, device: Device) -> Iterator[None]:
        here = plugged().here
        before, here.device = here.device, _index(device)
        try:
            yield
        finally:
            here.device = before

    def get_device_name(self, device: Device = None) -> str:
        plugged().gpu(_index(device))
        return SHOWN

    def synchronize(self, device: Device = None) -> None:
        plugged().synchronize(_index(device))

    # -- random numbers: those of the CPU's generator -----------------------------------------------------------------

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        """Nothing: random numbers of the device are counted as odd."""

    def manual_seed_all(self, seed: int) -> None:
        """As `manual_seed`."""

    # -- memory -------------------------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        plugged().empty_cache()

    def memory_allocated(self, device: Device = None) -> int:
        return _memory(device).live

    def max_memory_allocated(self, device: Device = None) -> int:
        return _memory(device).peak

    def memory_reserved(self, device: Device = None) -> int:
        return _memory(device).reserved

    def max_memory_reserved(self, device: Device = None) -> int:
        return _memory(device).most_reserved

    def reset_peak_memory_stats(self, device: Device = None) -> None:
        _memory(device).reset_peaks()

    def mem_get_info(self, device: Device = None) -> tuple[int, int]:
        of = _memory(device)
        return of.size - of.reserved, of.size

    def set_per_process_memory_fraction(self, fraction: float, device: Device = None) -> None:
        of = _memory(None if device is None else _named_index(device))
        of.limit = int(fraction * of.size)

    def get_per_process_memory_fraction(self, device: Device = None) -> float:
        of = _memory(None if device is None else _named_index(device))
        return float(of.limit / of.size)

    # -- streams and graphs -------------------------------------------------------------------------------------------

    def Stream(self, device: Device = None, priority: int = 0) -> Stream:
        return plugged().new_stream(_index(device))

    def current_stream(self, device: Device = None) -> Stream:
        return plugged().stream(_index(device))

    def stream(self, stream: Stream | None) -> AbstractContextManager[Any]:
        return nullcontext() if stream is None else On(plugged(), stream)

    def is_current_stream_capturing(self) -> bool:
        tape = plugged().tape
        return tape is not None and tape.stream is plugged().stream()


def _index(device: Device) -> int:
    if device is None or isinstance(device, int):
        return plugged().here.device if device is None else device
    device = torch.device(device)
    assert device.type == NAME, f"{device} is none of these"
    return plugged().here.device if device.index is None else device.index


def _named_index(device: Device) -> int:
    """Of a device that has to have one: some functions of torch.cuda take none for the current device."""
    if isinstance(device, (str, torch.device)) and torch.device(device).index is None:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    return _index(device)


def _memory(device: Device) -> Any:
    return plugged().gpu(_index(device)).memory


def register() -> None:
    """Once in a process, and before its first backward pass: PyTorch gives threads for that to the devices that it then knows."""
    _device_constructors()  # PyTorch looks once: `with torch.device("meta")` must know torch.tensor, not what stands in for it
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    _library.fallback(lambda func, *args, **kwargs: run(func, args, kwargs), "PrivateUse1")
    for name in GROW:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        _aten.impl(operation, partial(_made_at_once, operation), "PrivateUse1")


def _made_at_once(operation: Any, *args: Any, **kwargs: Any) -> Any:
    return run(operation, args, kwargs)


_library, _aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
register()
_device_constructors()  # kept from now on: those of PyTorch, which `torch.device` as a context looks for, not those of the plug


@contextmanager
def plugged_in(devices: int = 2, memory: int = 8 << 30, torch_before_2_13: bool = False) -> Iterator[World]:
    """Inside, PyTorch sees so many devices "pygpu", with so many bytes of memory each.

    torch_before_2_13: a capture that fails leaves the allocator unusable for `empty_cache`, as there.
    """
    whole = torch.tensor, torch.as_tensor, torch.load, torch.autograd._engine_run_backward
    with world.in_use(World(devices, memory, torch_before_2_13)) as made:
        torch.tensor, torch.as_tensor, torch.load = _made_here(whole[0]), _made_here(whole[1]), _loaded_here(whole[2])
        torch.autograd._engine_run_backward = _told_here(whole[3])
        try:
            yield made
        finally:
            torch.tensor, torch.as_tensor, torch.load, torch.autograd._engine_run_backward = whole


@contextmanager
def faultless() -> Iterator[World]:
    """The same, and at the end no streams have raced and nothing was odd."""
    with plugged_in() as world:
        yield world
        assert not world.seen.races
        assert not world.seen.odd


def _made_here(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """PyTorch makes tensors from numbers below its dispatcher, and copies them to the device there."""

    @wraps(make)
    def made(data: Any, dtype: Any = None, device: Any = None, **how: Any) -> torch.Tensor:
        if not is_ours(device):
            return make(data, dtype=dtype, device=device, **how)
        return make(data, dtype=dtype).to(device).requires_grad_(how.get("requires_grad", False))

    return made


def _told_here(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """Raises what has failed in the thread of the backward pass, as PyTorch does of its own errors."""

    @wraps(run_backward)
    def told(*args: Any, **how: Any) -> Any:
        found = run_backward(*args, **how)
        failed, plugged().failed = plugged().failed, None
        if failed is not None:
            raise failed
        return found

    return told


def _loaded_here(load: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch reads files into storages, of which tensors here have none."""

    @wraps(load)
    def loaded(file: Any, map_location: Any = None, **how: Any) -> Any:
        if not isinstance(map_location, (str, torch.device)) or not is_ours(map_location):
            return load(file, map_location=map_location, **how)
        return _moved(load(file, map_location="cpu", **how), map_location)

    return loaded


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, dict):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value
