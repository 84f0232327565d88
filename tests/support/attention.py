"""FedAMP's attention computed with more digits, and models that lie near one another."""

from __future__ import annotations

import torch

from pflbench.methods.attention import mixed


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def near(actual, expected, tolerance=1e-8):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


def clouds(method, w):
    others = method.attention(w, 1)
    return mixed(w, w, others)
