"""PFLlib's result files, {dataset}_{algorithm}_{goal}_{times}.h5, as reference series: read, kept, and given to figures.

A file has `rs_test_acc`, `rs_test_auc` and `rs_train_loss`, a value for each evaluation; PFLlib evaluates every `eval_gap`
rounds, first before any training. It leaves `rs_test_auc` empty, or out. Nothing says how clients, data or training were set.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sqlalchemy import Connection, Engine, delete, func, insert, select

from pflbench.errors import UserError
from pflbench.store.db import writing
from pflbench.store.read import Curve, Floats, floats, reading
from pflbench.store.schema import ReferenceRound, ReferenceRun

State = Literal["new", "same", "replaced"]
ACCURACY, AUC, LOSS = "rs_test_acc", "rs_test_auc", "rs_train_loss"
EXPECTED = f"Expected: a result file of PFLlib with {ACCURACY}, {AUC} and {LOSS}, one number per evaluation."
LONGEST = 10**6  # evaluations in a file: some 500 times those of the paper's runs
_MAGIC = b"\x89HDF\r\n\x1a\n"

# Names in small letters and digits alone -> ours, where these are others.
_METHODS = {"peravg": "per-fedavg", "perfedavg": "per-fedavg", "fedavgc": "fedavg-c", "fedproxc": "fedprox-c"}
_DATASETS = {"fmnist": "fashionmnist", "tinyimagenet": "tiny"}


@dataclass(frozen=True)
class Reference:
    """One file. Arrays are aligned with `round`; accuracy and AUC are fractions; auc and train_loss are NaN where unknown."""

    file: str
    hash: str
    dataset: str
    method: str
    algorithm: str
    goal: str
    times: int
    round: np.ndarray[tuple[int], np.dtype[np.int64]]
    accuracy: Floats
    auc: Floats
    train_loss: Floats


@dataclass(frozen=True)
class ReferenceCurve:
    """The accuracy of a file that is kept."""

    file: str
    dataset: str
    method: str
    algorithm: str
    goal: str
    curve: Curve


def is_hdf5(path: Path) -> bool:
    """Whether the file calls itself so, by its suffix or its first bytes."""
    if path.suffix.lower() in (".h5", ".hdf5"):
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def load(path: Path, *, dataset: str | None = None, method: str | None = None, eval_gap: int = 1) -> Reference:
    """Reads a file. dataset and method, where given, stand in place of what its name says.

    Raises:
        UserError: damaged, not PFLlib's, or a name that does not say what it holds.
    """
    arrays = _arrays(path)
    accuracy = arrays[ACCURACY]
    written_dataset, algorithm, goal, times = _named(path, dataset, method)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Reference(
        file=path.name,
        hash=digest,
        dataset=_ours(dataset or written_dataset, _DATASETS),
        method=_ours(method or algorithm, _METHODS),
        algorithm=algorithm,
        goal=goal,
        times=times,
        round=eval_gap * np.arange(len(accuracy)),
        accuracy=accuracy,
        auc=arrays[AUC],
        train_loss=arrays[LOSS],
    )


def save(engine: Engine, found: Reference, *, renamed: bool = False, dry_run: bool = False) -> State:
    """Keeps a file's series, once: the same content again changes nothing. Returns what it was, or would be in a dry run.

    renamed: the user said what the file holds. If that is not what was said before, it replaces it.
    """
    with reading(engine) if dry_run else writing(engine) as c:
        known = c.execute(_summary().where(ReferenceRun.hash == found.hash)).first()
        if known is not None and (not renamed or tuple(known[1:]) == (found.dataset, found.method, int(found.round[-1]))):
            return "same"
        if not dry_run:
            c.execute(delete(ReferenceRun).where(ReferenceRun.hash == found.hash))
            _insert(c, found)
    return "new" if known is None else "replaced"


def curves(engine: Engine, datasets: Collection[str]) -> list[ReferenceCurve]:
    """The accuracies of all files on these datasets, by dataset, method, goal and number."""
    r = ReferenceRun
    order = (r.dataset, r.method, r.goal, r.times, r.id)
    query = select(r.file, r.dataset, r.method, r.algorithm, r.goal, r.id, ReferenceRound.round, ReferenceRound.accuracy)
    query = query.join(ReferenceRound, ReferenceRound.reference_id == r.id).where(r.dataset.in_(datasets))
    with reading(engine) as c:
        rows = c.execute(query.order_by(*order, ReferenceRound.round)).all()
    found = []
    for (file, dataset, method, algorithm, goal, _), points in groupby(rows, key=lambda row: tuple(row[:6])):
        values = floats([row[6:] for row in points], 2)
        found.append(ReferenceCurve(file, dataset, method, algorithm, goal, Curve(values[:, 0].astype(np.int64), values[:, 1])))
    return found


def datasets(engine: Engine) -> list[str]:
    """Those of the files that are kept, sorted."""
    with reading(engine) as c:
        return list(c.scalars(select(ReferenceRun.dataset).distinct().order_by(ReferenceRun.dataset)))


def merge(engine: Engine, other: Engine, *, dry_run: bool = False) -> list[str]:
    """Keeps the files of another database that are not here; returns their names."""
    with reading(engine) as c:
        here = set(c.scalars(select(ReferenceRun.hash)))
    with reading(other) as there:
        files = there.execute(select(ReferenceRun.__table__).order_by(ReferenceRun.id)).mappings().all()
    new = [dict(file) for file in files if file["hash"] not in here]
    for file in () if dry_run else new:
        query = select(ReferenceRound.__table__).where(ReferenceRound.reference_id == file.pop("id"))
        with reading(other) as there:
            rows = [dict(row) for row in there.execute(query).mappings()]
        with writing(engine) as c:
            _insert_rows(c, file, rows)
    return [file["file"] for file in new]


def _summary() -> Any:
    last = select(func.max(ReferenceRound.round)).where(ReferenceRound.reference_id == ReferenceRun.id).scalar_subquery()
    return select(ReferenceRun.id, ReferenceRun.dataset, ReferenceRun.method, last)


def _insert(c: Connection, found: Reference) -> None:
    names = ("file", "hash", "dataset", "method", "algorithm", "goal", "times")
    columns = (found.round.tolist(), *(_nullable(values) for values in (found.accuracy, found.auc, found.train_loss)))
    rows = [
        {"round": t, "accuracy": accuracy, "auc": auc, "train_loss": loss}
        for t, accuracy, auc, loss in zip(*columns, strict=True)
    ]
    _insert_rows(c, {name: getattr(found, name) for name in names}, rows)


def _insert_rows(c: Connection, file: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    key = c.execute(insert(ReferenceRun).values(file)).inserted_primary_key
    assert key is not None
    c.execute(insert(ReferenceRound), [{**row, "reference_id": key[0]} for row in rows])


def _nullable(values: Floats) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _named(path: Path, dataset: str | None, method: str | None) -> tuple[str, str, str, int]:
    """Dataset, algorithm, goal and number as the name has them; those it does not have are taken from the arguments."""
    match = re.fullmatch(r"([^_]+)_([^_]+)_(.+)_(\d+)", path.stem)
    if match:
        return match[1], match[2], match[3], int(match[4])
    for name, given in (("--dataset", dataset), ("--method", method)):
        if given is None:
            raise UserError(
                f"The name of {path} is not of PFLlib's form DATASET_ALGORITHM_GOAL_NUMBER.h5.",
                f"Say what it holds: {name} NAME",
            )
    assert dataset is not None
    assert method is not None
    return dataset, method, "", 0


def _arrays(path: Path) -> dict[str, Floats]:
    """The three series, of one length; NaN in place of an AUC or loss that is not there."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            linked = {name for name in file if not isinstance(file.get(name, getlink=True), h5py.HardLink)}
            held = [name for name in file if name in linked or isinstance(file[name], h5py.Dataset)]
            arrays = {name: _series(path, file, name, linked) for name in (ACCURACY, AUC, LOSS) if name in held}
    except (OSError, RuntimeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged, or no HDF5 file.", EXPECTED) from None
    if ACCURACY not in arrays:
        raise UserError(f"{path} is no result file of PFLlib: it holds {', '.join(held) or 'no data'}.", EXPECTED)
    accuracy = arrays[ACCURACY]
    if accuracy.ndim != 1 or not len(accuracy) or not ((accuracy >= 0) & (accuracy <= 1)).all():
        raise UserError(f"{path}: {ACCURACY} is no series of accuracies between 0 and 1.", EXPECTED)
    for name in (AUC, LOSS):
        if name not in arrays or not arrays[name].size:
            arrays[name] = np.full(len(accuracy), np.nan)
        if arrays[name].shape != accuracy.shape:
            raise UserError(f"{path}: {name} has the shape {arrays[name].shape}, {ACCURACY} {accuracy.shape}.", EXPECTED)
    return arrays


def _series(path: Path, file: Any, name: str, linked: Collection[str]) -> Floats:
    """The numbers of a dataset that lies in this file itself: HDF5 can name any other file of the machine in its place."""
    if name in linked or file[name].external or file[name].is_virtual:
        raise UserError(f"{path}: {name} is no data of this file, but refers to what lies elsewhere.", EXPECTED)
    data = file[name]
    if data.dtype.kind not in "fiu" or data.size is None or data.size > LONGEST:
        raise UserError(f"{path}: {name} holds {data.size} values of type {data.dtype}; at most {LONGEST} are read.", EXPECTED)
    return np.asarray(data, dtype=np.float64)


def _ours(written: str, names: dict[str, str]) -> str:
    """Our name of a dataset or method for PFLlib's: 'Tiny-ImageNet' -> 'tiny'. Own data (folder:PATH) stay as they are."""
    if ":" in written:
        return written
    plain = re.sub(r"[^a-z0-9+]", "", written.lower())
    return names.get(plain, plain)
