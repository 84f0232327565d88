"""What holds of every method, as tables: what it sends (methods.md 1.18), and which hyperparameters it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from pflbench import methods
from pflbench.contract.small import federation
from pflbench.errors import UserError

# Models up and down of a client that takes part in round 1, in models of its size; B: what lies below the head.
SENT = {
    "local": (0, 0), "fedavg": (1, 1), "fedprox": (1, 1), "fedavg-c": (1, 1), "fedprox-c": (1, 1), "per-fedavg": (1, 1),
    "fedrep": ("B", "B"), "fedrep+ala": ("B", "B"), "pfedme": (1, 1), "pfedme+ala": (1, 1), "ditto": (1, 1), "fedphp": (1, 1),
    "partialfed": (1, 1), "fedala": (1, 1), "elastic": (2, 1), "feddeper": (1, 1), "apple": (1, 4),
    "fedamp": (1, 1), "heurfedamp": (1, 1), "fedfomo": (1, 0),
}  # fmt: skip
SETTINGS = {
    "fedphp": [{}, {"variant": "fedala2022"}], "per-fedavg": [{}, {"hessian": "hf"}],
    "fedamp": [{"partial": True}, {"partial": True, "start": "cloud"}, {"partial": True, "self_term": "prev_cloud"}],
    "fedfomo": [{}, {"M": 2}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "sent"), SENT.items())
def test_communication(name: str, sent: tuple[int | str, int | str]) -> None:
    """FedFomo's clients report what models were worth; FedAMP's, where they add their part of the cloud, are told xi_ii."""
    for settings in SETTINGS.get(name, [{}]):
        fed, method = federation(join_ratio=1.0 if name == "apple" else 0.5), methods.make(methods.spec(name, settings))
        state, (up, down), seen = method.init(fed), sent, 0
        for t in (1, 2):
            now, S = fed.at(t), fed.cohort(t)
            state = method.update(now, method.receive(now, state, S), S)
            down = min(seen, settings.get("M", seen)) if name == "fedfomo" else down
            expected = np.zeros((fed.size, 4), dtype=np.int64)
            models = [fed.flat.head.start if one == "B" else int(one) * fed.flat.size for one in (up, down)]
            scalars = [down if name == "fedfomo" else 0, t - 1 if settings.get("self_term") == "prev_cloud" else 0]
            expected[S.numpy()] = [*models, *scalars]
            assert np.array_equal(now.ledger.traffic, expected)
            seen = len({*S.tolist(), *fed.cohort(1).tolist()})


IMPOSSIBLE = {
    "apple": [{"L": 1.5}, {"M": 0}, {"momentum": 1}, {"eta_2": -1}, {"scheduler": "linear"}],
    "elastic": [{"tau": -0.1}, {"mu": 1.1}, {"holdout": 1}, {"eta_s": -1}],
    "fedamp": [{"sigma": 0}, {"alpha_k": 0}],
    "heurfedamp": [{"xi_ii": 1.1}],
    "feddeper": [{"rho": 1}, {"rho": -0.1}, {"lam": 0.4}, {"lam": 1.1}, {"aggregation": "median"}],
    "fedfomo": [{"M": 0}, {"M": "some"}, {"val_ratio": 1}, {"epsilon": 0}, {"evaluate": "both"}],
    "fedphp": [{"mu": 1.1}, {"lam": -0.1}, {"kernel": "linear"}, {"variant": "2025"}],
    "fedavg-c": [{"finetune_epochs": -1}, {"finetune_cap": 0}, {"finetune_stop": "never"}],
    "partialfed": [{"f_m": 0}, {"f_s": -1}, {"tau": 0}, {"tau_min": 0}, {"unit": "network"}, {"tau_decay": 1.5}],
    "per-fedavg": [{"alpha": -1}, {"beta": "fast"}, {"delta": 0}, {"passes": 0}, {"hessian": "exact"}],
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_values_are_refused(name: str) -> None:
    for wrong in IMPOSSIBLE[name]:
        with pytest.raises(UserError, match=rf"^{name}\.{next(iter(wrong))} = .* is not possible"):
            methods.spec(name, wrong)


@pytest.mark.parametrize("name", methods.METHODS)
def test_a_card_has_the_defaults_of_the_specification(name: str) -> None:
    """Tables read them without importing the method."""
    assert dict(methods.card(name).hyperparameters) == methods.spec(name, {}).hyperparameters
