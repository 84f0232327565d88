"""The contract suites for methods and models, small federations for tests, and a template of a method.

They need pytest, which is no dependency of pflbench.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pflbench import methods
from pflbench.errors import UserError
from pflbench.spec import OwnModel

HERE = Path(__file__).parent
# Ignore the pytest settings of the current folder, and leave no cache in it.
_ALONE = ("-c", os.devnull, "--rootdir", str(HERE), "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short")


class _On:
    """A pytest plug-in that passes the tested method or model to a suite."""

    def __init__(self, parameter: str, subject: Any, called: str) -> None:
        self.parameter, self.subject, self.called = parameter, subject, called

    def pytest_generate_tests(self, metafunc: Any) -> None:
        if self.parameter in metafunc.fixturenames:
            metafunc.parametrize(self.parameter, [self.subject], ids=[self.called])


def keeps_the_contract(name: str) -> bool:
    """Whether a method passes the suite. It runs in this process, which knows the plug-ins; pytest prints failures.

    A missing pytest is a UserError.
    """
    methods.load(name)
    return _passes("suite.py", "Contract", _On("name", name, name))


def model_keeps_the_contract(
    name: str, own: OwnModel | None, shape: tuple[int, ...], classes: int, vocabulary: int | None
) -> bool:
    """Whether a model, as `models.find` gives it, passes the suite for samples of a shape."""
    _require_pytest()
    from pflbench.contract.model_suite import ModelSubject

    subject = ModelSubject(name, own, shape, classes, vocabulary)
    return _passes("model_suite.py", "ModelContract", _On("subject", subject, name), "-rfs", "-x", "-W", "ignore::UserWarning")


def _passes(suite: str, cls: str, about: _On, *options: str) -> bool:
    _require_pytest()
    import pytest

    code = pytest.main([str(HERE / suite), *_ALONE, "-o", f"python_classes={cls}", *options], plugins=[about])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return code == pytest.ExitCode.OK


def _require_pytest() -> None:
    try:
        import pytest  # noqa: F401
    except ImportError:
        raise UserError("The contract suite needs pytest, which is not installed.", "Get it: pip install pytest") from None
