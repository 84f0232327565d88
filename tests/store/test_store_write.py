"""What is written is there: complete, once, and after a kill -9. Read back with SQL of its own, not with the store's."""

from __future__ import annotations

import dataclasses
import io
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from support.store_samples import make_partition, make_record, make_spec, rewind, write_round

from pflbench.errors import UserError
from pflbench.spec import RunSpec
from pflbench.store import partitions, runs, schema, write
from pflbench.store.arrays import unpack_array
from pflbench.store.partitions import unpack_indices
from pflbench.store.write import RoundRecord

pytestmark = pytest.mark.servers


def rows(engine: Engine, query: str, **values: Any) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query), values)]


def count(engine: Engine, table: str) -> int:
    return int(rows(engine, f"SELECT count(*) FROM {table}")[0][0])


def new_run(engine: Engine, **spec: Any) -> int:
    return write.create_run(engine, make_spec(**spec), {"commit": "abc"})


def test_round_record_has_every_column_of_the_table() -> None:
    fields = {field.name for field in dataclasses.fields(RoundRecord)}
    columns = {column.name for column in schema.RoundRow.__table__.columns}
    beside = {"clients", "correct", "total", "loss", "new_clients", "series", "artifacts"}
    beside |= {"val_correct", "val_total", "val_client_loss"}
    assert fields - beside == columns - {"run_id"}


@pytest.mark.servers("fast")
def test_round_is_stored_as_given(engine: Engine) -> None:
    run_id = new_run(engine)
    values: dict[str, Any] = {
        name: 0.125 + i / 4 for i, name in enumerate(("accuracy_mean", "accuracy_std", "test_loss", "train_loss"))
    }
    values |= {name: 2**40 + i for i, name in enumerate(("params_up", "params_down", "bytes_up", "bytes_down"))}
    write_round(engine, run_id, make_record(2, series={"global": (0.25, 1.5)}, peak_memory=2**33, **values))

    names = [*values, "accuracy", "peak_memory", "participants", "seconds_update"]
    stored = rows(engine, f"SELECT {', '.join(names)} FROM round WHERE run_id = :run AND round = 2", run=run_id)
    assert stored == [(*values.values(), 14 / 100, 2**33, None, None)]
    clients = rows(engine, "SELECT client, correct, total, loss FROM client_round WHERE round = 2 ORDER BY client")
    assert clients == [(0, 2, 10, 2.0), (1, 3, 20, 2.5), (2, 4, 30, 3.0), (3, 5, 40, 3.5)]
    assert rows(engine, "SELECT name, round, accuracy, test_loss FROM series") == [("global", 2, 0.25, 1.5)]


def test_only_evaluated_clients_have_rows(engine: Engine) -> None:
    run_id = new_run(engine)
    two: dict[str, Any] = {"clients": np.array([3, 1]), "correct": np.array([7, 8]), "total": np.array([9, 9])}
    write_round(engine, run_id, RoundRecord(round=0, loss=np.array([0.5, np.inf]), **two))
    write_round(engine, run_id, RoundRecord(round=1, train_loss=0.5))
    stored = rows(engine, "SELECT round, client, correct, loss FROM client_round ORDER BY client")
    assert stored == [(0, 1, 8, np.inf), (0, 3, 7, 0.5)]
    assert rows(engine, "SELECT round, accuracy, train_loss FROM round ORDER BY round") == [(0, None, None), (1, None, 0.5)]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array([True, False]),
        np.array(3.5, dtype=np.float16),
        np.zeros((0, 4), dtype=np.int64),
        np.arange(3, dtype=">i4"),
    ],
    ids=["transposed", "bool", "scalar", "empty", "big-endian"],
)
def test_artifact_is_stored_as_given(engine: Engine, array: np.ndarray) -> None:
    run_id = new_run(engine)
    write_round(engine, run_id, make_record(1, artifacts={"ala.weights": array}))
    with engine.connect() as connection:
        stored = connection.execute(sa.select(schema.ArtifactRow)).one()
    independent = np.frombuffer(zlib.decompress(stored.data), dtype=stored.dtype).reshape(stored.shape)
    for read in (independent, unpack_array(stored.data, stored.dtype, stored.shape)):
        np.testing.assert_array_equal(read, array)
        assert read.dtype == array.dtype.newbyteorder("=")


def test_failed_round_leaves_nothing(engine: Engine) -> None:
    run_id = new_run(engine)
    faults: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"series": {"global": (0.5, None)}}, sa.exc.IntegrityError, "series"),
        ({"loss": np.array([0, 1, np.nan, 3])}, ValueError, "NaN"),
        ({"train_loss": float("nan")}, ValueError, "train_loss"),
    ]
    for columns, kind, message in faults:
        with pytest.raises(kind, match=message):
            write_round(engine, run_id, make_record(0, **columns))
        assert count(engine, "round") == count(engine, "client_round") == 0
    write_round(engine, run_id, make_record(0))
    assert count(engine, "client_round") == 4


