"""FILE.py:NAME - a function that gives own arrays; and those of installed packages (entry points of `pflbench.datasets`).

It returns (x, y), (x, y, classes), or a dict of these names with, for texts, `vocabulary`, and `train_size`, the leading samples
that are the official training part. x and y are as in `npz.py`; of texts x is token ids [n, positions] below `vocabulary`, where
0 is padding. A parameter `root`, if it has one, is the data folder.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflbench import plugins
from pflbench.data import content, npz, text
from pflbench.data.base import Arrays, Defaults, Progress, Source, default_root
from pflbench.errors import UserError

GROUP = "pflbench.datasets"
FILE = re.compile(r"(?P<path>.+\.py)(:(?P<name>[^:]*))?")
QUICK = 2.0  # seconds: what takes longer is not called twice
PARTS = ("x", "y", "classes", "vocabulary", "train_size")
_GIVES = "It returns (x, y) or (x, y, classes), or a dict of these: see docs/own-model.md."

_made: dict[tuple[str, str], tuple[Arrays, str]] = {}  # the last ones, with the hash of their content


def packaged() -> tuple[plugins.Installed, ...]:
    """The datasets of installed packages, by name."""
    return plugins.installed(GROUP, "dataset")


def place(name: str) -> str | None:
    """What stands in specifications for `FILE.py:NAME`, `FILE.py` or a package's dataset; None of anything else.

    Raises UserError for a file that is not there or does not have it.
    """
    name = name.removeprefix("python:")
    if at := FILE.fullmatch(name):
        path = Path(at["path"]).expanduser()
        if not path.exists():
            raise UserError(f"There is no file {path}.", "Write -d FILE.py:NAME, with the path of a Python file.")
        file = plugins.execute(path)
        return f"{path.absolute()}:{_function(file, at['name'])[0]}"
    return name if any(one.name == name for one in packaged()) else None


def code(path: Path) -> str:
    """What a run's record has of a dataset's code: the SHA-256 of its file, or its package."""
    at = FILE.fullmatch(str(path))
    return plugins.content(Path(at["path"])) if at else next(one.place for one in packaged() if one.name == str(path))


def _content(path: Path, root: Path, progress: Progress | None) -> str:
    return _arrays(path, root)[1]


def _load(path: Path, root: Path, progress: Progress | None) -> Arrays:
    return _arrays(path, root)[0]


def _defaults(path: Path) -> Defaults:
    arrays = _arrays(path, default_root())[0]
    return text.DEFAULTS if arrays.vocabulary is not None else npz.defaults_of(arrays.x.shape)


PYTHON = Source("python", "a function that gives own arrays", _content, _load, _defaults)


def _arrays(path: Path, root: Path) -> tuple[Arrays, str]:
    """The arrays and the hash of their content. They are kept: to make them takes its time, and all ask for them."""
    function, version = _found(path)
    at = str(path), version
    if at not in _made:
        begun = time.monotonic()
        arrays = _called(path, function, root)
        held = _hash(arrays)
        if time.monotonic() - begun < QUICK and _hash(_called(path, function, root)) != held:
            raise UserError(
                f"{path} gives other data each time.", "Draw by a generator of a fixed seed: numpy.random.default_rng(0)."
            )
        _made.clear()
        _made[at] = arrays, held
    return _made[at]


def _found(path: Path) -> tuple[Callable[..., Any], str]:
    """The function, and the version of its code."""
    if at := FILE.fullmatch(str(path)):
        file = plugins.execute(Path(at["path"]))
        return _function(file, at["name"])[1], file.sha256
    for one in packaged():
        if one.name == str(path):
            return _checked(one.who, one.load()), one.place
    raise UserError(f"Dataset '{path}' is of a package that is not installed here.", "Install the package that has it.")


def _function(file: plugins.PythonFile, name: str | None) -> tuple[str, Callable[..., Any]]:
    own = [key for key, value in vars(file.module).items() if _is_own(file, value)]
    offer = f"Write {' or '.join(f'{file.path}:{key}' for key in own[:5])}." if own else _GIVES
    if not name:
        if len(own) != 1:
            raise UserError(f"{file.path} does not say which of its functions is meant.", offer)
        name = own[0]
    if not hasattr(file.module, name):
        raise UserError(f"{file.path} has no '{name}'.", offer)
    return name, _checked(f"'{name}' of {file.path}", getattr(file.module, name))


def _is_own(file: plugins.PythonFile, value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__ == file.module.__name__ and not value.__name__.startswith("_")


def _checked(who: str, function: Any) -> Callable[..., Any]:
    if not callable(function) or inspect.isclass(function):
        raise UserError(f"{who} is a {type(function).__name__}, no function.", _GIVES)
    for one in inspect.signature(function).parameters.values():
        if one.name != "root" and one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise UserError(f"{who} asks for '{one.name}', which nobody knows.", "It may ask for root, the data folder.")
    called: Callable[..., Any] = function
    return called


def _called(path: Path, function: Callable[..., Any], root: Path) -> Arrays:
    try:
        given = function(root=root) if "root" in inspect.signature(function).parameters else function()
    except UserError:
        raise
    except Exception as error:
        where = ""
        if at := FILE.fullmatch(str(path)):
            where = plugins.execute(Path(at["path"])).where(error)
        raise UserError(f"{path} failed{where}: {plugins.in_a_line(error)}.", plugins.TRACEBACK) from error
    return _as_arrays(str(path), given)


def _as_arrays(place: str, given: Any) -> Arrays:
    named = dict(zip(PARTS, given, strict=False)) if isinstance(given, (tuple, list)) and len(given) in (2, 3) else given
    if not isinstance(named, dict) or not {"x", "y"} <= named.keys() <= set(PARTS):
        what = ", ".join(map(str, given)) if isinstance(given, dict) else type(given).__name__
        raise UserError(f"{place} gives {what}, not x and y.", _GIVES)
    x, y = _array(place, "x", named["x"]), _array(place, "y", named["y"])
    names = None if named.get("classes") is None else np.asarray(list(map(str, named["classes"])))
    size = _size(place, named.get("train_size"), len(x) if x.ndim else 0)
    vocabulary = named.get("vocabulary")
    if vocabulary is None:
        arrays = npz.checked(place, x, y, names)
        return Arrays(arrays.x, arrays.y, arrays.classes, train_size=size)
    y, classes = npz.labelled(place, y, names)
    return Arrays(_tokens(place, x, y, vocabulary), y, classes, int(vocabulary), size)


def _array(place: str, name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # whatever claims to be an array
        raise UserError(f"{place}: {name} is no array: {plugins.in_a_line(error)}.", _GIVES) from error


def _tokens(place: str, x: npt.NDArray[Any], y: npt.NDArray[np.int64], vocabulary: Any) -> npt.NDArray[np.int64]:
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.integer) or x.size == 0:
        raise UserError(f"{place}: x is {x.dtype} with the shape {x.shape}.", "Texts are token ids, integers [n, positions].")
    if len(x) != len(y):
        raise UserError(f"{place}: x has {len(x)} samples, y has {len(y)} labels.", "Expected one label per sample.")
    if x.min() < 0 or x.max() >= vocabulary:
        raise UserError(
            f"{place}: x has tokens from {x.min()} to {x.max()}.", f"A vocabulary of {vocabulary} has 0 to {vocabulary - 1}."
        )
    return np.ascontiguousarray(x, np.int64)


def _size(place: str, size: Any, samples: int) -> int | None:
    if size is not None and not 0 < int(size) < samples:
        raise UserError(
            f"{place}: train_size is {size} of {samples} samples.", "It is the number of leading samples to train on."
        )
    return None if size is None else int(size)


def _hash(arrays: Arrays) -> str:
    held = content.of_arrays(arrays).hash
    return held if arrays.vocabulary is None else hashlib.sha256(f"{held}\0{arrays.vocabulary}".encode()).hexdigest()
