"""Reading folders that PFLlib wrote, and refusing what is damaged or dangerous."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell, rows
from support.vision_files import put_pfllib

from pflbench.errors import UserError
from pflbench.partition import make
from pflbench.partition.pfllib import describe, read, read_pickle
from pflbench.spec import Dirichlet

MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)


EMPTY = {"x": np.array([]), "y": np.array([])}


def write_pickle(path: Path, payload: bytes, compress: bool = True) -> Path:
    """An .npz whose object array is the pickle `payload`."""
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive, archive.open("data.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
        stream.write(payload)
    return path


def test_the_published_mnist_folder_is_the_dirichlet_partition():
    if "PFLBENCH_TEST_DATA" not in os.environ:
        pytest.skip("PFLBENCH_TEST_DATA is not set: it names the folder with the real data")
    path = Path(os.environ["PFLBENCH_TEST_DATA"]) / "pfllib" / "MNIST"
    x, y, classes, published = read(path)
    assert (x.shape, x.dtype, classes) == ((70000, 1, 28, 28), np.float32, 10)
    assert (x.min(), x.max()) == (-1, 1)
    np.testing.assert_array_equal(np.bincount(y), MNIST)
    labels = np.repeat(np.arange(10), MNIST)
    ours = make(Dirichlet(beta=0.1, clients=20), labels, 10)
    for expected, found in zip(published.counts(y, 10), ours.counts(labels, 10), strict=True):
        np.testing.assert_array_equal(found, expected)
    # The labels agree one by one, in order: it is the same permutation, not only the same counts.
    for a, b in zip(published.train + published.test, ours.train + ours.test, strict=True):
        np.testing.assert_array_equal(labels[b], y[a])
    spec = describe(path)
    assert (spec.clients, spec.kind, spec.beta) == (20, "dirichlet", 0.1)


def test_read_returns_what_was_written(tmp_path):
    folder = put_pfllib(tmp_path / "own", num_classes=5)
    x, y, classes, partition = read(folder)
    assert (x.shape, x.dtype, y.dtype, classes) == ((16, 1, 4, 4), np.float32, np.int64, 5)
    for side, indices in (("train", partition.train), ("test", partition.test)):
        for client in range(2):
            with np.load(folder / side / f"{client}.npz", allow_pickle=True) as file:
                stored = file["data"].item()
            np.testing.assert_array_equal(x[indices[client]], stored["x"])
            np.testing.assert_array_equal(y[indices[client]], stored["y"])


def test_an_empty_client_is_admitted(tmp_path):
    folder = put_pfllib(tmp_path / "own")
    np.savez_compressed(folder / "test" / "0.npz", data=EMPTY)
    _, y, _, partition = read(folder)
    assert (len(partition.test[0]), len(y)) == (0, 14)


def test_a_run_without_test_samples_is_refused_before_it_is_stored(tmp_path: Path, shell: Shell) -> None:
    folder = put_pfllib(tmp_path / "own", side=28, num_classes=10)
    for client in range(2):
        np.savez_compressed(folder / "test" / f"{client}.npz", data=EMPTY)
    command = ("run", "-m", "fedavg", "-d", "mnist", "-p", f"pfllib:{folder}", "--model", "mlp", "-r", "1", "-q")
    assert "has test samples: the run would have no result" in shell.refused(*command)
    assert rows("SELECT * FROM run") == []


def test_no_data_but_the_folder_s_are_needed(tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put_pfllib(tmp_path / "own", side=28, num_classes=10)
    asked = ("-m", "fedavg", "-d", "mnist", "-p", f"pfllib:{folder}", "--model", "mlp", "-r", "1")
    shown = shell("run", *asked, "--dry-run")
    assert "are missing" not in shown.out + shown.err
    assert "To run: 1, 1 at a time" in shown.out
    monkeypatch.delenv("PFLBENCH_DOWNLOAD")
    monkeypatch.setattr("pflbench.data.download", lambda *_: pytest.fail("downloads"))
    assert shell("sweep", *asked, "--jobs", "1", "-q").code == 0
    assert rows("SELECT status FROM run") == [("finished",)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"non_iid": True, "partition": "dir", "alpha": 0.3}, ("dirichlet", 0.3, None)),
        (
            {
                "non_iid": True,
                "partition": "pat",
                "alpha": 0.1,
                "Size of samples for labels in clients": [[[0, 4], [1, 4]], [[1, 4], [2, 4]]],
            },
            ("pathological", None, 2),
        ),
        ({"non_iid": False, "partition": "pat", "alpha": 0.1}, ("iid", None, None)),
        ({"non_iid": True, "partition": "exdir", "alpha": 0.1}, ("unknown", None, None)),
        ({}, ("unknown", None, None)),
    ],
)
def test_describe_says_what_the_config_says(tmp_path, config, expected):
    spec = describe(put_pfllib(tmp_path / "own", **config))
    assert (spec.kind, spec.beta, spec.classes_per_client) == expected
    assert spec.clients == 2


def test_content_hash_follows_the_data_not_the_compression(tmp_path):
    folder = put_pfllib(tmp_path / "own")
    before = describe(folder).content
    with np.load(folder / "test" / "1.npz", allow_pickle=True) as file:
        data = file["data"].item()
    np.savez(folder / "test" / "1.npz", data=data)
    assert describe(folder).content == before
    assert describe(put_pfllib(tmp_path / "copy")).content == before
    data["y"][0] += 1
    np.savez(folder / "test" / "1.npz", data=data)
    assert describe(folder).content != before


@pytest.mark.parametrize(("protocol", "module"), [(3, "numpy.core"), (3, "numpy._core"), (4, None)])
def test_pickles_of_numpy_1_and_2(tmp_path, protocol, module):
    data = {
        "x": np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
        "y": np.array([1, 0], dtype=np.uint8),
        "flags": [np.True_, np.int16(7), (1, "two")],
    }
    array = np.array(None, dtype=object)
    array[()] = data
    payload = pickle.dumps(array, protocol=protocol)
    if module:  # which differs between numpy 1 and 2; protocol 4 writes the name's length before it
        payload = re.sub(rb"cnumpy\._?core\.", f"c{module}.".encode(), payload)
    assert re.search(f"{module or 'numpy._?core'}.multiarray".encode(), payload)
    found = read_pickle(write_pickle(tmp_path / "0.npz", payload))
    np.testing.assert_array_equal(found["x"], data["x"])
    np.testing.assert_array_equal(found["y"], data["y"])
    assert found["flags"] == [True, 7, (1, "two")]


class Evil:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path):
    mark = tmp_path / "executed"
    folder = put_pfllib(tmp_path / "own")
    payload = pickle.dumps({"x": np.zeros((2, 2)), "y": Evil(f"touch {mark}")}, protocol=4)
    file = write_pickle(folder / "test" / "0.npz", payload)
    with pytest.raises(UserError, match=r"test/0\.npz is not data of PFLlib: it wants to call \w+\.system"):
        read(folder)
    assert not mark.exists()
    with np.load(file, allow_pickle=True) as unguarded:  # the file is dangerous indeed
        _ = unguarded["data"]
    assert mark.exists()


@pytest.mark.parametrize(
    "name", ["builtins eval", "builtins getattr", "numpy load", "numpy.core.multiarray frombuffer", "codecs encode"]
)
def test_only_arrays_types_and_scalars_can_be_named(tmp_path, name):
    module, attribute = name.split()
    payload = f"c{module}\n{attribute}\n.".encode()
    with pytest.raises(UserError, match=f"it wants to call {module}.{attribute}"):
        read_pickle(write_pickle(tmp_path / "0.npz", payload))


@pytest.mark.parametrize(
    ("name", "keep"), [*(("train/1.npz", keep) for keep in (0, 10, 400, 775)), ("test/1.npz", None), ("config.json", None)]
)
def test_truncated_and_missing_files_are_named(tmp_path, name, keep):
    file = put_pfllib(tmp_path / "own") / name
    content = file.read_bytes()
    file.unlink()
    if keep is not None:
        file.write_bytes(content[:keep])
    for reader in (read, describe):
        with pytest.raises(UserError, match=f"{name} is {'missing' if keep is None else 'damaged'}"):
            reader(tmp_path / "own")


def test_a_flipped_bit_is_noticed(tmp_path):
    folder = put_pfllib(tmp_path / "own")
    file = folder / "train" / "0.npz"
    payload = pickle.dumps({"x": np.full((4, 4), 3.25), "y": np.arange(4)}, protocol=4)
    # What follows the pickle keeps its reader from reaching the end of the file, where zipfile compares the checksum.
    content = write_pickle(file, payload + bytes(1_000_000), compress=False).read_bytes()
    number = np.float64(3.25).tobytes()
    file.write_bytes(content.replace(number, np.float64(3.5).tobytes(), 1))
    with pytest.raises(UserError, match=r"train/0\.npz is damaged"):
        read(folder)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '{"num_clients": 0}', '{"num_clients": "two"}'])
def test_a_bad_config_is_named(tmp_path, text):
    folder = put_pfllib(tmp_path / "own")
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        describe(folder)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": np.zeros((2, 1, 4, 4), np.float32), "y": np.zeros(3, int)}, "integer labels"),
        ({"x": np.zeros((2, 1, 4, 4), np.float32), "y": np.array([0.5, 1])}, "integer labels"),
        ({"x": np.zeros((2, 1, 5, 5), np.float32), "y": np.zeros(2, int)}, "samples"),
        ({"x": [[1, 2], [3]], "y": np.zeros(2, int)}, "numbers x"),
        # PFLlib's AG News: token ids and their number, text by text.
        (
            {"x": np.array([([5, 6, 7], 3), ([8], 1)], dtype=object), "y": np.zeros(2, int)},
            "texts .*text folders are not supported",
        ),
        *(({"x": np.zeros(2, kind), "y": np.zeros(2, int)}, "numbers x") for kind in ("V8", "M8[s]", "i8,O")),
        ({"x": np.zeros(2, "U4"), "y": np.zeros(2, int)}, "texts"),
        ({"x": np.zeros((2, 1, 4, 4), np.float32)}, "integer labels"),
        ([1, 2], "holds no dict"),
    ],
)
def test_unusable_content_is_named(tmp_path, data, message):
    folder = put_pfllib(tmp_path / "own")
    write_pickle(folder / "test" / "1.npz", pickle.dumps(data, protocol=4))
    with pytest.raises(UserError, match=rf"test/1\.npz .*{message}"):
        read(folder)


def test_labels_beyond_the_declared_classes(tmp_path):
    with pytest.raises(UserError, match="says 2 classes, but labels run from 0 to 2"):
        read(put_pfllib(tmp_path / "own", num_classes=2))
