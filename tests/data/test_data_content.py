"""The data behind a name: official content, the same samples in another order, other, damaged; and what a run says of it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell
from support.real_data import real
from support.vision_files import put_idx, put_set

from pflbench import data
from pflbench._torchvision import torchvision
from pflbench.data import content, vision
from pflbench.errors import UserError
from pflbench.spec import DataSpec

RUN = ("run", "-m", "fedavg", "-d", "mnist", "--model", "logreg", "--rounds", "1", "--clients", "2", "--quiet")
LABELS = ([0, 1] * 40, [0, 1] * 10)


def put_mnist(root: Path) -> Path:
    """A made-up MNIST, by its folder of files."""
    folder = root / "MNIST" / "raw"
    put_set(folder, ("train", "t10k"), LABELS)
    return folder


def zero(file: Path, start: int = 500, size: int = 40) -> None:
    """Some bytes to nought; size and time of the file stay."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(bytes(size))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def of(x: list[int], y: list[int], train: int | None = None, classes: tuple[str, ...] = ("a", "b")) -> str:
    return content.of_arrays(data.Arrays(np.array(x, np.uint8).reshape(-1, 1, 1, 1), np.array(y), classes, train_size=train))[0]


def test_the_hash_follows_samples_labels_classes_and_their_order() -> None:
    base = of([1, 2, 3], [0, 0, 1], 2)
    assert of([1, 2, 3], [0, 0, 1], 2) == base
    others = {
        of([2, 1, 3], [0, 0, 1], 2),
        of([1, 2, 4], [0, 0, 1], 2),
        of([1, 2, 3], [0, 1, 1], 2),
        of([1, 3, 2], [0, 1, 0], 2),  # a sample has gone from the training part to the test part
        of([1, 2, 3], [0, 0, 1], 1),
        of([1, 2, 3], [0, 0, 1], None),
        of([1, 2, 3], [0, 0, 1], 2, ("a", "c")),
        of([1, 2, 3, 3], [0, 0, 1, 1], 2),
    }
    assert len({base, *others}) == 9


def test_other_data_of_the_same_name_have_keys_and_labels_of_their_own(tmp_path: Path) -> None:
    for name in ("whole", "fewer", "zeroed"):
        put_mnist(tmp_path / name)
    put_set(tmp_path / "fewer" / "MNIST" / "raw", ("train", "t10k"), (LABELS[0][:-1], LABELS[1]))
    zero(tmp_path / "zeroed" / "MNIST" / "raw" / "train-images-idx3-ubyte")
    specs = [data.parse("mnist", tmp_path / name) for name in ("whole", "fewer", "zeroed")]
    assert len({spec.content for spec in specs} - {None}) == 3
    assert [spec.label for spec in specs] == [f"mnist, other content {str(spec.content)[:6]}" for spec in specs]
    assert data.parse("mnist", tmp_path / "nowhere") == DataSpec(name="mnist")  # what is missing is meant to be the official one


def test_a_run_loads_what_its_specification_names(tmp_path: Path) -> None:
    """Also where data came, or changed, after it was planned."""
    folder = put_mnist(tmp_path)
    spec = data.parse("mnist", tmp_path)
    assert len(data.load(spec, tmp_path).y) == 100
    with pytest.raises(UserError, match="wants the official content, they hold"):
        data.load(DataSpec(name="mnist"), tmp_path)
    zero(folder / "t10k-images-idx3-ubyte")
    with pytest.raises(UserError, match=f"wants the content {str(spec.content)[:6]}"):
        data.load(spec, tmp_path)