def test_newest_attempt_is_found_and_has_its_specification(engine: Engine) -> None:
    spec = make_spec(seed=3, rounds=7, method="ditto")
    first, other = write.create_run(engine, spec, {}), new_run(engine)
    second = write.create_run(engine, spec, {"commit": "abc", "versions": {"numpy": "2"}})
    found = runs.newest(engine, spec.key)
    assert found is not None
    assert (found.id, found.status, found.attempt, found.last_round) == (second, "queued", 2, None)
    assert RunSpec.model_validate(found.spec) == spec
    assert found.environment == {"commit": "abc", "versions": {"numpy": "2"}}
    for run, last in ((first, 2), (second, 0), (other, 1)):
        for t in range(last + 1):
            write_round(engine, run, make_record(t))
    found = runs.newest(engine, spec.key)
    assert found is not None
    assert found.last_round == 0
    assert runs.newest(engine, "0" * 16) is None
    query = "SELECT protocol, dataset, model, scheme, partition_label, clients, join_ratio, rounds, method, seed FROM run"
    copies = (spec.protocol, "digits", "mlp", "dirichlet", "Dir(0.1)", 4, 1.0, 7, "ditto", 3)
    assert rows(engine, f"{query} WHERE id = {second}") == [copies]


def test_attempts_are_numbered_while_others_start_the_same_run(engine: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: new_run(engine), range(12)))
    assert rows(engine, "SELECT attempt FROM run ORDER BY attempt") == [(i,) for i in range(1, 13)]


def test_run_is_updated(engine: Engine) -> None:
    run_id, other = new_run(engine), new_run(engine, seed=1)
    partition_id = partitions.save(engine, make_partition())
    write.update_run(engine, run_id, status="failed", message="x" * 5000, engine="loop", partition_id=partition_id)
    query = "SELECT status, message, engine, partition_id FROM run WHERE id = :run"
    assert rows(engine, query, run=run_id) == [("failed", "x" * 1000, "loop", partition_id)]
    assert rows(engine, query, run=other) == [("queued", None, None, None)]
    with pytest.raises(UserError, match="no run 7"):
        write.update_run(engine, 7, status="failed")


def test_partition_is_stored_once(engine: Engine) -> None:
    first = partitions.save(engine, make_partition())
    assert partitions.save(engine, make_partition(label="the same")) == first
    assert partitions.save(engine, make_partition(hash="e" * 64, indices=None)) != first
    with engine.connect() as connection:
        stored = connection.execute(sa.select(schema.PartitionRow).order_by(schema.PartitionRow.id)).all()
    assert [(row.label, row.clients) for row in stored] == [("Dir(0.1)", 2)] * 2
    assert stored[0].train_counts == [[3, 0], [1, 2]]
    assert stored[1].indices is None
    expected = make_partition().indices
    assert expected is not None
    with np.load(io.BytesIO(stored[0].indices)) as independent:
        for read in (dict(independent), unpack_indices(stored[0].indices)):
            assert read.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(read[name], array)


@pytest.mark.servers("fast")
def test_partition_is_stored_once_by_many(engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: partitions.save(engine, make_partition()), range(16)))
    assert len(ids) == count(engine, "partition") == 1


@pytest.mark.servers("fast")
def test_what_is_deleted_is_deleted_of_that_run_only(engine: Engine) -> None:
    """When it is rewound, and when it is removed."""
    run_id, other = new_run(engine), new_run(engine, seed=1)
    partition_id = partitions.save(engine, make_partition())
    for run in (run_id, other):
        write.update_run(engine, run, partition_id=partition_id)
        for t in range(5):
            write_round(engine, run, make_record(t, series={"global": (0.5, 1.0)}, artifacts={"a": np.eye(2)}))
    rewind(engine, run_id, 2)
    of_a_round = {"round": 1, "client_round": 4, "series": 1, "artifact": 1}
    for table, number in of_a_round.items():
        kept = rows(engine, f"SELECT run_id, max(round), count(*) FROM {table} GROUP BY run_id ORDER BY run_id")
        assert kept == [(run_id, 2, 3 * number), (other, 4, 5 * number)], table
    write_round(engine, run_id, make_record(3))
    rewind(engine, run_id, -1)
    assert rows(engine, "SELECT DISTINCT run_id FROM round") == [(other,)]
    write_round(engine, run_id, make_record(0, series={"global": (0.5, 1.0)}, artifacts={"a": np.eye(2)}))
    write.remove_run(engine, run_id)
    for table in of_a_round:
        assert rows(engine, f"SELECT DISTINCT run_id FROM {table}") == [(other,)]
    assert count(engine, "partition") == count(engine, "run") == 1
    with pytest.raises(UserError, match="no run 7"):
        write.remove_run(engine, 7)
