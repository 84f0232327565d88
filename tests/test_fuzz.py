"""Files that are nearly right: whatever is cut out, put in or flipped, each is read or refused with a UserError. Nothing else."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.store_samples import make_partition, make_record, make_spec, write_round
from support.vision_files import put_pfllib, put_set

from pflbench import data
from pflbench.data import images, table, tiny
from pflbench.errors import UserError
from pflbench.partition import pfllib
from pflbench.store import database as db
from pflbench.store import partitions, write
from pflbench.store.exchange import merge
from pflbench.store.exchange import pfllib as results
from pflbench.sweep import study

FEW, MANY = 10, 300  # of 1,500 the longest takes 80 s
NAMES = ["num_clients", "num_classes", "partition", "alpha", "non_iid", "balance", "Size of samples for labels in clients"]


def _loaded(dataset: str, up: int, path: Path) -> None:
    """dataset: as it is typed, from the path. up: how far above the file the data folder is."""
    root = path.parents[up]
    spec = data.parse(dataset.format(path), root)
    data.defaults(spec, root)
    data.load(spec, root)


def _npz(folder: Path) -> Path:
    np.savez(folder / "a.npz", x=np.zeros((6, 4), np.float32), y=np.arange(6) % 2, classes=np.array(["a", "b"]))
    return folder / "a.npz"


def _csv(folder: Path) -> Path:
    (folder / "a.csv").write_text('label,text\n1,"one, two"\n-2,three\n10,"a ""b"""\n')
    return folder / "a.csv"


def _idx(folder: Path) -> Path:
    put_set(folder / "MNIST" / "raw", ("train", "t10k"), ([5, 0, 9], [7, 1]))
    return folder / "MNIST" / "raw" / "train-labels-idx1-ubyte"


def _cifar(folder: Path) -> Path:
    (folder / "cifar-10-batches-py").mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / "cifar-10-batches-py" / name).write_bytes(b"\x80\x04}q\x00.")
    return folder / "cifar-10-batches-py" / "data_batch_1"


def _image(folder: Path) -> Path:
    for k, name in enumerate("ab"):
        (folder / "images" / name).mkdir(parents=True)
        Image.fromarray(np.full((16, 16), 9 * k, np.uint8)).save(folder / "images" / name / "0.png")
    return folder / "images" / "a" / "0.png"


def _zip(folder: Path) -> Path:
    """Tiny-ImageNet's, with two classes of one image."""
    pixels = Image.fromarray(np.full((64, 64, 3), 9, np.uint8))
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name in "ab":
            with file.open(f"tiny-imagenet-200/train/{name}/images/{name}_0.JPEG", "w") as out:
                pixels.save(out, "JPEG")
    return folder / "tiny-imagenet-200.zip"


def _zip_read(path: Path) -> None:
    images._zip.cache_clear()
    with patch.multiple(tiny, CLASSES=2, PER_CLASS=1):
        data.verify("tiny", path.parent)
        data.load(data.parse("tiny", path.parent), path.parent)


def _pickle(folder: Path) -> Path:
    return put_pfllib(folder, clients=1, num_classes=2) / "train" / "0.npz"


def _pickle_read(path: Path) -> None:
    pfllib.describe(path.parents[1])
    pfllib.read(path.parents[1])


def _config(folder: Path) -> Path:
    _pickle(folder)
    return folder / "config.json"


def _config_read(path: Path) -> None:
    pfllib.describe(path.parent)
    pfllib.read(path.parent)


def _h5(folder: Path) -> Path:
    with h5py.File(folder / "MNIST_FedAvg_test_0.h5", "w") as file:
        for name in (results.ACCURACY, results.AUC, results.LOSS):
            file.create_dataset(name, data=[0.5, 0.75])
    return folder / "MNIST_FedAvg_test_0.h5"


def _yaml(folder: Path) -> Path:
    example = str(study.__doc__).partition("\n\n")[2]
    (folder / "a.yaml").write_text(example)
    return folder / "a.yaml"


