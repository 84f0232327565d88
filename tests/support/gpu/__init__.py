"""A GPU made of Python: PyTorch's backend for devices of one's own (PrivateUse1), over tensors that lie on the CPU.

Real numbers flow, and CUDA's rules hold. `plugged_in()` is a context in which PyTorch sees such devices, named "pygpu"; outside
of it there are none. What was seen, `World.seen` tells.

* dispatch: tensors of the device, and what happens to an operation on them
* rules: what CUDA refuses, and what makes the host wait for the device
* memory: its limit, what lives in it, what graphs keep
* streams: who may use which memory without a race
* tape, captures: CUDA graphs
* world: the devices, and what was seen of them
* module: what PyTorch gets as the devices' module; the plug
* trial: rounds of methods on it, beside the same rounds on the CPU

Importing this registers the devices with PyTorch, which can be done only before the first backward pass of a process.
"""

from __future__ import annotations

from support.gpu.dispatch import NAME, OnGpu
from support.gpu.module import faultless, plugged_in
from support.gpu.rules import NotPermitted
from support.gpu.world import Seen, World

__all__ = ["NAME", "NotPermitted", "OnGpu", "Seen", "World", "faultless", "plugged_in"]
