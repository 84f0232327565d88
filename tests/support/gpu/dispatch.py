"""Tensors of the stand-in, and what happens to an operation on them: the rules first, then the numbers, on the CPU."""

from __future__ import annotations

import threading
from typing import Any

import torch
from support.gpu import rules
from support.gpu.memory import Block, Memory
from support.gpu.rules import COPY, INDEX, WAIT, NotPermitted, mapped, poison, tensors
from support.gpu.world import World, in_backward, place, plugged

NAME = "pygpu"
Tensors = list[torch.Tensor]


def is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


class OnGpu(torch.Tensor):
    """A tensor of the device. raw: its numbers, on the CPU; block: its memory, which its views have as well."""

    raw: torch.Tensor
    block: Block
    index: int

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor, block: Block, index: int) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, index),
        )
        made.raw, made.block, made.index = raw, block, index
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: OnGpu) -> None:
        torch._C.TensorBase.data.__set__(self, value)
        self.raw, self.block, self.index = value.raw, value.block, value.index

    # What PyTorch does below its dispatcher, where it would look for memory of a kind that this tensor has none of.

    def untyped_storage(self) -> torch.UntypedStorage:  # type: ignore[override]
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy it to the host first."
        )

    def new_tensor(self, data: Any, **how: Any) -> torch.Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **how})

    def __deepcopy__(self, memo: Any) -> OnGpu:
        with torch.no_grad():
            new = self.clone()
        if isinstance(self, torch.nn.Parameter):
            new = torch.nn.Parameter(new, self.requires_grad)
        else:
            new.requires_grad_(self.requires_grad)
        memo[id(self)] = new
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().cpu().__reduce_ex__(protocol)

    def __format__(self, how: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), how)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnGpu({self.raw!r}, device={self.device})"


