"""What is tracked is what the database holds, read by the trackers' own readers; and it is delivered once."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from support.command import Shell, finish, start, until
from support.store_samples import make_record, make_spec, rewind, write_round

from pflbench.cli.reports import found_runs
from pflbench.errors import Unreachable
from pflbench.store import write
from pflbench.store.database import connect, to_url
from pflbench.track.deliver import Delivery, Mark, follow

METRICS = "accuracy, accuracy_std, test_loss, train_loss, seconds_update, seconds_evaluate, bytes_up, bytes_down"


@pytest.fixture
def results(shell: Shell, new_database: Path, tmp_path: Path) -> Engine:
    """pflbench.db: run 1, finished; run 2, interrupted."""
    (tmp_path / "pflbench.db").write_bytes(new_database.read_bytes())
    engine = connect(to_url(str(tmp_path / "pflbench.db")))
    for spec, status in ((make_spec(), "finished"), (make_spec(method="ditto", seed=4), "interrupted")):
        run = write.create_run(engine, spec, {})
        write.update_run(engine, run, status=status, started_at="2026-01-02T03:04:05Z", finished_at="2026-01-02T03:05:00Z")
        add_rounds(engine, run, 0, 4)
    return engine


def add_rounds(engine: Engine, run: int, first: int, end: int) -> None:
    for t in range(first, end):
        more: dict[str, Any] = {"accuracy_std": 0.1 * t, "test_loss": 2.5, "bytes_up": 3_000_000_000 + t, "bytes_down": 12}
        if t:  # nothing was trained before
            more |= {"train_loss": 1 / t, "seconds_update": 0.25 * t, "seconds_evaluate": 1.0}
        write_round(engine, run, make_record(t, series={"global": (0.5, t / 8)}, **more))


def rows(query: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect("pflbench.db")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]


def expected(run: int) -> dict[str, dict[int, float]]:
    """By metric the numbers of each round, straight from the tables."""
    found: dict[str, dict[int, float]] = {}
    seconds = 0.0
    for row in rows(f"SELECT round, {METRICS} FROM round WHERE run_id = {run} ORDER BY round"):
        seconds += row["seconds_update"] or 0
        for name, value in {**row, "seconds": seconds}.items():
            if value is not None and name != "round":
                found.setdefault(name, {})[row["round"]] = value
    for row in rows(f"SELECT * FROM series WHERE run_id = {run}"):
        for name in ("accuracy", "test_loss"):
            found.setdefault(f"{row['name']}/{name}", {})[row["round"]] = row[name]
    return found


def key(run: int) -> str:
    return rows(f"SELECT key FROM run WHERE id = {run}")[0]["key"]


def shown(key: str) -> tuple[dict[str, list[tuple[int, float, float]]], Any]:
    """By metric (step, time, value) as TensorBoard reads them, and all that it accumulated."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = Path("tb").glob(f"*{key}")
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    names = found.Tags()["scalars"]
    return {name: [(e.step, e.wall_time, e.value) for e in found.Scalars(name)] for name in names}, found


def assert_shown(run: int) -> None:
    found, _ = shown(key(run))
    wanted = expected(run)
    assert {*wanted} == {*found}
    for name, values in wanted.items():
        assert [step for step, _, _ in found[name]] == list(values), name  # each once, in order
        assert [value for _, _, value in found[name]] == pytest.approx(list(values.values()), rel=1e-6), name  # float32 there


def test_tensorboard_has_what_the_database_has_once(shell: Shell, results: Engine) -> None:
    def fill(*more: str) -> str:
        return shell("track", "tensorboard", "tb", *more).err.strip()

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path("tb").rglob("*") if path.is_file()}

    assert fill("-m", "fedavg") == "New: 4 rounds of 1 runs."
    assert [folder.name.split("_")[0] for folder in Path("tb").iterdir()] == ["fedavg"]
    before = content()
    assert "Nothing new" in fill("-m", "fedavg")
    assert content() == before
    assert fill() == "New: 4 rounds of 1 runs."
    add_rounds(results, 2, 4, 6)
    assert fill() == "New: 2 rounds of 1 runs."
    assert len(list(Path("tb").iterdir())) == 2
    assert_shown(1)
    assert_shown(2)
    found, _ = shown(key(1))
    began = 1_767_323_045  # 2026-01-02T03:04:05Z
    assert [at - began for _, at, _ in found["accuracy"]] == [0, 1.25, 2.75, 4.5]  # what the rounds took, evaluation included


