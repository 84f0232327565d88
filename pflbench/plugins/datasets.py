"""The user's datasets: functions that return arrays, from FILE.py:NAME and from installed packages.

A function returns (x, y), (x, y, classes), or a dict of these names, which may also have `vocabulary` (texts), `train_size` (the
number of leading samples that are the official training part) and `owner` (of each sample). x and y are as in `npz.py`; for texts
x has token ids [n, positions] below `vocabulary`, where 0 is padding. If the function has a parameter `root`, it gets the data
folder.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflbench import plugins
from pflbench.data import content, npz, text
from pflbench.data.base import Arrays, Defaults, Source
from pflbench.errors import UserError
from pflbench.plugins import Plugin

QUICK = 2.0  # seconds: slower functions are not called a second time
PARTS = ("x", "y", "classes", "vocabulary", "train_size", "owner")
_GIVES = "It returns (x, y) or (x, y, classes), or a dict of these."

_made: dict[tuple[str, str, Path], tuple[Arrays, str]] = {}  # the last dataset, with the hash of its content


def place(name: str) -> str | None:
    """The name in specifications of `FILE.py:NAME`, `FILE.py` or a package's dataset; None for anything else.

    Raises UserError for a missing file or function.
    """
    name = name.removeprefix("python:")
    if found := plugins.choose("dataset", name, inspect.isfunction):
        return f"{Path(found.place).absolute()}:{_checked(found).name}"
    return name if any(one.name == name for one in plugins.installed("dataset")) else None


def code(path: Path) -> str:
    """For a run's record: the SHA-256 of the dataset's file, or its package."""
    found = _found(path)
    return found.place if found.point else found.sha256


def _defaults(path: Path, root: Path) -> Defaults:
    arrays = _arrays(path, root)[0]
    return text.DEFAULTS if arrays.vocabulary is not None else npz.defaults_of(arrays.x.shape)


PYTHON = Source(
    "python",
    "a function that gives own arrays",
    content=lambda path, root, progress: _arrays(path, root)[1],
    load=lambda path, root, progress: _arrays(path, root)[0],
    defaults=_defaults,
)


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
                f"{path} gives other data each time.", "Draw by a generator with a seed: numpy.random.default_rng(0)."
            )
        _made.clear()
        _made[at] = arrays, held
    return _made[at]


def _found(path: Path) -> Plugin:
    found = plugins.choose("dataset", str(path), inspect.isfunction) or plugins.named("dataset", str(path))
    if found is None:
        raise UserError(f"Dataset '{path}' is of a package that is not installed here.", "Install the package that has it.")
    return _checked(found)


def _checked(found: Plugin) -> Plugin:
    if not callable(found.value) or inspect.isclass(found.value):
        raise found.error(f"is a {type(found.value).__name__}, no function", _GIVES)
    for one in inspect.signature(found.value).parameters.values():
        if one.name != "root" and one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise found.error(f"asks for '{one.name}', which nobody knows", "It may ask for root, the data folder.")
    return found


def _called(path: Path, found: Plugin, root: Path) -> Arrays:
    function = found.value
    try:
        given = function(root=root) if "root" in inspect.signature(function).parameters else function()
        named = dict(zip(PARTS, given, strict=False)) if isinstance(given, (tuple, list)) and len(given) in (2, 3) else given
        if not isinstance(named, dict) or not {"x", "y"} <= named.keys() <= set(PARTS):
            what = ", ".join(map(str, given)) if isinstance(given, dict) else type(given).__name__
            raise UserError(f"{path} gives {what}, not x and y.", _GIVES)
        x, y = np.asarray(named["x"]), np.asarray(named["y"])
        names = None if named.get("classes") is None else np.asarray(list(map(str, named["classes"])))
        size, vocabulary = (
            None if named.get(part) is None else operator.index(named[part]) for part in ("train_size", "vocabulary")
        )
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path} failed{found.where(error)}: {plugins.in_a_line(error)}.", plugins.TRACEBACK) from error
    place = str(path)
    if size is not None and not 0 < size < len(x):
        raise UserError(f"{place}: train_size is {size} of {len(x)} samples.", "It is the number of leading samples to train on.")
    owner = None if named.get("owner") is None else np.asarray(named["owner"])
    if vocabulary is None:
        return replace(npz.checked(place, x, y, names, owner), train_size=size)
    y, classes = npz.labelled(place, y, names)
    return Arrays(_tokens(place, x, y, vocabulary), y, classes, vocabulary, size, npz.owners(place, owner, len(y)))


def _tokens(place: str, x: npt.NDArray[Any], y: npt.NDArray[np.int64], vocabulary: int) -> npt.NDArray[np.int64]:
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.integer) or x.size == 0:
        raise UserError(f"{place}: x is {x.dtype} with the shape {x.shape}.", "Texts are token ids, integers [n, positions].")
    if len(x) != len(y):
        raise UserError(f"{place}: x has {len(x)} samples, y has {len(y)} labels.", "Expected one label per sample.")
    if x.min() < 0 or x.max() >= vocabulary:
        held = f"{place}: x has tokens from {x.min()} to {x.max()}."
        raise UserError(held, f"A vocabulary of {vocabulary} has 0 to {vocabulary - 1}.")
    return np.ascontiguousarray(x, np.int64)


def _hash(arrays: Arrays) -> str:
    held, _ = content.of_arrays(arrays)
    more = [] if arrays.vocabulary is None else [str(arrays.vocabulary)]
    more += [] if arrays.owner is None else ["owner", *map(str, arrays.owner)]
    return hashlib.sha256("\0".join([held, *more]).encode()).hexdigest() if more else held
