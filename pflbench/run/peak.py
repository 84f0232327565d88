"""What computing takes of memory, found on tensors without data."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of the tensors that are made inside, in bytes. On the device "meta" they have none, and cost nothing.

    now: of those that still live; most: of those that lived at once; largest: of a single one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = self.largest = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), new=False)
        result = func(*args, **(kwargs or {}))
        self._note(result, new=True)
        return result

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._seen.clear()  # what ends its life later no longer counts

    def _note(self, tensors: Any, new: bool) -> None:
        for tensor in tree_leaves(tensors):
            # Views share their memory: it counts once, and not at all where it was there before.
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._seen:
                self._begin(tensor.untyped_storage(), new)

    def _begin(self, storage: torch.UntypedStorage, new: bool) -> None:
        where, size = storage._cdata, storage.nbytes() if new else 0

        def end(_: object) -> None:
            self.now -= size
            del self._seen[where]

        self._seen[where] = weakref.ref(storage, end)
        self.now += size
        self.most, self.largest = max(self.most, self.now), max(self.largest, size)
