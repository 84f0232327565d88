"""leaf:PATH: small JSON files laid out as those of LEAF's preprocess.sh, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import Shell

from pflbench import data
from pflbench.data import leaf
from pflbench.errors import UserError

Samples = dict[str, tuple[list[Any], list[Any]]]  # of each user: x and y
TEXT = "To be, or not to be: that is the question - whether 'tis nobler in the mind to suffer the slings and arrows"


def put(folder: Path, part: str, users: Samples, name: str = "all_data_niid_0") -> Path:
    """One JSON file, as LEAF names and fills it."""
    file = folder / part / f"{name}_keep_0_{part}_9.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    user_data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    counts = [len(y) for _, y in users.values()]
    file.write_text(json.dumps({"users": [*users], "num_samples": counts, "user_data": user_data}))
    return file


def pixels(count: int, seed: int = 0) -> list[list[float]]:
    return np.random.default_rng(seed).integers(0, 256, (count, 784)).__truediv__(255).tolist()


def femnist(folder: Path) -> None:
    put(folder, "train", {"f0001_41": (pixels(5), [3, 61, 3, 61, 3]), "f0002_07": (pixels(4, 1), [7, 7, 3, 61])})
    put(folder, "train", {"f0003_11": (pixels(6, 2), [7, 3] * 3)}, "all_data_niid_1")
    put(folder, "test", {"f0001_41": (pixels(2, 3), [3, 61]), "f0003_11": (pixels(1, 4), [7])})


def shakespeare(folder: Path) -> None:
    def lines(start: int, count: int) -> tuple[list[str], list[str]]:
        return [TEXT[k : k + 80] for k in range(start, start + count)], [TEXT[k + 80] for k in range(start, start + count)]

    put(folder, "train", {"HAMLET_HAMLET": lines(0, 12), "HAMLET_OPHELIA": lines(3, 8)})
    put(folder, "test", {"HAMLET_HAMLET": lines(12, 4), "HAMLET_OPHELIA": lines(11, 3)})


def loaded(path: Path, root: Path) -> data.Arrays:
    return data.load(data.parse(f"leaf:{path}", root), root)


def test_images_labels_and_writers(tmp_path: Path) -> None:
    """Training files first, in order of their names; the folder that holds `data` and `data` itself are the same."""
    femnist(tmp_path / "femnist" / "data")
    spec = data.parse(f"leaf:{tmp_path}/femnist", tmp_path)
    arrays = data.load(spec, tmp_path)
    assert (arrays.x.shape, arrays.x.dtype, arrays.train_size) == ((18, 1, 28, 28), np.float32, 15)
    np.testing.assert_array_equal(arrays.x[15:17].reshape(2, 784), np.array(pixels(2, 3), np.float32))
    assert arrays.classes == ("3", "7", "61")
    assert arrays.y.tolist() == [0, 2, 0, 2, 0, 1, 1, 0, 2, 1, 0, 1, 0, 1, 0, 0, 2, 1]
    assert arrays.owner is not None
    assert arrays.owner.tolist() == ["f0001_41"] * 5 + ["f0002_07"] * 4 + ["f0003_11"] * 6 + ["f0001_41"] * 2 + ["f0003_11"]
    assert data.defaults(spec, tmp_path).model == "cnn"
    assert data.parse(f"leaf:{tmp_path}/femnist/data", tmp_path).content == spec.content
    again = data.load(spec, tmp_path)  # from the cache
    np.testing.assert_array_equal(again.x, arrays.x)
    assert (again.classes, again.vocabulary, again.train_size) == (arrays.classes, None, 15)
    assert again.owner is not None
    assert again.owner.tolist() == arrays.owner.tolist()


def test_characters_and_roles(tmp_path: Path) -> None:
    shakespeare(tmp_path / "plays")
    spec = data.parse(f"leaf:{tmp_path}/plays", tmp_path)
    arrays = data.load(spec, tmp_path)
    assert (arrays.x.shape, arrays.vocabulary, arrays.train_size, len(arrays.classes)) == ((27, 80), 81, 20, 81)
    assert "".join(leaf.LETTERS[token - 1] for token in arrays.x[0]) == TEXT[:80]
    assert arrays.classes[arrays.y[0]] == {" ": "space"}.get(TEXT[80], TEXT[80])
    assert arrays.owner is not None
    assert set(arrays.owner.tolist()) == {"HAMLET_HAMLET", "HAMLET_OPHELIA"}
    assert data.defaults(spec, tmp_path).model == "charlstm"
    put(tmp_path / "plays", "test", {"HAMLET_HAMLET": (["\n}\u00e9" + "*" * 77], ["~"])})
    changed = data.load(data.parse(f"leaf:{tmp_path}/plays", tmp_path), tmp_path)
    assert changed.x[-1, :4].tolist() == [1, 80, 0, 0]
    assert changed.classes[changed.y[-1]] == "other"


def test_leafs_synthetic_data_are_numbers(tmp_path: Path) -> None:
    for part in leaf.PARTS:
        put(tmp_path / "s", part, {"0": ([[0.5, 1.0, -2.0]] * 3, [0, 1, 0])})
    assert loaded(tmp_path / "s", tmp_path).x.shape == (6, 3)


def test_users_and_parts_enter_the_hash(tmp_path: Path) -> None:
    x = pixels(2)
    found = []
    for folder, train, test in (("a", "u", "v"), ("b", "v", "u"), ("c", "u", "u")):
        put(tmp_path / folder, "train", {train: (x, [0, 1])})
        put(tmp_path / folder, "test", {test: (x, [0, 1])})
        found.append(data.parse(f"leaf:{tmp_path}/{folder}", tmp_path).content)
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"users": ["a"]', "cannot be read: "),
        ("[1]", "cannot be read: "),
        ("[" * 100_000, "cannot be read: "),
        (f'{{"users": ["a"], "user_data": {{"a": {{"x": [[1]], "y": [1{"0" * 30}]}}}}}}', "cannot be read: "),
        ('{"users": ["a"], "user_data": {"b": {"x": [[1]], "y": [1]}}}', "it has no 'a'"),
        ('{"users": ["a"], "user_data": {"a": {"x": [], "y": []}}}', "it has no samples"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [2]], "y": [1]}}}', "a user has other numbers of x and y"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [NaN]], "y": [1, 2]}}}', "lists of finite numbers"),
        ('{"users": ["a"], "user_data": {"a": {"x": [1, 2], "y": [1, 2]}}}', "lists of finite numbers"),
        ('{"users": ["a"], "user_data": {"a": {"x": ["ab", "abc"], "y": ["a", "b"]}}}', "texts of 2 to 3 characters"),
        ('{"users": ["a"], "user_data": {"a": {"x": ["ab", "bc"], "y": ["ab", "bc"]}}}', "y is not one character"),
        ('{"users": ["a"], "user_data": {"a": {"x": ["ab", "bc"], "y": [1, 2]}}}', "y is not one character"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [2]], "y": [0.5, 2]}}}', "y is not a whole number"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [2]], "y": ["u", "v"]}}}', "cannot be read: "),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1], [2]], "y": [1, 2]}}}', "differ in the length or the kind"),
    ],
)
def test_what_is_not_leafs_is_refused(text: str, words: str, tmp_path: Path) -> None:
    femnist(tmp_path / "f")
    (tmp_path / "f" / "train" / "b.json").write_text(text)
    with pytest.raises(UserError) as caught:
        loaded(tmp_path / "f", tmp_path)
    assert words in caught.value.message
    assert len(str(caught.value).splitlines()) == 2
    assert "preprocess.sh" in caught.value.hint


def test_folders_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train holds no JSON files.*\nExpected data/train"):
        data.parse(f"leaf:{tmp_path}", tmp_path)
    put(tmp_path, "train", {"a": (pixels(1), [1])})
    with pytest.raises(UserError, match="test holds no JSON files"):
        data.parse(f"leaf:{tmp_path}", tmp_path)


def test_a_run_with_a_client_for_each_user(shell: Shell) -> None:
    shakespeare(Path("own") / "data")
    done = shell("run", "-m", "fedavg", "-d", "leaf:own", "-p", "natural", "--rounds", "2", "--quiet")
    assert done.code == 0, done.err
    assert "finished after 2 rounds" in done.out
    assert "2 clients" in shell("partition", "show", "--run", "1").err