class _Call:
    """An operation with its arguments. ours: those on the device; host: those on the CPU."""

    def __init__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name: str = func._schema.name
        given = tensors(*args, *kwargs.values())
        self.ours = [t for t in given if isinstance(t, OnGpu)]
        self.host = [t for t in given if not isinstance(t, OnGpu) and t.device.type == "cpu"]
        self.to = None if kwargs.get("device") is None else torch.device(kwargs["device"])

    def result_on(self, world: World) -> int | None:
        """The number of the device that results lie on; None: they do not."""
        if self.to is not None:
            if self.to.type != NAME:
                return None
            return int(world.here.device) if self.to.index is None else self.to.index
        if self.name in ("aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"):
            target = self.args[0 if self.name == "aten::copy_" else 1]
            return target.index if isinstance(target, OnGpu) else None
        return self.ours[0].index if self.ours else world.here.device

    def kernel_on(self, world: World) -> int:
        found = self.result_on(world)
        return found if found is not None else self.ours[0].index


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation of which an argument or the result is on the device."""
    world, call = plugged(), _Call(func, args, kwargs)
    try:
        return _made(world, call)
    except Exception as error:
        if not in_backward():
            raise
        # Errors of Python end the process there. `module` raises this one where the backward pass was asked for.
        world.failed = world.failed or error
        return _anything(world, call)


def _made(world: World, call: _Call) -> Any:
    func, args, kwargs = call.func, call.args, call.kwargs
    world.seen.threads.add(threading.get_ident())
    index = call.kernel_on(world)
    world.gpu(index)
    tape = world.recording(index)
    if _waits(world, call):
        world.wait(func.name(), world.stream(call.ours[0].index if call.ours else index))
    raw_args, raw_kwargs = (mapped(lambda v: v.raw if isinstance(v, OnGpu) else v, given) for given in (args, kwargs))
    if call.to is not None and call.to.type == NAME:
        raw_kwargs["device"] = torch.device("cpu")
    written = rules.written(func, raw_args, raw_kwargs)
    if tape is not None:
        tape.keep([raw for raw in written if any(raw is t.raw for t in call.ours)])
    with torch.no_grad():
        made = func(*raw_args, **raw_kwargs)
    if rules.allocates(func):
        poison(made)
    blocks = {t.untyped_storage()._cdata: t.block for t in call.ours}
    out = _wrapped(world, call, made, blocks)
    if tape is not None:
        tape.note(func, raw_args, raw_kwargs, made, {t.untyped_storage()._cdata: t.block for t in call.ours}, written, place())
    elif not func.is_view and not rules.allocates(func):
        _launched(world, call, index, written, out)
    if torch.Tag.inplace_view in func.tags:
        with torch._C._DisableTorchDispatch():  # sizes and strides of the tensor itself
            func(*args, **kwargs)
    return out


def _anything(world: World, call: _Call) -> Any:
    """Results of the right shapes, with which a backward pass that has failed comes to its end."""
    same: dict[int, OnGpu] = {}

    def shape(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, OnGpu):
            same[id(made)] = value
        return made

    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) in same:
            return same.get(id(value), value)
        block = Block(Memory(0), 0, world.gpus[0].default, None)
        return OnGpu(torch.zeros(value.shape, dtype=value.dtype), block, 0)

    kwargs = {**mapped(shape, call.kwargs), **({} if call.to is None else {"device": "meta"})}
    return mapped(real, call.func(*mapped(shape, call.args), **kwargs))


def _waits(world: World, call: _Call) -> bool:
    """Whether the host waits for the device. Raises NotPermitted where devices are mixed."""
    _one_gpu(call)
    if rules.compiled(call.func, call.args):
        raise RuntimeError(f"Failed to find C compiler. ({call.name} with an inner size of 1, at {place()})")
    if rules.compiled_at_first(call.func):
        world.seen.odd["a kernel is compiled when it is first used", place()] += 1
    if rules.random(call.func):
        world.seen.odd["random numbers of the device are not those of a CPU", place()] += 1
    if call.name in COPY:
        return _copies_across(world, call)
    if call.ours and call.host and _host_may(world, call):
        return True
    return call.name in WAIT or rules.by_mask(call.func, call.args) or rules.sorted_first(call.func, call.args)


def _one_gpu(call: _Call) -> None:
    found = {t.index for t in call.ours}
    if len(found) > 1 and call.name not in COPY:
        both = " and ".join(f"{NAME}:{index}" for index in sorted(found))
        raise NotPermitted(
            f"Expected all tensors to be on the same device, but found at least two devices, {both}! ({call.name})"
        )


def _copies_across(world: World, call: _Call) -> bool:
    """Between host and device: the host waits, unless it was told not to."""
    to_host = call.to is not None and call.to.type == "cpu"
    across = bool(call.ours and (call.host or to_host)) or bool(call.host and is_ours(call.to))
    if not across:
        return False
    position = {"aten::copy_": 2, "aten::_copy_from": 2}.get(call.name, len(call.args))
    lazily = call.kwargs.get("non_blocking") or (call.args[position] if len(call.args) > position else False)
    if lazily and world.tape is None:
        if to_host or not isinstance(call.args[0], OnGpu):
            world.seen.odd["numbers come to the host without a wait: they may be read too early", place()] += 1
        return False
    return True


def _host_may(world: World, call: _Call) -> bool:
    """Of an operation with arguments on both: whether it copies those on the host, and so waits."""
    if call.name in INDEX and all(any(t is i for i in call.args[1]) for t in call.host):
        world.seen.odd["an index on the host is copied to the device in every call", place()] += 1
        return True
    if all(t.dim() == 0 for t in call.host):
        if rules.copies_number(call.func):
            return True
        if rules.accepts_number(call.func):
            return False
    shapes = [tuple(t.shape) for t in call.host]
    raise NotPermitted(
        f"Expected all tensors to be on the same device, but found at least two devices, {call.ours[0].device} and cpu! "
        f"({call.func.name()}, on the cpu: {shapes}, at {place()})"
    )


def _wrapped(world: World, call: _Call, made: Any, blocks: dict[int, Block]) -> Any:
    """Results as tensors of the device. What was written to is returned as the same object."""
    same = {id(t.raw): t for t in call.ours}
    index = call.result_on(world)

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return value
        if id(value) in same:
            assert value.shape == same[id(value)].shape or torch.Tag.inplace_view in call.func.tags, "nothing is resized here"
            return same[id(value)]
        if index is None:
            return value
        where = value.untyped_storage()._cdata
        if where not in blocks:
            blocks[where] = world.allocate(index, value.untyped_storage().nbytes())
        return OnGpu(value, blocks[where], index)

    return mapped(wrap, made)


def _launched(world: World, call: _Call, index: int, written: Tensors, out: Any) -> None:
    changed = {id(raw) for raw in written}
    read = [t.block for t in call.ours if id(t.raw) not in changed]
    write = [t.block for t in call.ours if id(t.raw) in changed]
    write += [t.block for t in tensors(out) if isinstance(t, OnGpu) and not any(t is one for one in call.ours)]
    for other in {t.index for t in call.ours} - {index}:  # PyTorch makes both streams wait for a copy between two devices
        world.stream(index).wait_stream(world.stream(other))
        world.stream(other).wait_stream(world.stream(index))
    world.launch(index, read, write, call.func.name())
