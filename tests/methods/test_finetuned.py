"""FedAvg-C and FedProx-C (methods.md 1.4): the numbers of the specification, twins in plain PyTorch, options and limits."""

import numpy as np
import pytest
import torch
from support.cases import engines, rest_slow
from support.twins import buffers, close, near, rows, setup, vector

from pflbench.contract.small import federation, train
from pflbench.contract.toy import q2, rounds
from pflbench.engine.federation import PARAMS_DOWN
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.finetuned import FedAvgC, FedProxC
from pflbench.run.round import HEADLINE, evaluate

ROUNDS = 2


@engines
def test_q2_fedavg_c(engine):
    method, fed = FedAvgC(finetune_epochs=2), q2(engine)
    (received, first), (again, second) = rounds(method, fed, 2)
    near(method.deployed(received), [[0.19, 0], [0, 0.38]])
    near(method.train(fed.at(1), received, fed.cohort(1)), [[0.271, 0], [0, 0.542]])
    near(first.w, [0.20325, 0.1355])
    near(method.deployed(again), [[0.3546325, 0.109755], [0.1646325, 0.489755]])
    near(second.w, [0.35141925, 0.2342795])


@engines
def test_q2_fedprox_c(engine):
    method, fed = FedProxC(finetune_epochs=2, mu=0.5), q2(engine)
    (received, first), (again, _) = rounds(method, fed, 2)
    near(method.deployed(received), [[0.185, 0], [0, 0.37]])
    near(method.train(fed.at(1), received, fed.cohort(1)), [[0.25725, 0], [0, 0.5145]])
    near(first.w, [0.1929375, 0.128625])
    near(method.deployed(again), [[0.3422440625, 0.104829375], [0.1572440625, 0.474829375]])


@engines
@pytest.mark.parametrize("model", rest_slow(["mlp", "batchnorm"], "mlp"))
@pytest.mark.parametrize(
    ("mu", "options"), [(0.0, {}), (0.7, {}), (0.7, {"finetune_affects_upload": False}), (0.7, {"finetune_stop": "converge"})]
)
def test_twin(model, mu, options, engine):
    fed, twin = setup(model, engine, n=(33, 8, 22, 15))
    threshold, cap, most = {"mlp": 0.003, "batchnorm": 0.09}[model], 16, 3
    settings = {"finetune_epochs": most, "finetune_threshold": threshold, "finetune_cap": cap, **options}
    method = FedProxC(mu=mu, **settings) if mu else FedAvgC(**settings)
    converging = "finetune_stop" in options
    tuned, counts = [twin.fresh() for _ in twin.clients], {}

    def finetune(t):
        now = fed.at(t)
        S = now.cohort(t)
        plan = now.batches(S, cap if converging else most, purpose="batches/finetuned")
        for i, c in enumerate(S.tolist()):
            tuned[c].load_state_dict(twin.clients[c].state_dict())  # the client's own buffers
            twin.load(tuned[c], twin.server)
            batches, losses = list(plan.batches(i)), []
            per_epoch = len(batches) // (cap if converging else most)
            for start in range(0, len(batches), per_epoch):
                losses.append(twin.descend(tuned[c], batches[start : start + per_epoch], twin.server, mu))
                if converging and len(losses) > 10 and np.std(losses[-10:]) < threshold:
                    break
            counts[t, c] = len(losses)

    state, observed = method.receive(fed.at(1), method.init(fed), fed.cohort(1)), {}
    finetune(1)
    for t in range(1, ROUNDS + 1):
        now, later = fed.at(t), fed.at(t + 1)
        S = now.cohort(t)
        state = method.receive(later, method.update(now, state, S), later.cohort(t + 1))
        observed[t + 1] = later.ledger.artifacts.get("finetune_epochs")
        for i, c in enumerate(S.tolist()):
            if options.get("finetune_affects_upload", True):
                twin.clients[c].load_state_dict(tuned[c].state_dict())
            else:
                twin.load(twin.clients[c], twin.server)
            twin.sgd(twin.clients[c], now.batches(S), i, twin.server if mu else None, mu)
        twin.average(S)
        finetune(t + 1)
    close(state.w, vector(twin.server))
    close(method.deployed(state), rows(tuned))
    if model == "batchnorm":
        close(fed.buffers["model"], buffers(twin.clients))
        close(fed.buffers["finetuned"], buffers(tuned))
    if converging:
        expected = {t: [counts.get((t, c), 0) for c in range(fed.size)] for t in observed}
        assert {t: seen.tolist() for t, seen in observed.items()} == expected
        epochs = {n for of_round in expected.values() for n in of_round if n}
        assert len(epochs) > 1, "clients must not all stop together"


