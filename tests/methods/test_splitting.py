"""FedPer, LG-FedAvg, FedBABU, FedBN and FedAvg-FT: the numbers of methods.md 1.19 to 1.21, 1.23, 1.33, and limiting cases."""

from __future__ import annotations

import pytest
import torch
from support.cases import engines
from support.f2 import f2, losses_at_e1
from support.twins import close, near

from pflbench.contract.small import federation, train
from pflbench.contract.toy import EXECUTORS, q2, rounds
from pflbench.errors import UserError
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.fedavgft import FedAvgFT
from pflbench.methods.fedbabu import FedBABU
from pflbench.methods.fedbn import FedBN
from pflbench.methods.fedper import FedPer
from pflbench.methods.lgfedavg import LGFedAvg
from pflbench.methods.local import Local
from pflbench.spec import TrainSpec

FIRST = (0.5411905142, 0.8308985442)  # E1 of Theta^0 on F2
on_both = pytest.mark.parametrize("name", EXECUTORS)


def e1(method, fed, *expected):
    near(torch.tensor(losses_at_e1(method, fed, len(expected)), dtype=torch.float64), expected)


def bases(rows, *expected):
    """A, the first six columns of each round's shared model."""
    for row, A in zip(rows, expected, strict=True):
        near(row[:6], A)


@on_both
def test_fedavg_on_f2(name):
    e1(FedAvg(), f2(name), FIRST, (0.4832275348, 0.6900629148), (0.4367193573, 0.5803975228))
    bases(
        [state.w for _, state in rounds(FedAvg(), f2(name), 2)],
        [1.0021401549, 0.5529348322, -0.5272300817, 1.0033340501, 0.2648021521, -0.7676214401],
        [1.0073724137, 0.598638264, -0.5541646622, 1.0109238616, 0.2792385965, -0.7859267881],
    )
    e1(Local(), f2(name), FIRST, (0.4712569534, 0.5502637353))


@on_both
def test_fedper(name):
    (_, first), (received, second) = rounds(FedPer(), q2(name), 2)
    near(first.theta, [[0.1, 0], [0, 0.2]])
    near(first.w, [0.075])
    near(received.theta, [[0.075, 0], [0.075, 0.2]])
    near(second.theta, [[0.1675, 0], [0.0675, 0.38]])
    near(second.w, [0.1425])
    e1(FedPer(), f2(name), FIRST, (0.4730217777, 0.5781114682), (0.418444706, 0.4250275276))
    bases(
        [state.w for _, state in rounds(FedPer(), f2(name), 2)],
        [1.0021401549, 0.5529348322, -0.5272300817, 1.0033340501, 0.2648021521, -0.7676214401],
        [1.0082175982, 0.5931561226, -0.5553275042, 1.0144903031, 0.2800030978, -0.7867006089],
    )


@on_both
def test_lg_fedavg(name):
    (_, first), (received, second) = rounds(LGFedAvg(), q2(name), 2)
    near(first.w, [0.05])
    near(received.theta, [[0.1, 0.05], [0, 0.05]])
    near(second.theta, [[0.19, 0.045], [0, 0.245]])
    near(second.w, [0.095])
    e1(LGFedAvg(), f2(name), FIRST, (0.4812185943, 0.6563761814), (0.4314060372, 0.5274165087))
    (_, second) = rounds(LGFedAvg(), f2(name), 2)[1]
    near(second.w[:3], [0.5871137592, -0.2919245583, 0.1845686391])
    near(second.w[9:], [0.0821614091, -0.1806634408, 0.0485020317])


@on_both
def test_fedbabu(name):
    (tests, first), (tests_2, second) = rounds(FedBABU(finetune_epochs=2), q2(name), 2)
    near(tests.tested, [[0.19, 0], [0, 0.38]])
    near(first.w, [0.075, 0])
    near(tests_2.tested, [[0.25075, 0], [0.06075, 0.38]])
    near(second.w, [0.1425, 0])
    e1(FedBABU(), f2(name), (0.3898277934, 0.3400550645), (0.3818206251, 0.3275030886), (0.3741963993, 0.3157573406))
    e1(FedBABU(finetune="head"), f2(name), (0.4213694561, 0.4140781517), (0.411871371, 0.3967539372))
    e1(FedBABU(finetune="body"), f2(name), (0.5069205073, 0.665092832), (0.4956669026, 0.6406618341))
    bases(
        [state.w for _, state in rounds(FedBABU(), f2(name), 2)],
        [1.0009379974, 0.5560669717, -0.5265875509, 1.0005737665, 0.264451229, -0.7667065854],
        [1.002057805, 0.6096658958, -0.5526158273, 1.001603191, 0.2785395613, -0.7829441061],
    )


