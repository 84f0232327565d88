"""ALA as a plug-in (methods.md 1.15): the numbers of the specification, and what it must equal."""

import pytest
import torch
from support.cases import rest_slow

from pflbench import methods
from pflbench.contract.small import EXECUTORS, federation, train
from pflbench.contract.toy import q2, rounds
from pflbench.errors import UserError
from pflbench.methods.fedala import FedALA
from pflbench.run.round import evaluate
from pflbench.spec import MethodSpec, TrainSpec

engines = pytest.mark.parametrize("engine", [*EXECUTORS[:2], *(pytest.param(e, marks=pytest.mark.slow) for e in EXECUTORS[2:])])
FEW = (12, 4, 9, 7)  # samples of each client: enough for partial batches
WITH_ALA = [name for name in methods.names(with_ala=True) if name.endswith("+ala")]


def make(name, **hyperparameters):
    return methods.make(MethodSpec(name=name, hyperparameters=hyperparameters))


@engines
@pytest.mark.parametrize("join_ratio", [1.0, 0.5])
@pytest.mark.parametrize("options", [{}, {"ala_all": True, "p": 2}, {"start_round": 3, "adapt": False}])
def test_fedavg_with_ala_is_fedala(engine, join_ratio, options):
    a = train(FedALA(**options), federation(engine=engine, join_ratio=join_ratio, n=FEW))
    b = train(make("fedavg+ala", **options), federation(engine=engine, join_ratio=join_ratio, n=FEW))
    assert torch.equal(a.w, b.base.w)
    assert torch.equal(a.theta, b.base.start)
    assert torch.equal(a.ala.W, b.ala.W)


def test_reception_depends_on_the_cohort_where_the_method_s_does():
    assert make("fedamp+ala").depends_on_cohort
    assert not make("fedrep+ala").depends_on_cohort


@pytest.mark.parametrize("name", rest_slow(["fedala", *WITH_ALA], "fedala", "fedavg+ala", "fedrep+ala"))
def test_without_a_rate_all_tests_are_those_of_the_method_itself(name):
    """Of a client outside the cohort, too: whoever is tested has been initialised at that moment."""
    base = "fedavg" if name == "fedala" else name.removesuffix("+ala")
    a, b = (series(method) for method in (make(base, **methods.load(base).ala_decides), make(name, eta=0)))
    assert [moment.keys() for moment in a] == [moment.keys() for moment in b]
    for plain, mixed in ((of_a[key], of_b[key]) for of_a, of_b in zip(a, b, strict=True) for key in of_a):
        assert mixed.clients.tolist() == plain.clients.tolist() == list(range(6))
        assert mixed.correct.tolist() == plain.correct.tolist()
        assert mixed.loss == pytest.approx(plain.loss, abs=1e-9)


def series(method, rounds=3):
    """The scores of every E1, of all clients."""
    fed = federation(join_ratio=0.34, evaluate="all", n=(12, 5, 9, 7, 6, 8), around=method.model)
    state, seen = method.init(fed), []
    for t in range(1, rounds + 2):
        now, before = fed.at(t), state
        S = now.cohort(t)
        state = method.receive(now, before, S)
        seen.append(evaluate(method, now, before, state, S))
        state = method.update(now, state, S)
    return seen


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_ditto_with_ala(executor):
    """Q2 after round 1, one weight step, eta = 1, p = index 1; lambda = 0.5, s = 2."""
    fed, method = q2(executor), make("ditto+ala", lam=0.5, s=100, max_init_epochs=1)
    _, (received, second) = rounds(method, fed, 2)
    for actual, expected in (
        (received.ala.W[0], [0.9975]),
        (received.base.start[0], [0.075, 0.049875]),
        (second.base.v[0], [0.3256, 0.0046134375]),
        (second.local[0], [0.1675, 0.0448875]),
    ):
        torch.testing.assert_close(actual, torch.tensor(expected).double(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", sorted(name for name in methods.METHODS if methods.card(name).ala_refused))
def test_where_ala_makes_no_sense_it_is_refused_with_the_reason(name):
    with pytest.raises(UserError, match=rf"{name}\+ala is not possible: .*\."):
        make(f"{name}+ala")


@pytest.mark.parametrize("name", [n for n in methods.names(with_ala=True) if n.endswith("+ala")])
def test_no_hyperparameter_has_two_meanings(name):
    found = [h.name for h in methods.hyperparameters(name)]
    assert len(found) == len(set(found))
    parts = [{h.name for h in methods.hyperparameters(n)} for n in (name.removesuffix("+ala"), "fedala")]
    assert not parts[0] & parts[1]
    assert set(found) == (parts[0] | parts[1]) - set(methods.load(name).ala_decides)
    with pytest.raises(UserError):
        make(name, nonsense=1)


def test_ala_for_all_where_the_cohort_decides_what_is_received_is_refused():
    method = make("fedamp+ala", partial=True, ala_all=True)
    with pytest.raises(UserError, match="ala_all does not go with FedAMP"):
        list(method.check(TrainSpec(rounds=1, lr=0.1, join_ratio=0.5)))
    assert not list(method.check(TrainSpec(rounds=1, lr=0.1)))
