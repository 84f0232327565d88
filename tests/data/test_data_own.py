"""FILE.py:NAME: what a function of the user's own may give, what is refused, and the keys of runs on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell, parsed, write

from pflbench import data
from pflbench.errors import UserError
from pflbench.plugins import datasets as own
from pflbench.report import labels

SETS = """
import time

import numpy as np


def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=200)
    return rng.normal(size=(4, 12))[y] + rng.normal(size=(200, 12)), y, ["a", "b", "c", "d"]


def of_folder(root):
    with np.load(root / "own.npz") as file:
        return {"x": file["x"], "y": file["y"], "train_size": 30}
"""


def loaded(text: str, root: Path = Path("data")) -> data.Arrays:
    return data.load(data.parse(text, root), root)


def function(returned: str, before: str = "pass") -> str:
    return write("own.py", f"{SETS}\n\ndef own():\n    {before}\n    return {returned}\n") + ":own"


def test_arrays_of_a_function(shell: Shell) -> None:
    """Samples, labels and classes as it gives them; a torch tensor is an array, too."""
    arrays = loaded(f"{write('sets.py', SETS)}:blobs")
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=200)
    np.testing.assert_array_equal(arrays.y, y)
    np.testing.assert_allclose(arrays.x, rng.normal(size=(4, 12))[y] + rng.normal(size=(200, 12)), rtol=1e-6)
    assert (arrays.classes, arrays.x.dtype, arrays.train_size) == (("a", "b", "c", "d"), np.float32, None)
    tensors = loaded(function("__import__('torch').arange(24.0).reshape(6, 4), [5, 5, 5, 7, 7, 7]"))
    assert (tensors.x.shape, tensors.y.tolist(), tensors.classes) == ((6, 4), [0, 0, 0, 1, 1, 1], ("5", "7"))
    assert loaded(function("np.zeros((6, 20, 20), np.uint8), np.arange(6) % 2")).x.shape == (6, 1, 20, 20)


def test_what_lies_in_the_data_folder_and_texts(shell: Shell, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((40, 3)), y=np.arange(40) % 2)
    arrays = loaded(f"{write('sets.py', SETS)}:of_folder", tmp_path)
    assert (arrays.x.shape, arrays.train_size) == ((40, 3), 30)
    spec = data.parse(function("{'x': np.arange(60).reshape(20, 3), 'y': np.arange(20) % 2, 'vocabulary': 60}"), tmp_path)
    words = data.load(spec, tmp_path)
    assert (words.vocabulary, words.x.dtype) == (60, np.int64)
    assert data.defaults(spec, tmp_path).model == "fasttext"
    more = data.parse(function("{'x': np.arange(60).reshape(20, 3), 'y': np.arange(20) % 2, 'vocabulary': 61}"), tmp_path)
    assert more.content != spec.content, "another vocabulary makes another model"


def test_other_data_have_another_key(shell: Shell) -> None:
    """Whatever classes are called: as sizes are, or with the character that joins names."""
    pairs = [
        ("np.zeros((8, 3)), np.arange(8) % 2, ['1', '1', 'a', 'b']", "np.zeros((8, 3, 1, 1)), np.arange(8) % 2, ['a', 'b']"),
        ("np.zeros((8, 3)), np.arange(8) % 2, ['a\\0b', 'c']", "np.zeros((8, 3)), np.arange(8) % 2, ['a', 'b\\0c']"),
    ]
    for pair in pairs:
        keys = [data.parse(function(returned), Path("data")).content for returned in pair]
        assert keys[0] != keys[1]
    named = data.parse(function("np.zeros((8, 3)), np.arange(8) % 2, ['a', 'b']"), Path("data"))
    assert str(named.content).startswith("08c9fb9965aa"), "as stored runs have it"


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("np.full((8, 3), np.nan), np.arange(8) % 2", "the data hold NaN or infinity: x has values that are not finite"),
        ("np.full((8, 3), 1e300), np.arange(8) % 2", "x has values beyond what float32 holds"),
        ("np.zeros((8, 3)), np.arange(7) % 2", "x has 8 samples, y has 7 labels"),
        ("np.zeros((8, 3)), np.arange(8) % 3, ['a', 'b']", "labels that `classes`, of length 2, does not name"),
        ("np.zeros((8, 3)), np.zeros(8, int)", "has 1 classes"),
        ("np.zeros((8, 3)), np.zeros(8)", "y is float64"),
        ("np.zeros((8, 3), int), np.arange(8) % 2", "x is int64"),
        ("np.zeros(8), np.arange(8) % 2", r"x has the shape \(8,\)"),
        ("[[1], [1, 2]], [0, 1]", "failed.*: ValueError"),
        ("3", "gives int, not x and y"),
        ("{'x': 1, 'label': 2}", "gives x, label, not x and y"),
        ("{'x': np.zeros((8, 3)), 'y': np.arange(8) % 2, 'train_size': 8}", "train_size is 8 of 8 samples"),
        ("{'x': np.zeros((8, 3)), 'y': np.arange(8) % 2, 'train_size': 2.5}", "failed.*: TypeError: 'float' object"),
        ("{'x': np.full((8, 3), 9), 'y': np.arange(8) % 2, 'vocabulary': 9}", "x has tokens from 9 to 9"),
        ("{'x': np.zeros((8, 3)), 'y': np.arange(8) % 2, 'vocabulary': 9}", "x is float64 with the shape"),
        ("{'x': np.zeros((8, 3)), 'y': np.arange(8) % 2, 'owner': np.zeros(8)}", "owner is float64"),
        ("np.zeros(3)[5]", r"failed \(line \d+\): IndexError"),
        ("np.random.normal(size=(8, 3)), np.arange(8) % 2", "gives other data each time"),
    ],
)
def test_what_is_no_data_is_refused(shell: Shell, returned: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        data.parse(function(returned), Path("data"))


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("sets.py:blob", "sets.py has no 'blob'. Write sets.py:blobs or sets.py:of_folder."),
        ("sets.py:np", "'np' of sets.py is a module, no function"),
        ("asks.py:own", "'own' of asks.py asks for 'n', which nobody knows"),
        ("set", "Unknown dataset 'set'"),
    ],
)
def test_a_function_that_is_not_there(shell: Shell, dataset: str, words: str) -> None:
    write("sets.py", SETS)
    write("asks.py", "def own(n):\n    pass\n")
    assert words in " ".join(shell.refused("run", "-m", "fedavg", "-d", dataset).split())


def test_each_data_folder_has_its_own(shell: Shell, tmp_path: Path) -> None:
    """In one process, too; and what it holds decides the model, wherever PFLBENCH_DATA leads."""
    file = write("sets.py", SETS)
    for name, side in (("a", 20), ("b", 4)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "own.npz", x=np.full((40, side, side), side, np.uint8), y=np.arange(40) % 2)
    command = ("run", "-m", "fedavg", "-d", f"{file}:of_folder", "--clients", "2", "--dry-run", "--json", "--data-dir")
    specs = [parsed(shell(*command, name))[0]["spec"] for name in "aba"]
    assert [spec["model"] for spec in specs] == ["cnn", "mlp", "cnn"]
    assert specs[0]["data"]["content"] == specs[2]["data"]["content"] != specs[1]["data"]["content"]
    assert int(loaded(f"{file}:of_folder", tmp_path / "b").x[0, 0, 0, 0]) == 4


def test_the_key_follows_the_data(shell: Shell) -> None:
    """Not the file, nor its place. A run keeps the hash of both, and a table shows the function's name."""
    command = ("run", "-m", "fedavg", "-r", "1", "-q", "--json", "--clients", "2", "--beta", "10")
    (first,) = json.loads(shell(*command, "-d", f"{write('sets.py', SETS)}:blobs").out)
    assert first["status"] == "finished"
    data_of = json.loads(shell("runs", "show", "1", "--json").out)["environment"]["data"]
    assert (data_of["state"], len(data_of["code"]), len(data_of["hash"])) == ("own", 64, 64)
    (same,) = json.loads(shell(*command, "-d", f"{write('b/copy.py', SETS + '# more')}:blobs").out)
    assert same["run"] == 1, "the same arrays from another file"
    (other,) = json.loads(
        shell(*command, "-d", f"{write('sets.py', SETS.replace('default_rng(0)', 'default_rng(1)'))}:blobs").out
    )
    assert (other["run"], other["status"]) == (2, "finished")
    assert "blobs" in shell("table", "accuracy", "-d", "blobs").out
    shell("run", "-m", "local", *command[3:], "-d", "b/copy.py:blobs")
    first_partition, third_partition = (parsed(shell("runs", "show", run, "--json"))["partition"]["hash"] for run in "13")
    assert first_partition == third_partition, "so that both stand in one column"
    assert labels.label_title(f"python:{Path('sets.py').absolute()}:blobs") == "blobs"


