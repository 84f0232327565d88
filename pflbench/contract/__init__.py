"""What every method and every model must keep, built in or not: the contract suites, small federations, a template to begin with.

Needs pytest, which is no dependency of pflbench: the suites import it, and what runs them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pflbench import methods
from pflbench.errors import UserError
from pflbench.spec import OwnModel

HERE = Path(__file__).parent
# Neither the settings of the project in whose folder this runs, nor a cache left there.
_ALONE = ("-c", os.devnull, "--rootdir", str(HERE), "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short")


class _On:
    """A pytest plug-in that says what a suite is about."""

    def __init__(self, parameter: str, subject: Any, called: str) -> None:
        self.parameter, self.subject, self.called = parameter, subject, called

    def pytest_generate_tests(self, metafunc: Any) -> None:
        if self.parameter in metafunc.fixturenames:
            metafunc.parametrize(self.parameter, [self.subject], ids=[self.called])


def keeps_the_contract(name: str) -> bool:
    """Whether a method passes the whole suite, in this process, where what is plugged in is known; pytest prints what fails.

    A missing pytest is a UserError.
    """
    methods.load(name)
    return _passes("suite.py", "Contract", _On("name", name, name))


def model_keeps_the_contract(
    name: str, own: OwnModel | None, shape: tuple[int, ...], classes: int, vocabulary: int | None
) -> bool:
    """The same of a model, as `models.find` gives it, for samples of a shape."""
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
