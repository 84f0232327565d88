"""Read the dict of arrays that PFLlib pickles into its .npz files: nothing but arrays, types and scalars of NumPy is made."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pflbench.errors import UserError, require_regular

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


def read(path: Path) -> dict[str, Any]:
    """The dict under key "data" of the .npz file `path`. Raises UserError naming the file."""
    require_regular(path)
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
