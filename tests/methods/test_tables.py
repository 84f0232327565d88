"""What holds of every method, as tables: what it sends (methods.md 1.18), and which hyperparameters it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from pflbench import methods
from pflbench.contract.small import CLASSES, federation
from pflbench.errors import UserError

# Models up and down of a client that takes part in round 1, in models of its size; B: what lies below the head; H: the head;
# G: B, a row for each class and a valve; C: the user's model and a policy.
SENT = {
    "local": (0, 0), "fedavg": (1, 1), "fedprox": (1, 1), "fedavg-c": (1, 1), "fedprox-c": (1, 1), "per-fedavg": (1, 1),
    "fedrep": ("B", "B"), "fedrep+ala": ("B", "B"), "pfedme": (1, 1), "pfedme+ala": (1, 1), "ditto": (1, 1), "fedphp": (1, 1),
    "partialfed": (1, 1), "fedala": (1, 1), "elastic": (2, 1), "feddeper": (1, 1), "apple": (1, 4),
    "fedamp": (1, 1), "heurfedamp": (1, 1), "fedfomo": (1, 0),
    "fedper": ("B", "B"), "fedper+ala": ("B", "B"), "lg-fedavg": ("H", "H"), "fedbabu": ("B", "B"), "fedbn": (1, 1),
    "fedavg-ft": (1, 1), "apfl": (1, 1), "apfl+ala": (1, 1), "scaffold": (2, 2), "moon": (1, 1), "feddyn": (1, 1),
    "fedrod": (1, 1), "feddbe": (1, 1), "fedpac": (1, 1), "fedpac+ala": (1, 1), "fedas": ("B", "B"), "gpfl": ("G", "G"),
    "fedcp": ("C", "C"),
}  # fmt: skip
# Scalars up and down beside that, by the number of classes and of features.
SCALARS = {
    "fedpac": lambda K, h: (2 * K * h + K + 1, K * h),  # statistics, class means and counts; prototypes
    "fedas": lambda K, h: (1, 0),  # the trace of the Fisher information
}
SETTINGS = {
    "fedphp": [{}, {"variant": "fedala2022"}], "per-fedavg": [{}, {"hessian": "hf"}],
    "fedamp": [{"partial": True}, {"partial": True, "start": "cloud"}, {"partial": True, "self_term": "prev_cloud"}],
    "fedfomo": [{}, {"M": 2}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "sent"), SENT.items())
def test_communication(name: str, sent: tuple[int | str, int | str]) -> None:
    """FedFomo's clients report what models were worth; FedAMP's, where they add their part of the cloud, are told xi_ii."""
    for settings in SETTINGS.get(name, [{}]):
        method = methods.make(methods.spec(name, settings))
        fed = federation(join_ratio=1.0 if name == "apple" else 0.5, around=method.model)
        state, (up, down), seen = method.init(fed), sent, 0
        for t in (1, 2):
            now, S = fed.at(t), fed.cohort(t)
            state = method.update(now, method.receive(now, state, S), S)
            down = min(seen, settings.get("M", seen)) if name == "fedfomo" else down
            expected = np.zeros((fed.size, 4), dtype=np.int64)
            base, model = fed.flat.head.start, fed.flat.head.stop
            K, h = CLASSES, (model - base) // CLASSES - 1
            parts = {"B": base, "H": model - base, "G": base + K * h + 2 * h**2 + 6 * h, "C": model + 2 * h**2 + 6 * h}
            models = [parts[one] if isinstance(one, str) else one * model for one in (up, down)]
            scalars = [down if name == "fedfomo" else 0, t - 1 if settings.get("self_term") == "prev_cloud" else 0]
            expected[S.numpy()] = [*models, *scalars]
            if name == "feddbe" and t == 1:  # all clients send and receive a mean of features
                expected[:, 2:] = h
            if (beside := SCALARS.get(name.removesuffix("+ala"))) is not None:
                expected[S.numpy(), 2:] = beside(K, h)
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
    "scaffold": [{"option": 3}, {"eta_g": 0}],
    "apfl": [{"alpha": 1.1}, {"variant": "2020"}],
    "fedper": [{"personal_blocks": -1}],
    "feddyn": [{"alpha": 0}],
    "fedpac": [{"lam": -1}, {"head_epochs": 0}, {"head_lr": "fast"}, {"min_weight": 1}, {"prototypes": "median"}],
    "fedas": [{"align_lr": -1}, {"align_epochs": -1}, {"align_batch": 0}, {"weights": "uniform"}, {"evaluate": "start"}],
    "fedcp": [{"lam": -1}, {"tau": 0}, {"context": "body"}],
    "gpfl": [{"lam": -1}, {"mu": -1}, {"conditions": "both"}],
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
