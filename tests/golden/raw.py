"""The golden database by SQL and pandas alone, and the papers' CSV files by the csv module: what pflbench is held against."""

from __future__ import annotations

import csv
import json
import lzma
import sqlite3
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
PAPER = HERE.parents[1] / "pflbench" / "papers"
DATASETS = {
    "mnist": "MNIST",
    "cifar100": "Cifar100",
    "tiny": "Tiny-ImageNet",
    "agnews": "AG News",
    "fashionmnist": "Fashion-MNIST",
}
MODELS = {"cnn": "4-layer CNN", "resnet18": "ResNet-18", "fasttext": "fastText", "logreg": "Logistic Regression"}
METHODS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "ditto": "Ditto",
    "fedala": "FedALA",
    "fedamp": "FedAMP",
    "per-fedavg": "Per-FedAvg",
    "fedprox+ala": "FedProx+ALA",
    "fedrep+ala": "FedRep+ALA",
    "ditto+ala": "Ditto+ALA",
}
RUNS = """
select run.id, run.method, json_extract(run.spec, '$.data.name') as dataset,
  json_extract(run.spec, '$.data.content') as content, run.model, run.seed, run.parameters, run.partition_id,
  json_extract(run.spec, '$.partition.beta') as beta,
  json_extract(run.spec, '$.partition.scheme') as scheme,
  json_extract(run.spec, '$.partition.clients') as clients,
  json_extract(run.spec, '$.train.join_ratio') as ratio,
  json_extract(run.spec, '$.train.rounds') as rounds,
  json_extract(run.spec, '$.train.local_epochs') as epochs,
  json_extract(run.spec, '$.train.lr') as lr,
  json_extract(run.spec, '$.partition.classes_per_client') as classes,
  json_extract(run.spec, '$.method.hyperparameters.s') as s,
  json_extract(run.spec, '$.method.hyperparameters.p') as p,
  json_extract(run.spec, '$.method.hyperparameters.adapt') as adapt,
  json_extract(run.spec, '$.method') as method_spec,
  json_remove(run.spec, '$.method', '$.seed') as setting,
  partition.hash as partition
from run join partition on partition.id = run.partition_id order by run.seed, run.id
"""


def unpack(target: Path) -> Path:
    """A copy of the database to read, upgrade and write to."""
    target.write_bytes(lzma.decompress((HERE / "golden.db.xz").read_bytes()))
    return target


def as_official(path: Path) -> Path:
    """The same database as if its runs on made-up data were on the official ones: for what is said of such runs alone."""
    with sqlite3.connect(path) as connection:
        connection.execute("update run set spec = json_set(spec, '$.data.content', null)")
        connection.execute("update run set dataset = json_extract(spec, '$.data.name')")
    connection.close()
    return path


@dataclass(frozen=True)
class Raw:
    """runs: a row per run, with `value` and `at`: the best accuracy in percent and the first round that has it."""

    connection: sqlite3.Connection
    runs: pd.DataFrame
    rounds: pd.DataFrame

    @staticmethod
    def read(path: Path) -> Raw:
        connection = sqlite3.connect(path)
        runs = pd.read_sql_query(RUNS, connection, index_col="id")
        rounds = pd.read_sql_query("select * from round where accuracy is not null order by run_id, round", connection)
        best = rounds.loc[rounds.groupby("run_id")["accuracy"].idxmax()].set_index("run_id")
        return Raw(connection, runs.join(pd.DataFrame({"value": 100 * best["accuracy"], "at": best["round"]})), rounds)

    def where(self, query: str) -> pd.DataFrame:
        return self.runs.query(query)

    def central(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The same with `value` and `at` of the series on the central test set; runs without one left out."""
        every = pd.read_sql_query("select * from series where name = 'central' order by run_id, round", self.connection)
        best = every.loc[every.groupby("run_id")["accuracy"].idxmax()].set_index("run_id")
        return runs.drop(columns=["value", "at"]).join(
            pd.DataFrame({"value": 100 * best["accuracy"], "at": best["round"]}), how="inner"
        )

    def of(self, run: int) -> pd.DataFrame:
        """The rounds of a run, by round."""
        return self.rounds[self.rounds["run_id"] == run].set_index("round")

    def clients(self, run: int, t: int) -> pd.DataFrame:
        query = "select client, correct, total from client_round where run_id = ? and round = ? order by client"
        return pd.read_sql_query(query, self.connection, params=(int(run), int(t)))

    def new_clients(self, runs: pd.DataFrame) -> dict[tuple[str, int], np.ndarray]:
        """By method and epochs of adaptation, the accuracies in percent of its runs after their last round."""
        query = """select run_id, epochs, 100.0 * sum(correct) / sum(total) as value from new_client n
            where round = (select max(round) from new_client m where m.run_id = n.run_id) group by run_id, epochs"""
        found = pd.read_sql_query(query, self.connection).join(runs[["method"]], on="run_id", how="inner")
        return {key: of["value"].to_numpy() for key, of in found.groupby(["method", "epochs"])}

    def arrays(self, run: int, name: str) -> dict[int, np.ndarray]:
        """By round."""
        query = "select round, dtype, shape, data from artifact where run_id = ? and name = ? order by round"
        rows = self.connection.execute(query, (int(run), name))
        return {
            t: np.frombuffer(zlib.decompress(data), dtype).reshape(json.loads(shape)).astype(float)
            for t, dtype, shape, data in rows
        }

    def keeping(self, name: str) -> list[int]:
        """The runs that kept arrays of this name."""
        query = "select distinct run_id from artifact where name = ? order by run_id"
        return [run for (run,) in self.connection.execute(query, (name,))]

    def partition(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Training and test samples [clients, classes]."""
        query = "select train_counts, test_counts from partition where id = ?"
        (row,) = self.connection.execute(query, (int(number),))
        return tuple(np.array(json.loads(text)) for text in row)  # type: ignore[return-value]


def majority(train: np.ndarray, test: np.ndarray) -> float:
    """Percent of test samples [clients, classes] whose class is the most frequent of their client's training samples."""
    right = sum(row[max(range(len(own)), key=own.__getitem__)] for own, row in zip(train.tolist(), test.tolist(), strict=True))
    return float(100 * right / test.sum())


def cells(runs: pd.DataFrame) -> dict[tuple[int, ...], pd.DataFrame]:
    """Runs that differ in nothing but the seed, by their numbers."""
    groups = runs.groupby(["setting", "partition", "method_spec"], sort=False)
    return {tuple(group.index): group for _, group in groups}


def printed(table: str, run: Any, metric: str = "test_accuracy_percent", **said: object) -> tuple[float, float | None]:
    """Mean and std of the paper for a run: the line of TABLE.csv of its dataset, model and method whose setting says this."""
    names = (DATASETS[run.dataset], MODELS[run.model], METHODS[run.method], metric)
    with (PAPER / f"{table}.csv").open(encoding="utf-8") as file:
        found = [
            row
            for row in csv.DictReader(file)
            if (row["dataset"], row["backbone"], row["method"], row["metric"]) == names
            and {f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in said.items()}
            <= set(row["setting"].split(";"))
        ]
    assert found, f"{table}.csv has nothing for {names} with {said}"
    assert len({row["mean"] for row in found}) == 1, "the line is not determined by this"
    return float(found[0]["mean"]), float(found[0]["std"]) if found[0]["std"] else None