@engines
@pytest.mark.parametrize(
    ("threshold", "cap", "epochs"), rest_slow([(1e9, 100, 11), (0, 14, 14), (1e9, 7, 7)], (1e9, 100, 11), (1e9, 7, 7))
)
def test_converging_after_so_many_epochs_is_fine_tuning_for_so_many(threshold, cap, epochs, engine):
    converging = FedAvgC(finetune_stop="converge", finetune_threshold=threshold, finetune_cap=cap)
    a = train(converging, federation("batchnorm", engine), 1)
    if cap == epochs:
        b = train(FedAvgC(finetune_epochs=epochs), federation("batchnorm", engine), 1)
        close(a.w, b.w)
        close(a.theta, b.theta)
    fed = federation("batchnorm", engine).at(1)
    converging.receive(fed, converging.init(fed), fed.cohort(1))
    assert fed.ledger.artifacts["finetune_epochs"].tolist() == [epochs] * fed.size


@pytest.mark.parametrize("bn_buffers", ["local", "average", "reset"])
def test_a_copy_for_the_test_alone_leaves_fedavg_s_training_as_it_is(bn_buffers):
    settings = {"join_ratio": 0.5, "bn_buffers": bn_buffers}
    fed, plain = federation("batchnorm", **settings), federation("batchnorm", **settings)
    state = train(FedAvgC(finetune_epochs=2, finetune_affects_upload=False), fed)
    close(state.w, train(FedAvg(), plain).w)
    close(fed.buffers["model"], plain.buffers["model"])
    assert (state.theta - state.w).abs().max() > 0.01


def test_who_is_only_tested_is_fine_tuned_but_carries_nothing_into_training():
    fed = federation("batchnorm", join_ratio=0.5, evaluate="all")
    method = FedAvgC(finetune_epochs=2)
    state = train(method, fed, 2)
    now, S = fed.at(4), fed.cohort(4)
    received = method.receive(now, state, S)
    before = {which: rows.clone() for which, rows in fed.buffers.items()}
    tested = evaluate(method, now, state, received, S)
    assert all(torch.equal(fed.buffers[which], rows) for which, rows in before.items())
    assert now.ledger.traffic[:, PARAMS_DOWN].sum() == fed.flat.size * len(S)
    everyone = fed.all_trainable()
    tuned = method.receive(now, state, everyone)
    assert tested[HEADLINE].loss == pytest.approx(now.evaluate(tuned.theta, everyone, method.tested_model).loss)
    assert list(method.check(fed.protocol)) == [
        "clients outside the cohort are fine-tuned too, only to be tested (evaluate=participants would spare that)."
    ]
    assert not list(method.check(federation(join_ratio=0.5).protocol))


def test_buffers_that_are_reset_then_see_fine_tuning_and_training():
    fed = federation("batchnorm", n=(20, 20), bn_buffers="reset")
    counter = next(e for e in fed.flat.buffers if e.name.endswith("num_batches_tracked")).start
    train(FedAvgC(finetune_epochs=3), fed, 3)
    assert fed.buffers["model"][:, counter].tolist() == [(3 + 1) * 4] * 2
    assert fed.buffers["finetuned"][:, counter].tolist() == [3 * 4] * 2, "E1 of the round after has fine-tuned once more"
    local = federation("batchnorm", n=(20, 20))
    train(FedAvgC(finetune_epochs=3), local, 3)
    assert local.buffers["model"][:, counter].tolist() == [3 * (3 + 1) * 4] * 2
    assert local.buffers["finetuned"][:, counter].tolist() == [3 * (3 + 1) * 4 + 3 * 4] * 2