def test_files_are_read_once_until_one_of_them_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that leaves size and time as they were, too: the same bytes zeroed a moment after the first look."""
    folder = put_mnist(tmp_path)
    read = []
    of_arrays = content.of_arrays
    monkeypatch.setattr(content, "of_arrays", lambda arrays: read.append(1) or of_arrays(arrays))
    first = data.identify(DataSpec(name="mnist"), tmp_path)
    assert data.identify(DataSpec(name="mnist"), tmp_path) == first
    assert len(read) == 1
    for file in sorted(folder.iterdir()):
        zero(file, start=21, size=2)
        changed = data.identify(DataSpec(name="mnist"), tmp_path)
        assert changed != first
        first = changed
    assert len(read) == 5


def test_without_a_place_for_the_hash_it_is_computed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_mnist(tmp_path)
    expected = data.identify(DataSpec(name="mnist"), tmp_path)
    shutil.rmtree(tmp_path / ".cache")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert data.identify(DataSpec(name="mnist"), tmp_path) == expected
    assert not list((tmp_path / ".cache").iterdir())


def test_emnist_is_known_by_the_archive_from_which_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "EMNIST" / "raw"
    put_set(folder, ("emnist-letters-train", "emnist-letters-test"), ([1, 2, 3], [4, 5]))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in folder.iterdir():
            archive.writestr(f"gzip/{file.name}.gz", gzip.compress(file.read_bytes()))
    spec = DataSpec(name="emnist", variant="letters")

    def state() -> tuple[str, bool]:
        found = data.identify(spec, tmp_path)
        assert found is not None
        return found.state, data.parse("emnist:letters", tmp_path).content is None

    (folder / "gzip.zip").write_bytes(packed.getvalue())
    assert state() == ("other", False)  # far fewer than published
    monkeypatch.setitem(vision.EMNIST_PARTS, "letters", (3, 2))
    shutil.rmtree(tmp_path / ".cache")
    assert state() == ("other", False)  # an archive, but not the published one
    monkeypatch.setattr(torchvision().datasets.EMNIST, "md5", hashlib.md5(packed.getvalue()).hexdigest())
    shutil.rmtree(tmp_path / ".cache")
    assert state() == ("official", True)


def test_every_command_says_what_the_data_are(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_mnist(tmp_path / "data")
    spec = data.parse("mnist", tmp_path / "data")
    label, short = spec.label, str(spec.content)[:6]
    ran = shell(*RUN)
    assert f"mnist in data has other content than the official files ({short}: 80 + 20 samples" in ran.err
    assert label in ran.out
    with monkeypatch.context() as patch:
        patch.setattr(data, "identify", lambda *_: pytest.fail("looked at the data"))
        assert label in shell("runs", "list").out
        assert json.loads(shell("runs", "list", "-d", "mnist", "--json").out)[0]["dataset"] == label
        assert f"other, hash {str(spec.content)[:16]}" in shell("runs", "show", "1").out
        assert f"MNIST, other content {short}" in shell("table", "accuracy", "-d", "mnist", "-f", "markdown").out
        assert shell("data", "list").code == 0
    shown = shell("partition", "show", "-d", "mnist", "--clients", "2")
    assert label in shown.out + shown.err
    verified = shell("data", "verify", "mnist", "--json")
    assert (verified.code, json.loads(verified.out)[-1]["state"]) == (0, "other")
    assert "not the official content" in verified.err
    # The same name on other data is another run; on the same data it is the same one.
    assert "is finished already" in shell(*RUN).err
    zero(tmp_path / "data" / "MNIST" / "raw" / "train-images-idx3-ubyte")
    assert shell(*RUN).out.startswith("run 2 ")
    put_idx(tmp_path / "data" / "MNIST" / "raw" / "train-labels-idx1-ubyte", np.array([1], np.uint8))
    damaged = shell("data", "verify", "mnist")
    assert (damaged.code, "corrupt" in damaged.out, "damaged" in damaged.out) == (2, True, True)


def test_the_shared_mnist_is_other_content_and_its_hash_stays(tmp_path: Path) -> None:
    """Its training files are not in the published order. Keys of stored runs have this hash."""
    (tmp_path / "mnist").symlink_to(real("mnist").resolve())
    found = data.parse("mnist", tmp_path).content
    assert found is not None
    assert found.startswith("79945fbe17299ad0")


def test_the_shared_agnews_test_file_is_official_until_its_lines_are_moved(tmp_path: Path) -> None:
    folder = tmp_path / "ag_news_csv"
    shutil.copytree(real("ag_news_csv"), folder, copy_function=shutil.copyfile)
    assert data.parse("agnews:test", tmp_path) == DataSpec(name="agnews", variant="test")
    lines = (folder / "test.csv").read_bytes().splitlines(keepends=True)
    (folder / "test.csv").write_bytes(b"".join([*lines[1:], lines[0]]))
    assert str(data.parse("agnews:test", tmp_path).content).startswith("1db8d1e68e1532bf")
