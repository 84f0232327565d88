"""The one place that imports torchvision: its C++ operators may be unusable, and nothing here needs them."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch


@cache
def torchvision() -> ModuleType:
    """The package torchvision, also where its compiled operators do not load.

    PyPI's torchvision is built for CUDA. Beside a CPU build of torch its extension is silently skipped, and then the
    import fails on "operator torchvision::nms does not exist", because fake kernels are registered for nms and qnms.
    With the two schemas declared, the import succeeds: datasets, transforms and models work, nms itself does not.
    """
    if not _operators_load():
        _declare_operators()
    return importlib.import_module("torchvision")


def _operators_load() -> bool:
    package = find_spec("torchvision")
    folders = package.submodule_search_locations or [] if package else []
    for folder in folders:
        for suffix in EXTENSION_SUFFIXES:
            extension = Path(folder, f"_C{suffix}")
            if extension.is_file():
                try:
                    torch.ops.load_library(str(extension))  # type: ignore[no-untyped-call]
                except OSError:
                    return False
                return True
    return False


@cache  # also keeps the library alive: collecting it would withdraw the schemas
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library
