"""What every method must keep, built in or not: the contract suite, the small federations it uses, a template to begin with.

Needs pytest, which is no dependency of pflbench: `suite` imports it, and `keeps_the_contract`, which runs that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pflbench import methods
from pflbench.errors import UserError

SUITE = Path(__file__).with_name("suite.py")
# Neither the settings of the project in whose folder this runs, nor a cache left there.
_ALONE = ("-c", os.devnull, "--rootdir", str(SUITE.parent), "-p", "no:cacheprovider", "-o", "python_classes=Contract")


class _On:
    """A pytest plug-in that says which method the suite is about."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pytest_generate_tests(self, metafunc: Any) -> None:
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", [self.name])


def keeps_the_contract(name: str) -> bool:
    """Whether a method passes the whole suite, in this process, where what is plugged in is known; pytest prints what fails.

    A missing pytest is a UserError.
    """
    methods.load(name)
    try:
        import pytest
    except ImportError:
        raise UserError("The contract suite needs pytest, which is not installed.", "Get it: pip install pytest") from None
    code = pytest.main([str(SUITE), *_ALONE, "-q", "--no-header", "--tb=short"], plugins=[_On(name)])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return code == pytest.ExitCode.OK
