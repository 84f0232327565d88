"""The one place that imports torchvision: its C++ operators may be unusable, and nothing here needs them."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

import torch


@cache
def torchvision() -> ModuleType:
    """The package torchvision, also where its compiled operators do not load.

    PyPI's torchvision is built for CUDA. Beside a CPU build of torch its extension is silently skipped, and then the
    import fails on "operator torchvision::nms does not exist", because fake kernels are registered for nms and qnms.
    With the two schemas declared, the import succeeds: datasets, transforms and models work, nms itself does not.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module("torchvision")
