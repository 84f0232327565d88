"""One form for all specifications that mean the same run, so that one experiment has one key, however it is typed.

It is the form of a run that leaves the option out.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from pflbench import methods
from pflbench.errors import UserError
from pflbench.partition.core import least_samples
from pflbench.run.federation_data import load_federation_data
from pflbench.spec import Dirichlet, Pathological, RunSpec, Spec


def canonical(spec: RunSpec, data_root: Path) -> RunSpec:
    """The canonical specification. Fields that depend on missing data stay unchanged: the run will report those data."""
    if spec.train.new_every >= spec.train.rounds:
        spec = _changed(spec, "train", new_every=0)
    if isinstance(spec.partition, Pathological) and spec.partition.balanced:
        spec = _changed(spec, "partition", min_samples=None)
    with suppress(UserError):
        spec = _by_data(spec, data_root)
    return spec


def _by_data(spec: RunSpec, data_root: Path) -> RunSpec:
    """Fields that depend on data or model. Loads them only if a typed value may equal a default."""
    partition = spec.partition
    if isinstance(partition, Pathological | Dirichlet) and partition.min_samples is not None:
        data = load_federation_data(spec, data_root)
        dealt = int(data.record.train.sum() + data.record.test.sum()) + (data.record.left_out or 0)
        if partition.min_samples == least_samples(dealt, partition.clients):
            spec = _changed(spec, "partition", min_samples=None)
    if spec.train.bn_buffers != "local":
        with torch.device("meta"):
            model = load_federation_data(spec, data_root).model(spec)
        if not list(model.buffers()):
            spec = _changed(spec, "train", bn_buffers="local")
    values = methods.make(spec.method).canonical_values(spec)
    # A client without training data never joins, so that fewer clients join than the specification says.
    if values and all(len(samples) for samples in load_federation_data(spec, data_root).partition.train):
        spec = _changed(spec, "method", hyperparameters={**spec.method.hyperparameters, **values})
    return spec


def _changed(spec: RunSpec, part: str, **values: object) -> RunSpec:
    of: Spec = getattr(spec, part)
    return spec.model_copy(update={part: of.model_copy(update=values)})
