"""The time by which a device has done what it was asked."""

from __future__ import annotations

import time

import torch


def synchronised(device: torch.device) -> float:
    """Seconds on a clock of its own, once everything asked of the device so far is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