def test_tensorboard_has_parameters_and_tags(shell: Shell, results: Engine) -> None:
    from tensorboard.plugins.hparams import api_pb2, metadata

    shell("track", "tensorboard", "tb")
    found, ended = (shown(key(run))[1].SummaryMetadata for run in (2, 1))
    tag = metadata.SESSION_START_INFO_TAG
    said = metadata.parse_session_start_info_plugin_data(found(tag).plugin_data.content).hparams
    assert (said["method"].string_value, said["seed"].string_value, said["key"].string_value) == ("ditto", "4", key(2))
    assert (said["partition.beta"].number_value, said["train.lr"].number_value) == (0.1, 0.1)
    assert said["partition"].string_value == "Dir(0.1)"
    end = ended(metadata.SESSION_END_INFO_TAG).plugin_data.content
    assert metadata.parse_session_end_info_plugin_data(end).status == api_pb2.STATUS_SUCCESS


@pytest.mark.slow
def test_mlflow_has_what_the_database_has_once(shell: Shell, results: Engine) -> None:
    from mlflow.tracking import MlflowClient

    def fill() -> str:
        return shell("track", "mlflow", "sqlite:///mlflow.db", "--experiment", "heads").err.strip()

    def logged(run: int) -> tuple[Any, dict[str, list[tuple[int, float]]]]:
        (found,) = client.search_runs([experiment], filter_string=f"tags.key = '{key(run)}'")
        histories = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
        return found, {name: sorted((m.step, m.value) for m in all_) for name, all_ in histories.items()}

    assert fill().endswith("New: 8 rounds of 2 runs.")
    client = MlflowClient("sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name("heads").experiment_id
    for run in (1, 2):
        assert logged(run)[1] == {name: list(values.items()) for name, values in expected(run).items()}
    found, _ = logged(2)
    assert (found.info.status, found.info.start_time) == ("KILLED", 1_767_323_045_000)
    tags = {name: found.data.tags[name] for name in ("key", "method", "dataset", "partition", "seed")}
    assert tags == {"key": key(2), "method": "ditto", "dataset": "digits", "partition": "Dir(0.1)", "seed": "4"}
    assert (found.data.params["partition.beta"], found.data.params["model"]) == ("0.1", "mlp")
    assert logged(1)[0].info.status == "FINISHED"

    assert fill().endswith("Nothing new.")
    client.delete_tag(found.info.run_id, "round")  # as if it had been stopped before that
    add_rounds(results, 2, 4, 6)
    assert fill().endswith("New: 6 rounds of 1 runs.")
    assert len(client.search_runs([experiment])) == 2
    assert logged(2)[1] == {name: list(values.items()) for name, values in expected(2).items()}


@pytest.mark.slow
def test_offline_files_of_wandb_have_what_the_database_has_once(shell: Shell, results: Engine) -> None:
    from support.offline_wandb import histories, records

    def logged(run: int) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for row in histories(Path("."))[f"{key(run)}-1"]:
            for name, value in row.items():
                if not name.startswith("_"):
                    assert row["_step"] not in found.setdefault(name, {}), "twice"
                    found[name][row["_step"]] = value
        return found

    assert shell("track", "wandb", "heads", "--offline").err.strip() == "New: 8 rounds of 2 runs."
    for run in (1, 2):
        assert logged(run) == expected(run)
    assert histories(Path("."))[f"{key(1)}-1"][3]["_timestamp"] == 1_767_323_045 + 4.5
    (file,) = Path("wandb").glob(f"offline-run-*-{key(2)}-1/*.wandb")
    (said,) = [record.run for record in records(file) if record.WhichOneof("record_type") == "run"]
    assert (said.run_id, said.project, said.job_type) == (f"{key(2)}-1", "heads", "ditto")
    assert {*said.tags} >= {f"key:{key(2)}", "method:ditto", "dataset:digits", "partition:Dir(0.1)", "seed:4"}
    assert '"beta":0.1' in {item.key: item.value_json for item in said.config.update}["partition"]

    assert "Nothing new" in shell("track", "wandb", "heads", "--offline").err
    time.sleep(1)  # W&B names its folders by the second
    add_rounds(results, 2, 4, 6)
    assert "New: 2 rounds of 1 runs" in shell("track", "wandb", "heads", "--offline").err
    assert logged(2) == expected(2)


class Noted:
    """A tracker that notes what it is given."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int]] = []
        self.told: list[tuple[int, Mark]] = []

    def mark(self, run: Any) -> Mark:
        return Mark()

    def write(self, run: Any, new: Any) -> None:
        self.rounds += [(run.id, point.round) for point in new]

    def tell(self, run: Any, mark: Mark) -> None:
        self.told.append((run.id, mark))

    def close(self) -> None:
        pass


def test_what_is_followed_is_delivered_as_it_comes(results: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from pflbench.store import locks

    monkeypatch.setattr(locks, "_is_locked", lambda *_: True)  # somebody is at the runs
    write.update_run(results, 2, status="running")
    looks, seen = 0, []
    tracker = Noted()

    def look() -> Any:
        nonlocal looks
        seen.append(len(tracker.rounds))
        looks += 1
        if looks == 2:
            add_rounds(results, 2, 4, 6)
        if looks == 3:
            raise Unreachable("The server is away.")
        if looks == 4:
            rewind(results, 2, 3)  # it was killed, and goes on at its checkpoint
        if looks == 5:
            add_rounds(results, 2, 4, 8)
            write.update_run(results, 2, status="finished")
        return found_runs(results, {"status": []})

    follow(Delivery(results, tracker), look, every=0, patience=0)
    assert looks == 5
    assert seen == [0, 8, 10, 10, 10]
    assert tracker.rounds == [(1, t) for t in range(4)] + [(2, t) for t in range(8)]
    assert tracker.told[0] == (1, Mark(3, "finished"))
    assert tracker.told[-1] == (2, Mark(7, "finished"))
    assert len(tracker.told) == 4  # one for each look at run 2 with something new


@pytest.mark.slow
def test_a_run_is_followed_by_another_process(shell: Shell, tmp_path: Path) -> None:
    train = ["run", "-m", "fedavg", "-d", "digits", "--model", "mlp", "--clients", "3", "--rounds", "60", "-q"]
    follower = start("track", "tensorboard", "tb", "--follow", "--every", "0.1", folder=tmp_path)
    runner = start(*train, folder=tmp_path)
    seen: set[int] = set()

    def all_there() -> bool:
        seen.update(json.loads(path.read_text())["round"] for path in Path("tb").glob("*/pflbench.json"))
        return 60 in seen

    until(all_there)
    assert finish(runner).code == 0
    follower.send_signal(signal.SIGINT)  # it would wait a minute for the next run
    done = finish(follower)
    assert done.code == 130
    assert done.err.endswith("Interrupted. The same command continues.\nNew: 61 rounds of 1 runs.\n"), done.err
    assert len(seen) > 1, "nothing was there before the end"
    steps = [step for step, _, _ in shown(key(1))[0]["accuracy"]]
    assert steps == list(range(61))


def test_a_damaged_mark_is_named(shell: Shell, results: Engine) -> None:
    assert shell("track", "tensorboard", "tb").code == 0
    for mark in Path("tb").glob("*/pflbench.json"):
        mark.write_text("")
    assert "pflbench.json is damaged" in shell.refused("track", "tensorboard", "tb")


def test_what_is_refused(shell: Shell, results: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No runs with method 'nope'" in shell.refused("track", "tensorboard", "tb", "-m", "nope")
    assert not Path("tb").exists()
    Path("file").write_text("")
    assert "Not a directory: file" in shell.refused("track", "tensorboard", "file")
    assert "No results yet" in shell.refused("track", "tensorboard", "tb", "--db", "none.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert "There is no URI" in shell.refused("track", "mlflow")


@pytest.mark.parametrize("library", ["tensorboard", "mlflow", "wandb"])
def test_a_library_that_is_not_there_is_named(
    shell: Shell, results: Engine, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith((f"{library}.", f"pflbench.track.{library}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)  # type: ignore[arg-type]
    told = shell.refused("track", library, "sqlite:///x.db")
    assert f"{library} is not installed" in told
    assert f'pip install "pflbench[{library}]"' in told
