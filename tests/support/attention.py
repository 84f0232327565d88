"""The cloud models of FedAMP and HeurFedAMP."""

from __future__ import annotations

from pflbench.methods.attention import mixed


def clouds(method, w):
    others = method.attention(w, 1)
    return mixed(w, w, others)
