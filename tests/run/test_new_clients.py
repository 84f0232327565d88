"""Clients that never join: nothing of them enters training, what they get is the global model, and how they adapt it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import Engine
from support.command import Shell
from support.runs import interrupted, numbers, rows, run, spec
from torch import nn
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import federation, train
from pflbench.engine import rng
from pflbench.engine.evaluation import Scores
from pflbench.engine.federation import Federation
from pflbench.errors import UserError
from pflbench.run import new_clients
from pflbench.run import training as loop
from pflbench.run.execution import Execution
from pflbench.run.federation_data import FederationData, load_federation_data, remarks
from pflbench.run.prepared import Prepared, prepare
from pflbench.spec import Pathological, RunSpec
from pflbench.store import database as db

NEW = "SELECT round, client, epochs, correct, total, loss FROM new_client WHERE run_id = {} ORDER BY 1, 2, 3"
SHORT: dict[str, Any] = {"rounds": 2, "new_clients": 2}


def prepared(of: RunSpec) -> Prepared:
    return prepare(of, load_federation_data(of, Path("data")), torch.device("cpu"), Execution(engine="loop", workers=1))


def module_of(made: Prepared, row: torch.Tensor) -> nn.Module:
    flat = made.initial_model()
    module = flat.module.double()
    module.load_state_dict({name: value.clone() for name, value in flat.views(row).items()})
    return module


def batch(made: Prepared, samples: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = made.data.arrays
    x = torch.from_numpy(np.asarray(arrays.x[samples]))
    return (x.double() / 127.5 - 1 if x.dtype == torch.uint8 else x.double()), torch.from_numpy(arrays.y[samples])


def scores_of(made: Prepared, module: nn.Module, samples: np.ndarray) -> tuple[int, int, float]:
    module.eval()
    x, y = batch(made, samples)
    with torch.no_grad():
        logits = module(x)
    return int((logits.argmax(1) == y).sum()), len(y), float(F.cross_entropy(logits, y, reduction="sum"))


def test_the_last_clients_are_set_aside() -> None:
    whole, cut = (load_federation_data(of, Path("data")) for of in (spec(), spec(new_clients=2, new_samples=3)))
    assert cut.new is not None
    for side in ("train", "test"):
        all_of, rest, new = getattr(whole.partition, side), getattr(cut.partition, side), getattr(cut.new, side)
        few = 3 if side == "train" else None
        assert [part.tolist() for part in (*rest, *new)] == [
            *(part.tolist() for part in all_of[:3]), *(part[:few].tolist() for part in all_of[3:])
        ]  # fmt: skip
    assert cut.record.hash == whole.record.hash


@pytest.mark.parametrize("method", ["fedavg", "fedala", "fedrod"])
def test_no_data_of_new_clients_enter_training(method: str, store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other samples and labels of theirs, every number of the training is the same to the last bit, and theirs is not."""
    few = {"max_init_epochs": 2} if method == "fedala" else {}
    of = spec(method, set=few, **SHORT, join_ratio=0.7, evaluate="all", val_share=0.2)
    run(of, store, metrics_every=1)

    def poisoned(*given: Any) -> FederationData:
        found = load_federation_data(*given)
        assert found.new is not None
        x, y = np.array(found.arrays.x), np.array(found.arrays.y)
        theirs = np.concatenate([*found.new.train, *found.new.test])
        x[theirs], y[theirs] = x[theirs].max() - x[theirs], (y[theirs] + 3) % 10
        return replace(found, arrays=replace(found.arrays, x=x, y=y))

    monkeypatch.setattr(loop, "load_federation_data", poisoned)
    run(of, store, force=True, metrics_every=1)
    assert numbers(store, 1) == numbers(store, 2)
    assert rows(store, NEW.format(1)) != rows(store, NEW.format(2))
    assert {client for _, client, *_ in rows(store, NEW.format(1))} == {3, 4}
    assert rows(store, "SELECT DISTINCT client FROM client_round ORDER BY client") == [(0,), (1,), (2,)]


