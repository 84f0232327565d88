"""npz:PATH: shapes, types, labels, defaults, and files that are no such arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pflbench import data
from pflbench.errors import UserError


def save(tmp_path: Path, **arrays: Any) -> str:
    np.savez(tmp_path / "own.npz", **arrays)
    return f"npz:{tmp_path / 'own.npz'}"


def load(text: str, root: Path) -> data.Arrays:
    return data.load(data.parse(text, root), root)


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((4, 5, 6), None, (4, 1, 5, 6)),
        ((4, 3, 5, 6), None, (4, 3, 5, 6)),
        ((4, 5, 6, 3), (0, 3, 1, 2), (4, 3, 5, 6)),
        ((4, 5, 6, 1), (0, 3, 1, 2), (4, 1, 5, 6)),
        ((4, 7, 5, 6), None, (4, 7, 5, 6)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_layouts(
    shape: tuple[int, ...], axes: tuple[int, ...] | None, expected: tuple[int, ...], dtype: type, tmp_path: Path
) -> None:
    x: npt.NDArray[Any] = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    arrays = load(save(tmp_path, x=x, y=[0, 1, 1, 0]), tmp_path)
    assert arrays.x.shape == expected
    assert arrays.x.dtype == (np.uint8 if dtype is np.uint8 else np.float32)
    np.testing.assert_array_equal(arrays.x, (x.transpose(axes) if axes else x).reshape(expected))


def test_rows_of_bytes_are_scaled_as_images_are(tmp_path: Path) -> None:
    x = np.array([[0, 255], [51, 204]], np.uint8)
    arrays = load(save(tmp_path, x=x, y=[0, 1]), tmp_path)
    assert arrays.x.dtype == np.float32
    np.testing.assert_allclose(arrays.x.tolist(), np.array([[-1, 1], [-0.6, 0.6]]), atol=1e-6)


def test_labels_become_0_to_k_minus_1(tmp_path: Path) -> None:
    x = np.zeros((4, 2))
    arrays = load(save(tmp_path, x=x, y=np.array([7, -1, 30, 7], np.int8)), tmp_path)
    assert (arrays.y.tolist(), arrays.classes) == ([1, 0, 2, 1], ("-1", "7", "30"))
    arrays = load(save(tmp_path, x=x, y=[2, 0, 2, 2], classes=["a", "b", "c"]), tmp_path)
    assert (arrays.y.tolist(), arrays.classes) == ([2, 0, 2, 2], ("a", "b", "c"))
    assert arrays.y.dtype == np.int64


@pytest.mark.parametrize(
    ("shape", "model", "lr"),
    [((2, 28, 28), "cnn", 0.005), ((2, 3, 16, 16), "cnn", 0.005), ((2, 32, 32, 3), "cnn", 0.005),
     ((2, 8, 8), "mlp", 0.1), ((2, 784), "mlp", 0.1)],
)  # fmt: skip
def test_defaults_follow_the_shape(shape: tuple[int, ...], model: str, lr: float, tmp_path: Path) -> None:
    chosen = data.defaults(data.parse(save(tmp_path, x=np.zeros(shape), y=[0, 1]), tmp_path), tmp_path)
    assert (chosen.model, chosen.lr) == (model, lr)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.zeros(2), "y": [0, 1]}, "no array 'x'; it holds: a, y"),
        ({"x": np.zeros((2, 2)), "y": [0, 2], "classes": ["a", "b"]}, "does not name"),  # the others: test_data_own.py
        ({"x": np.array([{"a": 1}, {}], object), "y": [0, 1]}, "Object arrays cannot be loaded"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "owner": [3]}, r"owner is int64 with the shape \(1,\)"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "owner": [[3], [4]]}, r"owner is int64 with the shape \(2, 1\)"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "owner": np.array("me")}, "owner is <U2"),
    ],
)
def test_unfit_arrays_are_refused(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as e:
        load(save(tmp_path, **arrays), tmp_path)
    assert "own.npz" in e.value.message


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    text = save(tmp_path, x=np.random.default_rng(0).random((50, 20)), y=np.arange(50) % 2)
    path = tmp_path / "own.npz"
    whole = path.read_bytes()
    broken = bytearray(whole)
    broken[2000] ^= 1
    for damaged in (whole[:3000], bytes(broken), b"x,y\n", b""):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"own\.npz cannot be read"):
            load(text, tmp_path)
