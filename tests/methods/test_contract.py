"""The contract suite on every built-in method, with and without ALA: a new one in METHODS is tested by being there."""

from __future__ import annotations

import pytest
from support.cases import rest_slow

from pflbench import methods
from pflbench.contract.suite import AGREE, Contract


@pytest.mark.parametrize("name", rest_slow(methods.names(with_ala=True), *methods.METHODS, "fedavg+ala"))
class TestContract(Contract):
    """What `make test` leaves out differs by the model, the type of the numbers, whole batches, or ALA that is plugged in."""

    @pytest.mark.parametrize(
        ("model", "join_ratio", "engines"), [AGREE[0], *(pytest.param(*more, marks=pytest.mark.slow) for more in AGREE[1:])]
    )
    def test_all_executors_agree(self, name: str, model: str, join_ratio: float, engines: tuple[str, ...]) -> None:
        super().test_all_executors_agree(name, model, join_ratio, engines)

    @pytest.mark.slow
    def test_all_executors_agree_in_single_precision(self, name: str) -> None:
        super().test_all_executors_agree_in_single_precision(name)

    @pytest.mark.slow
    def test_a_schedule_is_followed(self, name: str) -> None:
        super().test_a_schedule_is_followed(name)

    @pytest.mark.parametrize("drop_last", [pytest.param("always", marks=pytest.mark.slow), "never"])
    def test_all_executors_agree_on_partial_batches(self, name: str, drop_last: str) -> None:
        super().test_all_executors_agree_on_partial_batches(name, drop_last)
