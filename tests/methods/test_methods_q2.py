"""Every number of methods.md section 1 for local, fedavg, fedprox, ditto and fedala, on both executors."""

import pytest
import torch
from support.twins import near

from pflbench.contract.toy import EXECUTORS, q2, rounds
from pflbench.methods.ditto import Ditto
from pflbench.methods.fedala import FedALA
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.fedprox import FedProx, proximal
from pflbench.methods.local import Local
from pflbench.methods.perfedavg import PerFedAvg

pytestmark = pytest.mark.parametrize("name", EXECUTORS)


def test_local(name):
    (_, first), (_, second) = rounds(Local(), q2(name), 2)
    near(first.theta, [[0.1, 0], [0, 0.2]])
    near(second.theta, [[0.19, 0], [0, 0.38]])


def test_fedavg(name):
    (_, first), (_, second) = rounds(FedAvg(), q2(name), 2)
    near(first.w, [0.075, 0.05])
    near(second.w, [0.1425, 0.095])


def test_fedprox(name):
    fed = q2(name, epochs=2)
    (_, first), (_, second) = rounds(FedProx(mu=0.5), fed, 2)
    near(first.w, [0.13875, 0.0925])
    near(second.w, [0.25183125, 0.1678875])
    method = FedProx(mu=0.5)
    near(method.train(fed, method.init(fed), fed.cohort(1)), [[0.185, 0], [0, 0.37]])
    now = fed.at(2)
    near(
        method.train(now, method.receive(now, first, fed.cohort(2)), fed.cohort(2)),
        [[0.29808125, 0.0753875], [0.11308125, 0.4453875]],
    )


def test_the_proximal_penalty_is_the_squared_norm(name):
    gradient, value = proximal(torch.tensor([3.0, 4.0]), anchor=torch.zeros(2), strength=0.5)
    near(value, 6.25)
    near(gradient, [1.5, 2.0])


def test_the_reported_training_loss_contains_the_penalty(name):
    fed = q2(name, epochs=2)
    FedProx(mu=0.5).update(fed, FedProx().init(fed), fed.cohort(1))
    # f before each of the two steps, plus (mu / 2) |w|^2: client 0 from (0,0) to (0.1,0), client 1 from (0,0) to (0,0.2).
    client_0 = (0.5 + 0.405 + 0.25 * 0.01) / 2
    client_1 = (2.0 + 1.62 + 0.25 * 0.04) / 2
    assert fed.ledger.train_loss["model"] == pytest.approx(0.75 * client_0 + 0.25 * client_1, abs=1e-12)


def test_ditto(name):
    (_, first), (_, second) = rounds(Ditto(lam=0.5), q2(name), 2)
    near(first.v, [[0.185, 0], [0, 0.37]])
    near(first.w, [0.075, 0.05])
    near(second.v, [[0.3256, 0.004625], [0.0069375, 0.64195]])
    near(second.w, [0.1425, 0.095])


@pytest.mark.parametrize(
    ("method", "mean"),
    [(Ditto(aggregation="uniform"), [0.05, 0.1]), (PerFedAvg(passes=1, aggregation="uniform"), [0.045, 0.09])],
)
def test_a_uniform_mean(name, method, mean):
    ((_, first),) = rounds(method, q2(name), 1)
    near(first.w, mean)


def test_fedala(name):
    fed = q2(name)
    first, second, third = rounds(FedALA(threshold=0.1, s=100), fed, 3)
    near(first[0].theta, [[0, 0], [0, 0]])
    near(first[1].theta, [[0.1, 0], [0, 0.2]])
    near(first[1].w, [0.075, 0.05])
    near(second[0].ala.W, [[0.9728411847], [0]])
    near(second[0].theta, [[0.075, 0.0486420592], [0.075, 0.2]])
    near(second[1].theta, [[0.1675, 0.0437778533], [0.0675, 0.38]])
    near(second[1].w, [0.1425, 0.12783339])
    near(third[0].ala.W, [[0.9622879666], [0]])
    near(third[0].theta, [[0.1425, 0.1246634848], [0.1425, 0.38]])
    near(third[1].w, [0.20325, 0.2196478522])


def second_reception(name, method):
    """The federation in round 2, with what reception has written down."""
    fed = q2(name)
    ((_, state),) = rounds(method, fed, 1)
    now = fed.at(2)
    method.receive(now, state, now.cohort(2))
    return now


def test_fedala_counts_the_epochs_of_the_initial_stage(name):
    now = second_reception(name, FedALA(threshold=0.1, s=100))
    assert now.ledger.artifacts["ala_init_epochs"].tolist() == [11, 11]
    assert now.ledger.notes == {}


def test_an_initial_stage_that_ends_by_its_cap_is_noted(name):
    """Client 2's weight is clipped to 0, and its losses are then the same for ever; client 1's go on sinking."""
    now = second_reception(name, FedALA(threshold=1e-9, s=100, max_init_epochs=20))
    epochs = now.ledger.artifacts["ala_init_epochs"].tolist()
    assert epochs[0] == 20 > epochs[1]
    assert list(now.ledger.notes.values()) == [
        "in round 2 the initial stage of 1 of 2 clients ended by its cap of 20 epochs: "
        "their losses had not settled (threshold 1e-09)."
    ]


@pytest.mark.parametrize(
    ("p", "eta", "weights", "models"),
    [
        (1, 0.1, [[0.7], [0.52], [0.412], [0.3472]], [[1, 1.4], [1, 1.04], [1, 0.824], [1, 0.6944]]),
        (1, 1.0, [[0], [1], [0], [1]], [[1, 0], [1, 2], [1, 0], [1, 2]]),
        (2, 0.1, [[0.95, 0.7], [0.905, 0.52]], [[0.95, 1.4], [0.905, 1.04]]),
    ],
)
def test_ala_single_steps(name, p, eta, weights, models):
    """theta = (0,0), Theta = (1,2), f = |w - (0.5,0.5)|^2 / 2: W and hat after one step more each time."""
    fed = q2(name, centres=((0.5, 0.5),), n=(30,)).at(2)
    S = fed.cohort(2)
    for steps, (W, hat) in enumerate(zip(weights, models, strict=True), start=1):
        ala = FedALA(p=p, eta=eta, s=100, max_init_epochs=steps)
        mixed, after = ala.initialise(fed, ala.first(fed), S, torch.tensor([[1.0, 2.0]]).double(), torch.zeros(1, 2).double())
        near(after.W, [W])
        near(mixed, [hat])
