"""PyTorch's CUDA build on a runtime that stands in for NVIDIA's (tests/cuda/runtime.cpp): what its tests share.

* stand_in: what was launched, waited for and allocated; the few numbers that a round decides by; convolutions
* trial: rounds of a method on it, as a run makes them

Importing these needs the runtime to be loaded: `make cuda`.
"""
