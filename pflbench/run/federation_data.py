"""Loads the data and the partition of a specification, with the partition's record for the database."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from pflbench import data, methods
from pflbench.data import Arrays
from pflbench.errors import UserError
from pflbench.models import build
from pflbench.partition import Partition, make, pfllib
from pflbench.partition.core import Indices, least_samples, set_aside, without_last
from pflbench.spec import DataSpec, Dirichlet, PartitionSpec, Pfllib, RunSpec
from pflbench.store.partitions import PartitionRecord
from pflbench.store.paths import in_spec


@dataclass(frozen=True)
class FederationData:
    """Samples, their partition, and its record for the database. central: indices of the central test set, if any.

    content: for the run's record: the hash of the data, and whether they are the official ones. validation: of each client the
    samples for validation, which are not among its training samples; none without --val-share. new: the samples of the clients
    that never join (methods.md 2.13), which `partition` does not have; `record` is of all clients.
    """

    arrays: Arrays
    partition: Partition
    record: PartitionRecord
    content: dict[str, str]
    central: Indices | None = None
    validation: tuple[Indices, ...] = ()
    new: Partition | None = None

    def model(self, spec: RunSpec) -> nn.Module:
        """The specification's model, with the method's own parts, initialised from PyTorch's seed.

        Raises UserError if it does not fit the data or the method.
        """
        x, classes = self.arrays.x, self.arrays.classes
        backbone = build(spec.model, tuple(x.shape[1:]), len(classes), self.arrays.vocabulary, spec.own_model)
        return methods.make(spec.method).model(backbone)

    def cut(self, share: float, least: int) -> FederationData:
        """A share of every client's samples, at least `least` for training and for testing if it has them; for measurements."""
        whole = self.partition
        sides = ([part[: max(least, int(share * len(part)))] for part in side] for side in (whole.train, whole.test))
        return replace(self, partition=Partition(*map(tuple, sides)))


def load_federation_data(spec: RunSpec, data_root: Path, progress: data.Progress | None = None) -> FederationData:
    """Data and partition. The last result is cached, since the runs of a command mostly share it.

    Raises UserError if data are missing or damaged, or the partition is impossible.
    """
    wanted = (spec.data, spec.partition, data_root)
    if wanted not in _kept:
        loaded = _load(*wanted, progress)
        _kept.clear()
        _kept[wanted] = loaded
    found, share = _kept[wanted], spec.train.val_share
    if spec.train.new_clients:
        partition, new = without_last(found.partition, spec.train.new_clients, spec.train.new_samples)
        found = replace(found, partition=partition, new=new)
    if not share:
        return found
    train, validation = set_aside(found.partition.train, share, getattr(spec.partition, "seed", 0))
    return replace(found, partition=replace(found.partition, train=train), validation=validation)


_kept: dict[tuple[DataSpec, PartitionSpec, Path], FederationData] = {}


def _load(source: DataSpec, spec: PartitionSpec, data_root: Path, progress: data.Progress | None) -> FederationData:
    if isinstance(spec, Pfllib):
        arrays, partition = _pfllib(source, spec)
        content = {"hash": spec.content, "state": "PFLlib folder"}
        return FederationData(arrays, partition, _record(source, spec, arrays, partition, len(arrays.y)), content)
    arrays = data.load(source, data_root, progress)
    held = _train_size(source, arrays) if spec.central_test else len(arrays.y)
    partition = make(spec, arrays.y[:held], len(arrays.classes), None if arrays.owner is None else arrays.owner[:held])
    central = np.arange(held, len(arrays.y)) if spec.central_test else None
    content = data.record(source, data_root, arrays)
    return FederationData(arrays, partition, _record(source, spec, arrays, partition, held), content, central)


def _train_size(source: DataSpec, arrays: Arrays) -> int:
    if arrays.train_size is None:
        known = [dataset.name for dataset in data.DATASETS.values() if dataset.test_part]
        raise UserError(
            f"{source.label} has no official test part that --central-test could set aside.",
            f"These have one: {', '.join(known)}, leaf:PATH, and folder:PATH with a folder train and one folder test in it.",
        )
    return arrays.train_size


def _pfllib(source: DataSpec, spec: Pfllib) -> tuple[Arrays, Partition]:
    if pfllib.describe(Path(spec.path)).content != spec.content:
        raise UserError(f"{spec.path} has changed since this run was planned.", "Run the command again.")
    x, y, classes, partition = pfllib.read(Path(spec.path))
    data.require_alike(source, x.shape[1:], classes, spec.path)
    return Arrays(x, y, tuple(str(k) for k in range(classes))), partition


def remarks(spec: RunSpec, held: FederationData) -> list[str]:
    """Notes on a partition that a user may not expect."""
    record, where = held.record, f"{spec.partition.label} of {spec.data.label}"
    train = record.train.sum(1)
    sizes = train + record.test.sum(1)
    usual, smallest = least_samples(int(sizes.sum()), len(sizes)), int(sizes.min())
    found = []
    if record.left_out:
        found.append(f"{where} leaves out {record.left_out:,} samples, which no client gets.")
    if isinstance(spec.partition, Dirichlet) and spec.partition.min_samples is None and smallest < usual:
        found.append(
            f"{where}: the smallest client has {smallest} sample{'s' * (smallest != 1)}. "
            f"No draw gave every client the usual {usual} (--min-samples)."
        )
    held_by, N = record.counts, spec.training_clients  # [client, class]
    alone = (held_by[:N].sum(0) == 0) & (held_by[N:].sum(0) > 0)
    if unseen := [record.classes[k] for k in alone.nonzero()[0]]:
        found.append(
            f"{where}: only new clients have samples of class {', '.join(unseen)}: they are the partition's last clients."
        )
    if N == 1:
        found.append(f"{where} has one client{' that trains' * (len(sizes) > 1)}, so that nothing is federated.")
    elif spec.train.batch_size > train[:N].max():
        found.append(f"--batch-size {spec.train.batch_size}: no client has so many samples; each of its epochs is one step.")
    return found


def _record(source: DataSpec, spec: PartitionSpec, arrays: Arrays, partition: Partition, samples: int) -> PartitionRecord:
    """samples: the number of samples that were partitioned."""
    train, test = partition.counts(arrays.y, len(arrays.classes))
    # Own data are the same wherever they lie.
    named = [partition.hash(arrays.y), source.label if source.path is None else f"{source.content}", *arrays.classes]
    indices = {f"train_{i}": part for i, part in enumerate(partition.train)}
    indices |= {f"test_{i}": part for i, part in enumerate(partition.test)}
    return PartitionRecord(
        hash=hashlib.sha256("\0".join(named).encode()).hexdigest(),
        scheme=spec.scheme,
        label=spec.label,
        dataset=source.label,
        spec=in_spec(spec.model_dump(mode="json"), lambda path: Path(path).name),
        classes=arrays.classes,
        train=train,
        test=test,
        indices=indices,
        left_out=samples - int(train.sum() + test.sum()),
    )
