"""A folder that PFLlib wrote: config.json, train/0.npz, test/0.npz, train/1.npz, ... - partition and data together."""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pflbench.errors import UserError
from pflbench.partition.core import Partition
from pflbench.spec import Pfllib

_KINDS: dict[str, Literal["dirichlet", "pathological"]] = {"dir": "dirichlet", "pat": "pathological"}
_GENERATE_AGAIN = "Generate the folder again with PFLlib."
# Where NumPy 1 and 2 have them.
_ADMITTED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0] for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): np.float64(0).__reduce__()[0] for core in ("core", "_core")},
}


class _Refused(pickle.UnpicklingError):
    pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(f"it wants to call {module}.{name}")
        return _ADMITTED[module, name]


def describe(path: Path) -> Pfllib:
    """What the folder says of itself, and a hash of its content, without reading the data.

    The hash is the SHA-256 of every file's name, size and CRC-32 as its zip directory records them: fast, and blind to
    how strongly the files were compressed. Raises UserError naming the missing or damaged file.
    """
    config = _config(path)
    kind = _KINDS.get(str(config.get("partition")), "unknown") if config.get("non_iid", True) else "iid"
    alpha = config.get("alpha")
    return Pfllib(
        path=str(path),
        content=_content(path, config["num_clients"]),
        clients=config["num_clients"],
        kind=kind,
        beta=alpha if kind == "dirichlet" and isinstance(alpha, int | float) and abs(alpha) < 10**9 else None,
        classes_per_client=_classes_per_client(config) if kind == "pathological" else None,
    )


def read(path: Path) -> tuple[NDArray[Any], NDArray[np.int64], int, Partition]:
    """All samples x [n, ...] in the type they are stored in, labels y [n], the number of classes, and who holds which.

    Samples stand in the order train of client 0, test of client 0, train of client 1, ... Raises UserError naming the
    file that is missing, damaged, or unlike the others.
    """
    config = _config(path)
    xs: list[NDArray[Any]] = []
    ys: list[NDArray[np.int64]] = []
    sides = []
    start = 0
    for file in _files(path, config["num_clients"]):
        x, y = _samples(file)
        sides.append(np.arange(start, start + len(y), dtype=np.int64))
        start += len(y)
        if not len(y):
            continue  # an empty client stores arrays without shape and type
        if xs and (x.shape[1:], x.dtype) != (xs[0].shape[1:], xs[0].dtype):
            raise UserError(
                f"{file} holds samples {x.shape[1:]} of {x.dtype}, other files {xs[0].shape[1:]} of {xs[0].dtype}.",
                _GENERATE_AGAIN,
            )
        xs.append(x)
        ys.append(y)
    if not xs:
        raise UserError(f"{path} holds no samples.", _GENERATE_AGAIN)
    labels = np.concatenate(ys)
    declared = config.get("num_classes", int(labels.max()) + 1)
    if not isinstance(declared, int) or labels.min() < 0 or declared <= labels.max():
        raise UserError(
            f"{path / 'config.json'} says {declared} classes, but labels run from {labels.min()} to {labels.max()}.",
            _GENERATE_AGAIN,
        )
    return np.concatenate(xs), labels, declared, Partition(tuple(sides[0::2]), tuple(sides[1::2]))


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
    except FileNotFoundError:
        raise UserError(
            f"{path} is not a folder of PFLlib: {file} is missing.",
            "Expected config.json, train/0.npz, test/0.npz, train/1.npz, ...",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}.", "Copy it again.") from error
    clients = config.get("num_clients") if isinstance(config, dict) else None
    if not isinstance(clients, int) or clients < 1:
        raise UserError(f"{file} does not say how many clients there are.", 'Expected "num_clients", at least 1.')
    return dict(config)


def _files(path: Path, clients: int) -> Iterator[Path]:
    for client in range(clients):
        yield path / "train" / f"{client}.npz"
        yield path / "test" / f"{client}.npz"


def _content(path: Path, clients: int) -> str:
    digest = hashlib.sha256()
    for file in _files(path, clients):
        try:
            with zipfile.ZipFile(file) as archive:
                entries = [(e.filename, e.file_size, e.CRC) for e in archive.infolist()]
        except FileNotFoundError:
            raise UserError(f"{file} is missing.", f"{path / 'config.json'} promises {clients} clients.") from None
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise UserError(f"{file} is damaged or not a file of PFLlib.", "Copy it again.") from error
        digest.update(repr((file.parent.name, file.name, entries)).encode())
    return digest.hexdigest()


def _classes_per_client(config: dict[str, Any]) -> int | None:
    held = config.get("Size of samples for labels in clients")
    sizes = [len(client) for client in held if isinstance(client, list)] if isinstance(held, list) else []
    return max(sizes, default=0) or None


def _samples(file: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    data = read_pickle(file)
    x, y = _array(data.get("x")), _array(data.get("y"))
    if x.dtype.kind in "OU" and x.size and x.flat[0] is not None:
        raise UserError(
            f"{file} holds texts as lists of objects: PFLlib's text folders are not supported.",
            "Give the texts themselves: -d agnews, or -d csv:PATH; -p dirichlet and pathological give PFLlib's clients.",
        )
    if x.shape[:1] == y.shape == (0,):
        return x, y.astype(np.int64)
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "iu" or y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise UserError(
            f"{file} must hold numbers x [n, ...] and integer labels y [n]; "
            f"it holds x {x.shape} of {x.dtype} and y {y.shape} of {y.dtype}.",
            _GENERATE_AGAIN,
        )
    return x, y.astype(np.int64)


def read_pickle(path: Path) -> dict[str, Any]:
    """The dict that PFLlib pickles into an .npz file under key "data": nothing but arrays, types and scalars of NumPy is made."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("data.npy") as stream:
            np.lib.format.read_magic(stream)
            np.lib.format.read_array_header_1_0(stream)
            content = _Unpickler(stream).load()
            while stream.read(1 << 20):  # the checksum is compared at the end of the stream
                pass
    except FileNotFoundError:
        raise UserError(f"{path} is missing.", "Copy the folder again, complete.") from None
    except _Refused as error:
        raise UserError(f"{path} is not data of PFLlib: {error}.", "Nothing in it was executed.") from None
    except Exception as error:  # what a damaged pickle raises is not specified
        raise UserError(f"{path} is damaged or not a file of PFLlib ({type(error).__name__}).", "Copy it again.") from error
    content = content.item() if isinstance(content, np.ndarray) and content.shape == () else content
    if not isinstance(content, dict):
        raise UserError(f"{path} is not data of PFLlib: it holds no dict.", "Expected a dict with arrays x and y.")
    return content


def _array(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:  # lists of unequal lengths
        return np.array(None)
