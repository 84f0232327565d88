"""The table of contents: names, variants, defaults, and what importing it costs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pflbench import data
from pflbench.errors import UserError
from pflbench.spec import DataSpec


def test_importing_the_table_of_contents_imports_no_heavy_library() -> None:
    code = "import sys, pflbench.data; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "torchvision", "torchtext", "sklearn", "PIL", "pandas", "sqlalchemy"} & set(loaded)


def test_digits_are_the_embedded_images_scaled_to_minus_one_to_one(tmp_path: Path) -> None:
    arrays = data.load(data.parse("digits", tmp_path), tmp_path)
    assert arrays.x.shape == (1797, 1, 8, 8)
    assert arrays.x.dtype == np.float32
    assert (arrays.x.min(), arrays.x.max()) == (-1, 1)
    assert np.bincount(arrays.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # of the UCI test set
    first_row = [0, 0, 5, 13, 9, 1, 0, 0]  # of the first image, as printed in scikit-learn's documentation
    np.testing.assert_array_equal(arrays.x[0, 0, 0], np.array(first_row) / 8 - 1)
    assert arrays.classes == tuple("0123456789")
    content = hashlib.sha256(arrays.x.tobytes() + arrays.y.tobytes()).hexdigest()
    assert content[:16] == "314b97e8b73b7a46", "what scikit-learn's own reader gives"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("minst", ["Unknown dataset 'minst'", "Did you mean 'mnist'", "folder:PATH"]),
        ("mnist:test", ["'mnist' has no variants"]),
        ("emnist:byclas", ["Did you mean 'byclass'", "bymerge"]),
        ("folder:", ["needs a path"]),
        ("npz:nowhere.npz", ["nowhere.npz does not exist", "own arrays"]),
    ],
)
def test_what_cannot_be_parsed_is_refused_with_the_valid_choices(text: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as e:
        data.parse(text, tmp_path)
    assert all(word in str(e.value) for word in words), e.value


@pytest.mark.parametrize("name", [n for n in data.DATASETS if n != "digits"])
def test_missing_data_say_what_where_how_large_and_the_command(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as e:
        data.load(data.parse(name, tmp_path), tmp_path)
    assert f"'{name}'" in e.value.message
    assert str(tmp_path) in e.value.message
    assert data.DATASETS[name].size in e.value.hint
    assert f"pflbench data download {name} --data-dir {tmp_path}" in e.value.hint
    assert {f.state for f in data.verify(name, tmp_path)} == {"missing"}
    assert not list(tmp_path.iterdir())  # looking leaves nothing behind


def test_the_command_names_the_data_folder_only_if_it_is_not_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFLBENCH_DATA", str(tmp_path))
    with pytest.raises(UserError) as e:
        data.load(DataSpec(name="mnist"), data.default_root())
    assert e.value.hint.endswith("pflbench data download mnist")


def test_defaults_are_the_papers() -> None:
    """methods.md 2.2 (rates, rounds, clients) and 3.1 (classes per client)."""
    found = {n: (d.defaults.model, d.defaults.lr, d.defaults.classes_per_client) for n, d in data.DATASETS.items()}
    assert found == {
        "digits": ("mlp", 0.1, 2),
        "mnist": ("cnn", 0.1, 2),
        "fashionmnist": ("cnn", 0.005, 2),
        "emnist": ("cnn", 0.005, 5),
        "cifar10": ("cnn", 0.005, 2),
        "cifar100": ("cnn", 0.005, 10),
        "tiny": ("cnn", 0.005, 20),
        "agnews": ("fasttext", 0.1, 2),
        "har": ("harcnn", 0.01, 2),
    }
    paper = [data.defaults(DataSpec(name=n), Path("data")) for n in data.DATASETS if n != "digits"]
    assert {(d.rounds, d.clients, d.beta) for d in paper} == {(2000, 20, 0.1)}
