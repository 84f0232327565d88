"""UCI HAR: small files laid out as the published ones, in a folder and in the zip file inside a zip file that is downloaded."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell

from pflbench import data
from pflbench.data import har
from pflbench.errors import UserError

PEOPLE = {"train": [1, 1, 1, 3] * 6, "test": [2, 2, 4, 4] * 3}


def put(folder: Path) -> dict[str, np.ndarray]:
    """Files of random windows below `folder`; returns the windows [9, n, 128] of each part."""
    rng = np.random.default_rng(0)
    held = {}
    for part, people in PEOPLE.items():
        inner = folder / part / "Inertial Signals"
        inner.mkdir(parents=True)
        held[part] = rng.normal(size=(9, len(people), 128)).astype(np.float32)
        for name, rows in zip(har.SIGNALS, held[part], strict=True):
            np.savetxt(inner / f"{name}_{part}.txt", rows, fmt="%16.7e")
        np.savetxt(folder / part / f"y_{part}.txt", np.arange(len(people)) % 6 + 1, fmt="%d")
        np.savetxt(folder / part / f"subject_{part}.txt", people, fmt="%d")
    return held


def packed(folder: Path) -> bytes:
    """The inner zip file, as the archive has it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*.txt")):
            file.write(path, f"{har.NAME}/{path.relative_to(folder)}")
        file.writestr(f"__MACOSX/{har.NAME}/._README.txt", b"")
    return buffer.getvalue()


def test_signals_labels_and_people(tmp_path: Path) -> None:
    held = put(tmp_path / har.NAME)
    arrays = data.load(data.parse("har", tmp_path), tmp_path)
    assert (arrays.x.shape, arrays.x.dtype, arrays.train_size) == ((36, 9, 1, 128), np.float32, 24)
    np.testing.assert_allclose(arrays.x[:24, :, 0].transpose(1, 0, 2), held["train"], rtol=1e-6)
    np.testing.assert_allclose(arrays.x[24:, 8, 0], held["test"][8], rtol=1e-6)
    assert har.SIGNALS[0] == "body_acc_x"
    assert har.SIGNALS[8] == "total_acc_z"
    assert arrays.y.tolist() == [*(np.arange(24) % 6), *(np.arange(12) % 6)]
    assert arrays.owner is not None
    assert arrays.owner.tolist() == [*PEOPLE["train"], *PEOPLE["test"]]


def test_the_zip_file_holds_the_same(tmp_path: Path) -> None:
    put(tmp_path / "a" / har.NAME)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / f"{har.NAME}.zip").write_bytes(packed(tmp_path / "a" / har.NAME))
    first, second = (data.parse("har", tmp_path / name) for name in "ab")
    assert first.content is not None
    assert first == second


def test_people_enter_the_hash(tmp_path: Path) -> None:
    put(tmp_path / har.NAME)
    before = data.parse("har", tmp_path).content
    np.savetxt(tmp_path / har.NAME / "test" / "subject_test.txt", [2, 4, 2, 4] * 3, fmt="%d")
    assert data.parse("har", tmp_path).content != before


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("test/y_test.txt", "7\n" * 12, "activities from 7 to 7; expected 1 to 6"),
        ("test/y_test.txt", "1\n" * 11, "the files of test differ in their numbers of lines: 11, 12"),
        ("train/Inertial Signals/body_gyro_y_train.txt", "1 2\n", "1 lines of 2 numbers; expected 128"),
        ("train/Inertial Signals/body_gyro_y_train.txt", "nan " * 128, "values that are not finite"),
        ("train/subject_train.txt", "a\n", "subject_train.txt cannot be read"),
        ("train/subject_train.txt", None, "subject_train.txt cannot be read"),
    ],
)
def test_damaged_files(name: str, text: str | None, words: str, tmp_path: Path) -> None:
    folder = tmp_path / har.NAME
    put(folder)
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(UserError) as caught:
        data.load(data.named("har"), tmp_path)
    assert words in caught.value.message
    assert "pflbench data download har" in caught.value.hint
    assert [finding.state for finding in data.verify("har", tmp_path)] == ["corrupt"]


def test_a_run_with_a_client_for_each_person(shell: Shell, tmp_path: Path) -> None:
    put(tmp_path / "data" / har.NAME)
    done = shell("run", "-m", "fedavg", "-d", "har", "-p", "natural", "--rounds", "2", "--quiet")
    assert done.code == 0, done.err
    assert "finished after 2 rounds" in done.out
    assert "No published checksum of har is known" in done.err
    assert "4 clients" in shell("partition", "show", "--run", "1").err
    central = shell("run", "-m", "fedavg", "-d", "har", "-p", "natural", "--rounds", "1", "--quiet", "--central-test")
    assert central.code == 0, central.err
    assert "2 clients" in shell("partition", "show", "--run", "2").err, "the people of the training part"
    assert "har: no published checksum is known" in shell("data", "verify", "har").err