def test_without_adaptation_new_clients_of_fedavg_have_the_global_model(store: Engine) -> None:
    of = spec("fedavg", **SHORT, new_epochs=0)
    run(of, store)
    made = prepared(of)
    fed, method = made.federation(), methods.make(of.method)
    assert fed.size == 3
    module = module_of(made, train(method, fed, 2).w)
    assert made.data.new is not None
    expected = [(2, 3 + k, 0, *scores_of(made, module, samples)) for k, samples in enumerate(made.data.new.test)]
    found = rows(store, NEW.format(1))
    assert [row[:5] for row in found] == [row[:5] for row in expected]
    assert [row[5] for row in found] == pytest.approx([row[5] for row in expected], rel=1e-12)


def by_hand(made: Prepared, of: RunSpec, module: nn.Module, client: int, anchor: list[torch.Tensor] | None) -> list[Any]:
    """One new client's results after 0, 1, ... epochs, by PyTorch's own optimizer."""
    assert made.data.new is not None
    mine, theirs = made.data.new.train[client], made.data.new.test[client]
    trained = [p for name, p in module.named_parameters() if of.method.name != "fedrep" or name.startswith("output")]
    momentum = of.train.momentum or 0
    optimizer = torch.optim.SGD(trained, of.train.lr, momentum=momentum, weight_decay=of.train.weight_decay or 0)
    order = rng.stream(rng.derived_seed(of.seed, "new clients"), "batches", of.train.rounds + 1, client)
    results = [scores_of(made, module, theirs)]
    for _ in range(of.train.new_epochs):
        epoch = order.permutation(mine)
        module.train()
        full = len(mine) // of.train.batch_size * of.train.batch_size or len(mine)
        for start in range(0, full, of.train.batch_size):
            x, y = batch(made, epoch[start : min(start + of.train.batch_size, full)])
            loss = F.cross_entropy(module(x), y)
            if anchor is not None:
                lam = float(of.method.hyperparameters["lam"])  # type: ignore[arg-type]
                loss = loss + lam / 2 * sum((p - a).square().sum() for p, a in zip(module.parameters(), anchor, strict=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append(scores_of(made, module, theirs))
    return results


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "ditto"])
def test_adaptation_is_plain_training(method: str, engine: str, store: Engine) -> None:
    """In float64, with momentum, a schedule that does not touch it, a weight decay and few samples."""
    how: dict[str, Any] = {"optimizer": "momentum", "weight_decay": 0.01, "lr_schedule": "cosine", "lr": 0.05, "batch_size": 10}
    of = spec(method, **SHORT, new_epochs=3, new_samples=34, **how)
    run(of, store, engine=engine)
    made = prepared(of)
    fed = made.federation()
    state = train(methods.make(of.method), fed, 2)
    row = fed.initial() if method == "fedrep" else state.w
    if method == "fedrep":
        row[: len(state.w)] = state.w
    expected = []
    for client in range(2):
        module = module_of(made, row)
        anchor = [p.detach().clone() for p in module.parameters()] if method == "ditto" else None
        results = by_hand(made, of, module, client, anchor)
        expected += [(2, 3 + client, e, *result) for e, result in enumerate(results)]
    found = rows(store, NEW.format(1))
    assert [row[:5] for row in found] == [row[:5] for row in expected]
    assert [row[5] for row in found] == pytest.approx([row[5] for row in expected], rel=1e-9)
    assert len({row[5] for row in found}) == len(found), "each epoch changes the models"


def test_a_resumed_run_has_the_same_rows(store: Engine, tmp_path: Path) -> None:
    """Every second round and the last; those after the checkpoint are deleted and come again."""
    of = spec("fedavg", rounds=5, new_clients=2, new_every=2, new_epochs=1)
    run(of, store)
    whole = rows(store, NEW.format(1))
    assert sorted({row[0] for row in whole}) == [0, 2, 4, 5]
    other = db.connect(db.to_url(str(tmp_path / "other.db")))
    interrupted(of, other, 3)
    assert {row[0] for row in rows(other, NEW.format(1))} == {0, 2}
    with other.begin() as connection:
        connection.exec_driver_sql("INSERT INTO new_client VALUES (1, 4, 3, 0, 0, 9, 1.0)")
    run(of, other)
    assert rows(other, NEW.format(1)) == whole


def adapted(fed: Federation, training: list[np.ndarray], tests: list[np.ndarray], **protocol: Any) -> tuple[Any, list[Scores]]:
    """FedAvg's state after a round of `fed`, and the results of new clients with these samples."""
    method = methods.make(methods.spec("fedavg", {}))
    state, changed = train(method, fed, 1), fed.protocol.model_copy(update=protocol)
    found = new_clients.tested(method, fed, state, Federation(fed.flat, fed.executor, changed, training, tests, 5, fed.labels))
    assert found is not None
    return state, found


