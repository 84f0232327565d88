"""The contract suites for methods and models, small federations for tests, and a template of a method.

They need pytest, which is no dependency of pflbench.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pflbench import methods
from pflbench.errors import UserError
from pflbench.spec import OwnModel

HERE = Path(__file__).parent
# Ignore the pytest settings of the current folder, and leave no cache in it.
_ALONE = ("-c", os.devnull, "--rootdir", str(HERE), "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short")


def keeps_the_contract(name: str) -> bool:
    """Whether a method passes the suite. It runs in this process, which knows the plug-ins; pytest prints failures.

    A missing pytest is a UserError.
    """
    methods.load(name)
    return _passes("suite.py", "Contract", _Tested("name", name, name))


def model_keeps_the_contract(
    name: str, own: OwnModel | None, shape: tuple[int, ...], classes: int, vocabulary: int | None
) -> bool:
    """Whether a model, as `models.find` gives it, passes the suite for samples of a shape."""
    _pytest()
    from pflbench.contract.model_suite import ModelSubject

    subject = ModelSubject(name, own, shape, classes, vocabulary)
    tested = _Tested("subject", subject, name)
    return _passes("model_suite.py", "ModelContract", tested, "-rfs", "-x", "-W", "ignore::UserWarning")


@dataclass(eq=False)  # up to pytest 9.0 a plug-in must be hashable
class _Tested:
    """A plug-in of pytest: the one argument of a suite's tests."""

    parameter: str
    value: Any
    name: str

    def pytest_generate_tests(self, metafunc: Any) -> None:
        if self.parameter in metafunc.fixturenames:
            metafunc.parametrize(self.parameter, [self.value], ids=[self.name])


def _passes(suite: str, cls: str, tested: _Tested, *options: str) -> bool:
    pytest = _pytest()
    code = pytest.main([str(HERE / suite), *_ALONE, "-o", f"python_classes={cls}", *options], plugins=[tested])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return bool(code == pytest.ExitCode.OK)


def _pytest() -> Any:
    try:
        return import_module("pytest")
    except ImportError:
        raise UserError("The contract suite needs pytest, which is not installed.", "Get it: pip install pytest") from None