def _database(folder: Path) -> Path:
    engine = db.connect(db.to_url(str(folder / "other.db")))
    partition = make_partition(train=np.full((4, 2), 3), test=np.full((4, 2), 10))
    run = write.create_run(engine, make_spec(), {"commit": "abc"})
    write.update_run(engine, run, status="finished", partition_id=partitions.save(engine, partition))
    for t in range(4):
        write_round(engine, run, make_record(t, series={"global": (0.5, 1.0)}, artifacts={"a": np.arange(4)}))
    engine.dispose()
    connection = sqlite3.connect(folder / "other.db")
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    db.connect(db.to_url(str(folder / "mine.db"))).dispose()
    return folder / "other.db"


def _database_read(path: Path) -> None:
    """What was taken is read again by what lists runs."""
    mine = Path(shutil.copy(path.parent / "mine.db", path.parent / "now.db"))
    engine = db.connect(db.to_url(str(mine)))
    try:
        with merge.opened(path, engine) as other:
            for outcome in merge.runs(engine, other):
                assert outcome.here is not None
    finally:
        engine.dispose()


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "npz": (_npz, partial(_loaded, "npz:{}", 0)),
    "csv": (_csv, table._read),
    "idx": (_idx, partial(_loaded, "mnist", 2)),
    "cifar": (_cifar, partial(_loaded, "cifar10", 1)),
    "image": (_image, partial(_loaded, "folder:{.parents[1]}", 2)),
    "zip": (_zip, _zip_read),
    "pickled npz": (_pickle, _pickle_read),
    "config.json": (_config, _config_read),
    "h5": (_h5, results.load),
    "yaml": (_yaml, study.read),
    "database": (_database, _database_read),
}
# Where, how many bytes go, what comes in their place.
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=12)), min_size=1, max_size=4)


def edited(whole: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for at, gone, put in edits:
        start = int(at * len(whole))
        whole = whole[:start] + put + whole[start + gone :]
    return whole


def read_or_refused(read: Callable[[Path], object], path: Path) -> None:
    with suppress(UserError):
        read(path)


def fuzz(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


lengths = pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "many"])


@lengths
@pytest.mark.parametrize("kind", READERS)
def test_bytes(kind: str, many: bool, tmp_path: Path) -> None:
    make, read = READERS[kind]
    path = make(tmp_path)
    whole = path.read_bytes()
    read_or_refused(read, path)

    @fuzz(MANY // (10 if kind in ("idx", "cifar", "image", "database") else 1) if many else FEW)
    @given(EDITS)
    def each(edits: list[tuple[float, int, bytes]]) -> None:
        path.write_bytes(edited(whole, edits))
        read_or_refused(read, path)

    each()


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3))


@lengths
def test_configurations(many: bool, tmp_path: Path) -> None:
    """Any value where one is expected, under the names that PFLlib writes."""
    path = _config(tmp_path)

    @fuzz(MANY if many else 3 * FEW)
    @given(st.dictionaries(st.sampled_from(NAMES), VALUES))
    def each(config: dict[str, Any]) -> None:
        path.write_text(json.dumps({"num_clients": 1, **config}))
        read_or_refused(_config_read, path)

    each()


CELLS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8) | st.binary(max_size=8)


@lengths
def test_cells(many: bool, tmp_path: Path) -> None:
    """One value of a database that is sound becomes any other."""
    path = _database(tmp_path)
    whole = path.read_bytes()
    connection = sqlite3.connect(path)
    tables = ("run", "partition", "round", "client_round", "series", "artifact")
    places = [(table, row[1]) for table in tables for row in connection.execute(f"PRAGMA table_info({table})")]
    connection.close()

    @fuzz(MANY // 5 if many else FEW)
    @given(st.sampled_from(places), CELLS | VALUES.map(json.dumps))
    def each(place: tuple[str, str], value: Any) -> None:
        path.write_bytes(whole)
        connection = sqlite3.connect(path)
        try:
            connection.execute(f"UPDATE OR IGNORE {place[0]} SET {place[1]} = ?", (value,))
            connection.commit()
        except (sqlite3.IntegrityError, UnicodeEncodeError):  # SQLite itself does not take it
            connection.rollback()
        finally:
            connection.close()
        read_or_refused(_database_read, path)

    each()


@pytest.mark.parametrize("text", ["method: fedavg\x07", "method: " + "[" * 5000])
def test_what_was_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match="is no YAML"):
        study.read(tmp_path / "a.yaml")