@on_both
def test_fedbn(name):
    fed = f2(name, normalise=True)
    e1(FedBN(), fed, (0.5411923629, 0.8308994197), (0.5048981398, 0.7032478723), (0.4743815755, 0.6207131054))
    fed = f2(name, normalise=True)
    states = [state for _, state in rounds(FedBN(), fed, 2)]
    bases([states[0].w], [0.956818584, 0.5753699524, -0.5018897851, 0.9990518212, 0.2569239275, -0.7476712797])
    near(states[1].theta[0, 6:12], [0.981246244, 1.0693109736, 1.0395127256, 0.1202854972, -0.0125512661, -0.0305561111])
    near(fed.buffers_of("model")[1, :3], [-0.1572980646, -0.1432176136, 0.1141111651])
    near(fed.buffers_of("model")[1, 3:6], [0.7149331843, 1.6090137677, 1.120901519])
    everything = losses_at_e1(FedAvg(), f2(name, normalise=True), 3)
    near(torch.tensor(everything[2], dtype=torch.float64), (0.4972519158, 0.6704087440))


@on_both
def test_fedavg_ft(name):
    (tests, _), (tests_2, second) = rounds(FedAvgFT(), q2(name), 2)
    near(tests.theta, [[0.1, 0], [0, 0.2]])
    near(tests_2.theta, [[0.1675, 0.045], [0.0675, 0.245]])
    near(second.w, [0.1425, 0.095])
    e1(FedAvgFT(), f2(name), (0.5043784803, 0.6688056958), (0.4526475512, 0.5608009094), (0.4106818927, 0.4763963664))


@engines
def test_the_head_of_fedbabu_is_that_of_the_start(engine):
    fed = federation("batchnorm", engine)
    state = train(FedBABU(), fed)
    assert torch.equal(state.w[fed.flat.head], fed.initial()[fed.flat.head])
    assert not torch.equal(state.w, fed.initial())
    plain = train(FedBABU(evaluate="global"), federation("batchnorm", engine))
    close(plain.tested, state.w.expand_as(plain.tested), 0)
    assert not torch.equal(state.tested, plain.tested)


@engines
def test_batchnorm_layers_stay_with_their_client(engine):
    fed = federation("batchnorm", engine, join_ratio=0.5)
    norm = fed.flat.columns(["norm"])
    state = train(FedBN(), fed, 1)
    assert len(torch.unique(state.theta[:, norm], dim=0)) == 3, "two have trained, and two have the initial ones"
    for client in fed.cohort(2):
        close(state.theta[client][fed.flat.outside_batch_norm], state.w, 0)
    assert len(state.w) == fed.flat.size - 12


def test_batch_norm_is_found_by_its_class():
    assert len(federation("resnet20-gn").flat.outside_batch_norm) == federation("resnet20-gn").flat.size
    fed = federation("resnet18", shape=(3, 32, 32))
    norms = sum(p.numel() for m in fed.flat.module.modules() if isinstance(m, torch.nn.BatchNorm2d) for p in m.parameters())
    assert fed.flat.size - len(fed.flat.outside_batch_norm) == norms == 9600


def test_impossible_combinations_are_refused():
    with pytest.raises(UserError, match="excludes --bn-buffers average"):
        list(FedBN().check(TrainSpec(rounds=1, lr=0.1, bn_buffers="average")))
    for method in (FedPer(personal_blocks=3), LGFedAvg(shared_blocks=3)):
        with pytest.raises(UserError, match="has 2 blocks, not 3"):
            method.init(federation())


@engines
@pytest.mark.parametrize("bn_buffers", ["average", "reset"])
def test_statistics_of_own_parts_stay_with_their_client(engine, bn_buffers):
    local = federation("batchnorm", engine, bn_buffers=bn_buffers)
    train(Local(), local)
    fed = federation("batchnorm", engine, bn_buffers=bn_buffers)
    train(LGFedAvg(shared_blocks=0), fed)
    close(fed.buffers_of("model"), local.buffers_of("model"), 0)
    with pytest.raises(UserError, match="personal blocks have BatchNorm"):
        FedPer(personal_blocks=2).init(fed)
    FedPer().init(fed)


@engines
def test_without_fine_tuning_reset_statistics_change_nothing(engine):
    how = {"bn_buffers": "reset"}
    fed, plain = federation("batchnorm", engine, **how), federation("batchnorm", engine, **how)
    tuned, state = train(FedAvgFT(finetune_epochs=0), fed), train(FedAvg(), plain)
    S = torch.arange(fed.size)
    found, expected = fed.evaluate(tuned.theta, S, "finetuned"), plain.evaluate(state.w, S)
    assert found.loss.tolist() == expected.loss.tolist()


def test_a_head_alone_has_no_body():
    with pytest.raises(UserError, match="a head alone"):
        FedAvgFT(finetune="body").init(federation("logreg"))
