"""One thread to each operation on a CPU: what it adds up is then added up in the same order, whatever else the machine does.

PyTorch keeps the number of threads for each of the program's own threads, and a new one begins with that of the machine until
its first large operation: how many threads a product has there, and so its last digits, would depend on what came before. One is
also the number that does not depend on the cores at hand. Clients side by side are what keeps several cores busy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_here = threading.local()


def begin() -> None:
    """To be called at the start of a thread that computes."""
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """In the calling thread. Of several that overlap, the last to end gives back what there was before the first."""
    depth = getattr(_here, "depth", 0)
    if depth == 0:
        _here.before = torch.get_num_threads()
    _here.depth = depth + 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _here.depth -= 1
        if _here.depth == 0:
            torch.set_num_threads(_here.before)