def test_data_that_change_after_the_plan(shell: Shell) -> None:
    file = write("sets.py", SETS)
    spec = data.parse(f"{file}:blobs", Path("data"))
    write("sets.py", SETS.replace("default_rng(0)", "default_rng(1)"))
    with pytest.raises(UserError, match="is not what it was"):
        data.load(spec, Path("data"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with two datasets, of which one has the name of a built-in one."""
    site = tmp_path / "site"
    info = site / "pfl_sets-1.2.dist-info"
    write(str(info / "METADATA"), "Metadata-Version: 2.1\nName: pfl-sets\nVersion: 1.2\n")
    write(str(info / "entry_points.txt"), "[pflbench.datasets]\nblob-set = pfl_sets:blobs\nmnist = pfl_sets:blobs\n")
    write(str(site / "pfl_sets.py"), SETS)
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("pfl_sets", None)


def test_datasets_of_installed_packages(shell: Shell, package: None) -> None:
    assert [one.name for one in own.plugins.installed("dataset")] == ["blob-set", "mnist"]
    assert "blob-set" in data.names()
    listed = json.loads(shell("data", "list", "--json").out)
    assert listed["packages"][0] == {"name": "blob-set", "from": "pfl-sets 1.2"}
    spec = data.parse("blob-set", Path("data"))
    assert (spec.name, spec.path, spec.label) == ("python", "blob-set", "python:blob-set")
    assert data.parse(spec.label, Path("data")) == spec
    assert spec.content == data.parse(f"{write('sets.py', SETS)}:blobs", Path("data")).content
    arrays = data.load(spec, Path("data"))
    assert data.record(spec, Path("data"), arrays)["code"] == "pfl-sets 1.2"
    with pytest.raises(UserError, match=r"'mnist' stands for several datasets: built into pflbench and of pfl-sets 1\.2"):
        data.parse("mnist", Path("data"))
