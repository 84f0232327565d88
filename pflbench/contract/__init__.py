"""The contract suites for methods and models, small federations for tests, and a template of a method.

They need pytest, which is no dependency of pflbench.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
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
    return _passes("suite.py", "Contract", "name", name, name)


def model_keeps_the_contract(
    name: str, own: OwnModel | None, shape: tuple[int, ...], classes: int, vocabulary: int | None
) -> bool:
    """Whether a model, as `models.find` gives it, passes the suite for samples of a shape."""
    _pytest()
    from pflbench.contract.model_suite import ModelSubject

    subject = ModelSubject(name, own, shape, classes, vocabulary)
    return _passes("model_suite.py", "ModelContract", "subject", subject, name, "-rfs", "-x", "-W", "ignore::UserWarning")


def _passes(suite: str, cls: str, parameter: str, subject: Any, name: str, *options: str) -> bool:
    def parametrize(metafunc: Any) -> None:
        if parameter in metafunc.fixturenames:
            metafunc.parametrize(parameter, [subject], ids=[name])

    pytest, plugin = _pytest(), SimpleNamespace(pytest_generate_tests=parametrize)
    code = pytest.main([str(HERE / suite), *_ALONE, "-o", f"python_classes={cls}", *options], plugins=[plugin])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return bool(code == pytest.ExitCode.OK)


def _pytest() -> Any:
    try:
        return import_module("pytest")
    except ImportError:
        raise UserError("The contract suite needs pytest, which is not installed.", "Get it: pip install pytest") from None
