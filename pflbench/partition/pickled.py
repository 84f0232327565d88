"""Read the dict of arrays that PFLlib pickles into its .npz files, without trusting the pickle.

A pickle may call whatever it names. Here it can name an array, a type and a scalar only, and gets the stand-ins below,
which accept numbers alone. NumPy's own unpickling functions never run: they take memory layouts from the file on faith.
"""

from __future__ import annotations

import math
import pickle
import re
from pathlib import Path
from typing import IO, Any

import numpy as np

from pflbench import zips
from pflbench.errors import UserError

_NUMBER = re.compile(r"[biuf]\d{1,2}")


def read(path: Path) -> dict[str, Any]:
    """The dict under key "data" of the .npz file `path`; its arrays are read-only. Raises UserError naming the file."""
    try:
        with zips.opened(path) as archive, zips.member(archive, "data.npy") as stream:
            content = _load(stream)
            while stream.read(1 << 20):  # the checksum is compared at the end of the stream
                pass
    except FileNotFoundError:
        raise UserError(f"{path} is missing.", "Copy the folder again, complete.") from None
    except _Refused as error:
        raise UserError(f"{path} is not data of PFLlib: {error}.", "Nothing in it was executed.") from None
    except Exception as error:  # what a damaged pickle raises is not specified
        raise UserError(f"{path} is damaged or not a file of PFLlib ({type(error).__name__}).", "Copy it again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not data of PFLlib: it holds no dict.", "Expected a dict with arrays x and y.")
    return content


class _Refused(pickle.UnpicklingError):
    pass


class _Type:
    """Stands for numpy.dtype: numbers, and "O" for lists of objects."""

    def __init__(self, code: str, *_: object) -> None:
        if code != "O8" and not _NUMBER.fullmatch(code):
            raise _Refused(f"values of type {code!r}")
        self.code = code
        self.order = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = "<" if state[1] == "<" else ">" if state[1] == ">" else "|"

    def numpy(self) -> np.dtype[Any]:
        if self.code == "O8":
            raise _Refused("objects where numbers belong")
        return np.dtype(self.order + self.code)


class _Array:
    """Stands for numpy.ndarray while the pickle is read."""

    value: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        if kind.code == "O8":
            if len(data) != math.prod(shape):
                raise _Refused("an array of objects of the wrong length")
            self.value = data[0] if shape == () else data
        else:
            self.value = np.frombuffer(data, kind.numpy()).reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _scalar(kind: _Type, data: bytes) -> Any:
    return np.frombuffer(data, kind.numpy())[0]


_FUNCTIONS: dict[str, Any] = {"_reconstruct": _reconstruct, "scalar": _scalar}
_ADMITTED: dict[str, dict[str, Any]] = {
    "numpy": {"ndarray": _Array, "dtype": _Type},
    "numpy.core.multiarray": _FUNCTIONS,  # written by NumPy 1
    "numpy._core.multiarray": _FUNCTIONS,  # written by NumPy 2
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module][name]
        except KeyError:
            raise _Refused(f"it wants to call {module}.{name}") from None


def _load(stream: IO[bytes]) -> Any:
    _, dtype, _ = zips.array_header(stream)
    if dtype != np.dtype(object):
        raise _Refused("it holds a plain array, not a dict")
    return _plain(_Unpickler(stream).load())


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return _plain(value.value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
