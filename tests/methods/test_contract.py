"""The contract suite on every built-in method, with and without ALA: a new one in METHODS is tested by being there."""

from __future__ import annotations

import pytest

from pflbench import methods

pytest.register_assert_rewrite("pflbench.contract.suite")

from pflbench.contract.suite import Contract  # noqa: E402


@pytest.mark.parametrize("name", methods.names(with_ala=True))
class TestContract(Contract):
    pass
