"""What a capture writes down: kernels with their arguments, and the memory they work on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from support.gpu import rules
from support.gpu.memory import Block, Pool
from support.gpu.rules import NotPermitted, mapped, poison, tensors
from support.gpu.streams import Stream


class _Outside:
    """A tensor in memory that is not the graph's own: the graph knows its address, and does not keep it."""

    def __init__(self, raw: torch.Tensor, block: Block, place: str) -> None:
        self.raw, self.block, self.place = raw.detach(), weakref.ref(block), place

    def now(self) -> torch.Tensor:
        if self.block() is None:
            raise NotPermitted(f"a graph uses memory that was given back, of a tensor that it took at {self.place}")
        return self.raw


class Tape:
    """What one capture has seen: kernels with their arguments, and the memory that it allocated.

    To give its caller shapes, each kernel is computed; what it wrote outside of the graph's own memory is put back at the end.
    """

    def __init__(self, stream: Stream, pool: Pool) -> None:
        self.stream, self.pool = stream, pool
        self.invalid = False
        self.kernels: list[tuple[Any, Any, Any, list[torch.Tensor] | None]] = []
        self._own: dict[int, torch.Tensor] = {}  # by storage: the tensor that it was allocated for
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._read: dict[int, weakref.ref[Block]] = {}
        self._written: dict[int, weakref.ref[Block]] = {}

    def refuse(self, why: str) -> NotPermitted:
        """As CUDA: what is not permitted invalidates the whole capture."""
        self.invalid = True
        return NotPermitted(f"CUDA error: operation not permitted when stream is capturing: {why}")

    def keep(self, written: list[torch.Tensor]) -> None:
        """What a kernel is about to write to lies there again when the capture ends."""
        for raw in written:
            storage = raw.untyped_storage()
            if storage._cdata not in self._own and storage._cdata not in self._before:
                self._before[storage._cdata] = storage, storage.clone()

    def note(
        self, func: Any, args: Any, kwargs: Any, made: Any, blocks: dict[int, Block], written: list[torch.Tensor], place: str
    ) -> None:
        """A kernel. args, kwargs, made: on raw tensors; blocks: theirs by storage, where they are on the device."""
        for raw in tensors(made):
            if raw.untyped_storage()._cdata not in blocks:
                self._own[raw.untyped_storage()._cdata] = raw.detach()
        if func.is_view or rules.allocates(func):
            return

        def kept(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            where = value.untyped_storage()._cdata
            if where in self._own:
                return value.detach()  # an alias: the tensor itself may change its shape in place
            if where not in blocks:
                return value.clone()  # a number on the host is an argument of the kernel
            self._read[where] = weakref.ref(blocks[where])
            return _Outside(value, blocks[where], place)

        for raw in written:
            where = raw.untyped_storage()._cdata
            if where in blocks and where not in self._own:
                self._written[where] = weakref.ref(blocks[where])
        results = None if written else [raw.detach() for raw in tensors(made)]
        self.kernels.append((func, mapped(kept, args), mapped(kept, kwargs), results))

    def end(self) -> None:
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()
        self._poison()

    def replay(self, launch: Callable[[list[Block], list[Block]], None]) -> None:
        """Makes the kernels. launch: what this looks like from outside, one kernel with these blocks."""

        def now(value: Any) -> Any:
            return value.now() if isinstance(value, _Outside) else value

        alive = [[block for ref in used.values() if (block := ref())] for used in (self._read, self._written)]
        launch(*alive)
        with torch.no_grad():
            for func, args, kwargs, results in self.kernels:
                again = func(*mapped(now, args), **mapped(now, kwargs))
                if results is None:
                    continue
                for old, new in zip(results, tensors(again), strict=True):
                    if old.untyped_storage()._cdata != new.untyped_storage()._cdata:
                        old.copy_(new)
        self._poison()

    def _poison(self) -> None:
        for raw in self._own.values():
            whole = torch.empty(0, dtype=raw.dtype).set_(raw.untyped_storage())
            poison(whole)
