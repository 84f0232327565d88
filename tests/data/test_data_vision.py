"""MNIST, Fashion-MNIST, EMNIST, Cifar10 and Cifar100 from small files in the original formats."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from support.vision_files import Bytes, put_idx, put_set, random

from pflbench import data
from pflbench._torchvision import torchvision
from pflbench.errors import UserError


@pytest.mark.parametrize(("name", "cls"), [("mnist", "MNIST"), ("fashionmnist", "FashionMNIST")])
@pytest.mark.parametrize("nested", [True, False])
def test_mnist_and_fashionmnist_train_first(name: str, cls: str, nested: bool, tmp_path: Path) -> None:
    folder = tmp_path / name if nested else tmp_path
    x = put_set(folder / cls / "raw", ("train", "t10k"), ([5, 0, 9], [7, 1]))
    arrays = data.load(data.parse(name, tmp_path), tmp_path)
    np.testing.assert_array_equal(arrays.x, x[:, None])
    assert arrays.x.dtype == np.uint8
    assert (arrays.y.tolist(), arrays.train_size) == ([5, 0, 9, 7, 1], 3)
    assert arrays.y.dtype == np.int64
    assert arrays.classes[9] == {"mnist": "9", "fashionmnist": "Ankle boot"}[name]
    assert {f.state for f in data.verify(name, tmp_path)} == {"ok"}


def test_emnist_variants(tmp_path: Path) -> None:
    folder = tmp_path / "emnist" / "EMNIST" / "raw"
    for variant, labels in {"byclass": ([61, 10], [36]), "letters": ([1, 26], [2])}.items():
        put_set(folder, (f"emnist-{variant}-train", f"emnist-{variant}-test"), labels)
    arrays = data.load(data.parse("emnist", tmp_path), tmp_path)
    assert ([arrays.classes[k] for k in arrays.y], arrays.train_size) == (["z", "A", "a"], 2)
    assert len(arrays.classes) == 62
    arrays = data.load(data.parse("emnist:letters", tmp_path), tmp_path)
    assert [arrays.classes[k] for k in arrays.y] == ["a", "z", "b"]
    assert (arrays.y.tolist(), len(arrays.classes)) == ([0, 25, 1], 26)
    with pytest.raises(UserError, match="emnist-digits-train-images"):
        data.load(data.parse("emnist:digits", tmp_path), tmp_path)


@pytest.fixture
def idx(tmp_path: Path) -> Path:
    """The folder of a small MNIST."""
    folder = tmp_path / "MNIST" / "raw"
    put_set(folder, ("train", "t10k"), ([5, 0, 9], [7, 1]))
    return folder


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "html", "swapped"])
def test_a_damaged_idx_file_is_refused(damage: str, idx: Path, tmp_path: Path) -> None:
    path = idx / "t10k-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[:-1],
            "longer": whole + b"0",
            "empty": b"",
            "html": b"<html>404 not found</html>",
            "swapped": (idx / "t10k-labels-idx1-ubyte").read_bytes(),
        }[damage]
    )
    with pytest.raises(UserError, match="raw is corrupt: its files are damaged") as e:
        data.load(data.parse("mnist", tmp_path), tmp_path)
    assert "pflbench data download mnist" in e.value.hint
    assert [f.state for f in data.verify("mnist", tmp_path)].count("corrupt") == 1


def test_idx_files_that_do_not_go_together_are_refused(idx: Path, tmp_path: Path) -> None:
    put_idx(idx / "t10k-labels-idx1-ubyte", np.array([1], np.uint8))
    with pytest.raises(UserError, match="5 images and 4 labels"):
        data.load(data.parse("mnist", tmp_path), tmp_path)
    (idx / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match=r"missing: no .*train-labels-idx1-ubyte"):
        data.load(data.parse("mnist", tmp_path), tmp_path)


@pytest.fixture
def cifar(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path, Bytes]:
    """Batches as published (https://www.cs.toronto.edu/~kriz/cifar.html), 2 images each, and their checksums in torchvision."""
    name = request.param
    cls = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}[name]
    reader = getattr(torchvision().datasets, cls)
    folder = tmp_path / name / reader.base_folder
    folder.mkdir(parents=True)
    key, names_key = ("labels", "label_names") if name == "cifar10" else ("fine_labels", "fine_label_names")

    def put(file: str, content: object) -> str:
        (folder / file).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / file).read_bytes()).hexdigest()

    batches: list[Bytes] = []
    for part in ("train_list", "test_list"):
        sums = []
        for file, _ in getattr(reader, part):
            batches.append(random(len(batches), 2, 3072))
            sums.append([file, put(file, {"data": batches[-1], key: [len(batches), 0]})])
        monkeypatch.setattr(reader, part, sums)
    meta = {names_key: [f"class {k}" for k in range(10 if name == "cifar10" else 100)]}
    monkeypatch.setattr(reader, "meta", reader.meta | {"md5": put(reader.meta["filename"], meta)})
    return name, folder, np.concatenate(batches)


@pytest.mark.parametrize("cifar", ["cifar10", "cifar100"], indirect=True)
def test_cifar_train_first_channels_first(cifar: tuple[str, Path, Bytes], tmp_path: Path) -> None:
    name, _, x = cifar
    arrays = data.load(data.parse(name, tmp_path), tmp_path)
    np.testing.assert_array_equal(arrays.x, x.reshape(-1, 3, 32, 32))  # published as 1024 red, 1024 green, 1024 blue
    assert arrays.x.flags.c_contiguous
    assert arrays.y.tolist() == [k for batch in range(len(x) // 2) for k in (batch + 1, 0)]
    assert (arrays.classes[3], arrays.train_size) == ("class 3", {"cifar10": 10, "cifar100": 2}[name])


@pytest.mark.parametrize("cifar", ["cifar10", "cifar100"], indirect=True)
def test_a_damaged_cifar_batch_is_never_unpickled(cifar: tuple[str, Path, Bytes], tmp_path: Path) -> None:
    name, folder, _ = cifar
    file = "data_batch_3" if name == "cifar10" else "train"
    (folder / file).write_bytes((folder / file).read_bytes()[:-1])
    with pytest.raises(UserError, match=r"is corrupt: its files are damaged: .*corrupted"):
        data.load(data.parse(name, tmp_path), tmp_path)
