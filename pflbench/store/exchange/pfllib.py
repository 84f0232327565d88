"""PFLlib's result files, {dataset}_{algorithm}_{goal}_{times}.h5, as reference series.

A file has `rs_test_acc`, `rs_test_auc` and `rs_train_loss`, a value for each evaluation; PFLlib evaluates every `eval_gap`
rounds, first before any training. `rs_test_auc` is empty or missing. The file does not say how clients, data or training were
set.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np

from pflbench.errors import UserError
from pflbench.store.arrays import Floats
from pflbench.store.references import ResultFile

ACCURACY, AUC, LOSS = "rs_test_acc", "rs_test_auc", "rs_train_loss"
EXPECTED = f"Expected: a result file of PFLlib with {ACCURACY}, {AUC} and {LOSS}, one number per evaluation."

# PFLlib's names in lower case, without signs -> ours, if they differ.
_METHODS = {"peravg": "per-fedavg", "perfedavg": "per-fedavg", "fedavgc": "fedavg-c", "fedproxc": "fedprox-c"}
_DATASETS = {"fmnist": "fashionmnist", "tinyimagenet": "tiny"}


def is_hdf5(path: Path) -> bool:
    """Whether the file is HDF5, by its suffix or its first bytes."""
    import h5py

    return path.suffix.lower() in (".h5", ".hdf5") or h5py.is_hdf5(path)


def load(path: Path, *, dataset: str | None = None, method: str | None = None, eval_gap: int = 1) -> ResultFile:
    """Reads a file. dataset and method replace those of its name.

    Raises UserError for a damaged file, one that is not PFLlib's, and a name without dataset and method.
    """
    arrays = _arrays(path)
    accuracy = arrays[ACCURACY]
    written_dataset, algorithm, goal, times = _named(path, dataset, method)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ResultFile(
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


def _named(path: Path, dataset: str | None, method: str | None) -> tuple[str, str, str, int]:
    """Dataset, algorithm, goal and number from the file's name, or from the arguments if the name has another form."""
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
    """The three series, of one length; NaN for a missing AUC or loss, and for an infinite loss."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            held = [name for name in file if isinstance(file[name], h5py.Dataset)]
            arrays = {name: np.asarray(file[name], dtype=np.float64) for name in (ACCURACY, AUC, LOSS) if name in held}
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
    if ((arrays[AUC] < 0) | (arrays[AUC] > 1)).any():
        raise UserError(f"{path}: {AUC} holds values that are not between 0 and 1.", EXPECTED)
    arrays[LOSS] = np.where(np.isfinite(arrays[LOSS]), arrays[LOSS], np.nan)
    return arrays


def _ours(written: str, names: dict[str, str]) -> str:
    """Our name of a dataset or method for PFLlib's: 'Tiny-ImageNet' -> 'tiny'. Own data (folder:PATH) stay as they are."""
    if ":" in written:
        return written
    plain = re.sub(r"[^a-z0-9+]", "", written.lower())
    return names.get(plain, plain)
