"""What ALA goes with as a plug-in, and where it takes its place (methods.md 1.15)."""

from __future__ import annotations

from collections.abc import Mapping

from pflbench.spec import Value

SUFFIX = "+ala"

PLACEMENT: dict[str, Mapping[str, Value]] = {
    "fedavg": {},
    "fedprox": {},
    "per-fedavg": {},
    "fedrep": {},
    "pfedme": {},
    "ditto": {},
    # These train on from their own model: ALA's result takes its place, as if W = 0 became W = 1 and began to learn.
    "fedamp": {"start": "cloud", "xi_clip": True},
    "heurfedamp": {"start": "cloud"},
    "fedphp": {},
    "partialfed": {"start": "received"},
}
"""Methods that ALA goes with, and which of their hyperparameters it decides."""

REFUSED = {
    "fedala": "FedALA is FedAvg with ALA already",
    "fedfomo": "its clients download several models, and ALA mixes one with the local model",
    "apple": "its clients download several models, and ALA mixes one with the local model",
    "fedavg-c": "it fine-tunes the received model where ALA would mix it",
    "fedprox-c": "it fine-tunes the received model where ALA would mix it",
    "elastic": "its server weighs how far clients moved from the global model, and with ALA they would not begin there",
    "feddeper": "it keeps a client's own past out of what it trains and uploads, and ALA would mix it in",
    "local": "its clients receive nothing that could be mixed",
}
