"""The memory of one device: what lives in it, what the allocator keeps, what graphs keep for themselves, and its limit.

It knows sizes, not addresses: what CUDA loses to fragments is not seen.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from support.gpu.streams import Stream

GRAIN = 512  # bytes: what CUDA's allocator rounds up to


class Pool:
    """What graphs keep for themselves: as much as lived at once in the capture that needed most. It ends with the last one."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.size = self.live = 0

    def __del__(self) -> None:
        self.memory.in_pools -= self.size
        self.memory.cached[None] += self.size


class Block:
    """The memory of one storage, free again as soon as no tensor on the device has it.

    stream: where it was allocated. written, read: by which stream at which of its times it was last used.
    """

    __slots__ = ("__weakref__", "memory", "pool", "read", "size", "stream", "written")

    def __init__(self, memory: Memory, size: int, stream: Stream, pool: Pool | None) -> None:
        self.memory, self.size, self.stream, self.pool = memory, size, stream, pool
        self.written: tuple[int, int] | None = None
        self.read: dict[int, int] = {}

    def __del__(self) -> None:
        self.memory.give_back(self)


class Memory:
    """live: bytes of tensors; peak: the most of them at once, most_reserved: of all that PyTorch has.

    cached: what no tensor needs, by the stream that it came from: no other one gets it, until it is given back to the device.
    """

    def __init__(self, limit: int) -> None:
        self.size = self.limit = limit  # of the device; and what this process may have of it
        self.live = self.peak = self.most_reserved = self.in_pools = self._general = 0
        self.cached: Counter[Stream | None] = Counter()
        self.torn = False  # a capture's end has failed: before PyTorch 2.13 the allocator goes on as if it were under way

    @property
    def reserved(self) -> int:
        return self._general + self.cached.total() + self.in_pools

    def reset_peaks(self) -> None:
        self.peak, self.most_reserved = self.live, self.reserved

    def take(self, nbytes: int, stream: Stream, pool: Pool | None) -> Block:
        """Raises torch.OutOfMemoryError beyond the limit. pool: that of the capture under way."""
        size = -(-nbytes // GRAIN) * GRAIN
        more = size if pool is None else max(0, pool.live + size - pool.size)
        again = min(size, self.cached[stream]) if pool is None else 0
        if self.reserved + more - again > self.limit:
            self.cached.clear()
            again = 0
        if self.reserved + more - again > self.limit:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes: of {self.limit}, {self.live} are in use by tensors and "
                f"{self.in_pools} kept by graphs."
            )
        if pool is None:
            self._general += size
            self.cached[stream] -= again
        else:
            pool.live += size
            pool.size += more
            self.in_pools += more
        self.live += size
        self.peak, self.most_reserved = max(self.peak, self.live), max(self.most_reserved, self.reserved)
        return Block(self, size, stream, pool)

    def give_back(self, block: Block) -> None:
        self.live -= block.size
        if block.pool is None:
            self._general -= block.size
            self.cached[block.stream] += block.size
        else:
            block.pool.live -= block.size
        block.stream.note_freed(block)

    def empty_cache(self) -> None:
        """Gives the device back what is cached. Idle blocks of graphs are not."""
        if self.torn:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED, please report a bug to PyTorch.")
        self.cached.clear()