def test_statistics_of_batch_norm_are_the_mean_of_the_clients() -> None:
    fed = federation("batchnorm", n=(30, 10))
    state, found = adapted(fed, fed.train_indices[:1], fed.test_indices[:1])
    fed.buffers["model"][0] = 0.75 * fed.buffers["model"][0] + 0.25 * fed.buffers["model"][1]
    assert found[0].loss == pytest.approx(fed.evaluate(state.w, torch.tensor([0])).loss, rel=1e-12)


def test_a_new_client_without_training_data_keeps_what_it_gets() -> None:
    fed = federation(n=(12, 9))
    _, found = adapted(fed, [np.empty(0, np.int64), fed.train_indices[1]], fed.test_indices)
    assert len({scores.loss[0] for scores in found}) == 1
    assert len({scores.loss[1] for scores in found}) == len(found)


def test_what_is_refused_and_said() -> None:
    with pytest.raises(ValueError, match="--new-clients 5 of 5 clients leaves nobody to train"):
        spec(new_clients=5)
    with pytest.raises(ValueError, match=r"join ratio 0\.5 of 1 clients selects nobody; 1 selects one"):
        spec(new_clients=4, join_ratio=0.5)
    with pytest.raises(ValueError, match=r"join ratio 0\.33 of 3 clients selects nobody; 0\.3334 selects one"):
        spec(new_clients=2, join_ratio=0.33)
    assert spec(new_clients=2, join_ratio=0.3334)
    for other in ({"new_every": 2}, {"new_epochs": 3}, {"new_samples": 3}):
        with pytest.raises(ValueError, match="needs --new-clients"):
            spec(**other)
    assert spec().key == spec(new_clients=0, new_epochs=5).key != spec(new_clients=1).key
    of = spec("fedavg", new_clients=1).model_copy(update={"partition": Pathological(clients=5, classes_per_client=2)})
    (told,) = remarks(of, load_federation_data(of, Path("data")))
    assert "only new clients have samples of class 8, 9" in told


def test_all_are_those_who_train() -> None:
    """A number of clients that means all stands for that in the key."""
    for name, value, said in (("heurfedamp", {"xi_ii": 0.25}, "1/N"), ("apple", {"M": 4}, "all"), ("fedfomo", {"M": 4}, "all")):
        chosen = methods.make(methods.spec(name, value))
        (option,) = value
        assert chosen.canonical_values(spec(name, new_clients=1)) == {option: said}
        assert chosen.canonical_values(spec(name)) == {}


def test_the_commands(shell: Shell) -> None:
    command = ("run", "-m", "fedavg", "-m", "fedamp", "-d", "digits", "-r", "2", "--new-clients", "2", "--new-epochs", "1", "-q")
    done = shell(*command, "--new-every", "2")
    assert (
        "fedamp digits Dir(0.1) seed 0: what its authors give a new client is not known here: new clients are not tested."
        in done.err
    )
    assert shell(*command).code == 0
    assert len(json.loads(shell("runs", "list", "--json").out)) == 2, "every 2 of 2 rounds: the same runs"
    table = shell("table", "new-clients").out
    assert "0 epochs" in table
    assert "give a new client is not known here: FedAMP." in table
    lines = shell("export", "new-clients").out.splitlines()
    assert lines[0] == "run,method,dataset,partition,seed,round,client,epochs,correct,total,accuracy,loss"
    assert len(lines) == 1 + 2 * 2
    assert shell("db", "check").code == 0
    assert "None of these runs has tested new clients." in shell.refused("table", "new-clients", "-m", "fedamp")


def test_a_run_without_test_samples_of_new_clients_is_refused_nowhere() -> None:
    fed = federation(n=(12, 9))
    assert not any(adapted(fed, fed.train_indices[:1], [np.empty(0, np.int64)])[1])


def test_divergence_names_the_new_client() -> None:
    fed = federation(n=(12, 9))
    with pytest.raises(UserError, match="of the new clients, counted from 0, client 0 has a non-finite"):
        adapted(fed, fed.train_indices, fed.test_indices, lr=1e300)
