"""The user's datasets: functions that return arrays, from FILE.py:NAME and from installed packages.

A function returns (x, y), (x, y, classes), or a dict of these names, which may also have `vocabulary` (texts) and `train_size`
(the number of leading samples that are the official training part). x and y are as in `npz.py`; for texts x has token ids
[n, positions] below `vocabulary`, where 0 is padding. If the function has a parameter `root`, it gets the data folder.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflbench import plugins
from pflbench.data import content, npz, text
from pflbench.data.base import Arrays, Defaults, Progress, Source
from pflbench.errors import UserError
from pflbench.plugins import Plugin

QUICK = 2.0  # seconds: slower functions are not called a second time
PARTS = ("x", "y", "classes", "vocabulary", "train_size")
_GIVES = "It returns (x, y) or (x, y, classes), or a dict of these."

_made: dict[tuple[str, str, Path], tuple[Arrays, str]] = {}  # the last dataset, with the hash of its content


def place(name: str) -> str | None:
    """The name in specifications of `FILE.py:NAME`, `FILE.py` or a package's dataset; None for anything else.

    Raises UserError for a missing file or function.
    """
    name = name.removeprefix("python:")
    if asked := plugins.asked_for(name, "-d"):
        return f"{asked[0].path.absolute()}:{_of_file(*asked).name}"
    return name if any(one.name == name for one in plugins.installed("dataset")) else None


def code(path: Path) -> str:
    """For a run's record: the SHA-256 of the dataset's file, or its package."""
    at = plugins.in_file(str(path))
    return plugins.content(at[0]) if at else _found(path).place


def _content(path: Path, root: Path, progress: Progress | None) -> str:
    return _arrays(path, root)[1]


def _load(path: Path, root: Path, progress: Progress | None) -> Arrays:
    return _arrays(path, root)[0]


def _defaults(path: Path, root: Path) -> Defaults:
    arrays = _arrays(path, root)[0]
    return text.DEFAULTS if arrays.vocabulary is not None else npz.defaults_of(arrays.x.shape)


PYTHON = Source("python", "a function that gives own arrays", _content, _load, _defaults)


def _arrays(path: Path, root: Path) -> tuple[Arrays, str]:
    """The arrays and the hash of their content. Cached, since several callers need them."""
    function = _found(path)
    at = str(path), function.sha256, root.absolute()
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


def _found(path: Path) -> Plugin:
    if asked := plugins.asked_for(str(path), "-d"):
        return _of_file(*asked)
    found = plugins.of_package("dataset", str(path))
    if found is None:
        raise UserError(f"Dataset '{path}' is of a package that is not installed here.", "Install the package that has it.")
    return _checked(found.plugin(), found.who)


def _of_file(file: plugins.PythonFile, asked: str | None) -> Plugin:
    found = file.choose(asked, "function", file.own(inspect.isfunction), (), _GIVES)
    return _checked(found, f"'{found.name}' of {file.path}")


def _checked(found: Plugin, who: str) -> Plugin:
    function = found.value
    if not callable(function) or inspect.isclass(function):
        raise UserError(f"{who} is a {type(function).__name__}, no function.", _GIVES)
    for one in inspect.signature(function).parameters.values():
        if one.name != "root" and one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise UserError(f"{who} asks for '{one.name}', which nobody knows.", "It may ask for root, the data folder.")
    return found


def _called(path: Path, found: Plugin, root: Path) -> Arrays:
    function = found.value
    try:
        given = function(root=root) if "root" in inspect.signature(function).parameters else function()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path} failed{found.where(error)}: {plugins.in_a_line(error)}.", plugins.TRACEBACK) from error
    try:
        return _as_arrays(str(path), given)
    except MemoryError as error:
        raise UserError(f"{path} gives more than the memory holds: {error}.", "Give fewer or smaller samples.") from None


def _as_arrays(place: str, given: Any) -> Arrays:
    named = dict(zip(PARTS, given, strict=False)) if isinstance(given, (tuple, list)) and len(given) in (2, 3) else given
    if not isinstance(named, dict) or not {"x", "y"} <= named.keys() <= set(PARTS):
        what = ", ".join(map(str, given)) if isinstance(given, dict) else type(given).__name__
        raise UserError(f"{place} gives {what}, not x and y.", _GIVES)
    x, y = _array(place, "x", named["x"]), _array(place, "y", named["y"])
    names = None if named.get("classes") is None else np.asarray(list(map(str, named["classes"])))
    size = _size(place, _whole(place, "train_size", named), len(x) if x.ndim else 0)
    vocabulary = _whole(place, "vocabulary", named)
    if vocabulary is None:
        arrays = npz.checked(place, x, y, names)
        return Arrays(arrays.x, arrays.y, arrays.classes, train_size=size)
    y, classes = npz.labelled(place, y, names)
    return Arrays(_tokens(place, x, y, vocabulary), y, classes, vocabulary, size)


def _array(place: str, name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # whatever claims to be an array
        raise UserError(f"{place}: {name} is no array: {plugins.in_a_line(error)}.", _GIVES) from error


def _tokens(place: str, x: npt.NDArray[Any], y: npt.NDArray[np.int64], vocabulary: int) -> npt.NDArray[np.int64]:
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.integer) or x.size == 0:
        raise UserError(f"{place}: x is {x.dtype} with the shape {x.shape}.", "Texts are token ids, integers [n, positions].")
    if len(x) != len(y):
        raise UserError(f"{place}: x has {len(x)} samples, y has {len(y)} labels.", "Expected one label per sample.")
    if x.min() < 0 or x.max() >= vocabulary:
        raise UserError(
            f"{place}: x has tokens from {x.min()} to {x.max()}.", f"A vocabulary of {vocabulary} has 0 to {vocabulary - 1}."
        )
    return np.ascontiguousarray(x, np.int64)


def _whole(place: str, name: str, given: dict[str, Any]) -> int | None:
    value = given.get(name)
    try:
        return None if value is None else operator.index(value)
    except TypeError:
        raise UserError(f"{place}: {name} is {value!r:.50}, no whole number.", _GIVES) from None


def _size(place: str, size: int | None, samples: int) -> int | None:
    if size is not None and not 0 < size < samples:
        raise UserError(
            f"{place}: train_size is {size} of {samples} samples.", "It is the number of leading samples to train on."
        )
    return size


def _hash(arrays: Arrays) -> str:
    held, _ = content.of_arrays(arrays)
    return held if arrays.vocabulary is None else hashlib.sha256(f"{held}\0{arrays.vocabulary}".encode()).hexdigest()
