"""`pflbench methods new`: a method that works and its test, to begin with. The template is the two files beside this one."""

from __future__ import annotations

import keyword
from importlib.util import find_spec
from pathlib import Path

from pflbench.errors import UserError
from pflbench.methods import METHODS
from pflbench.plugins import methods as plugins

_HERE = Path(__file__).parent


def write(name: str, folder: Path) -> tuple[Path, Path]:
    """The paths of the new method and of its test. A name that is taken or impossible, or a file that is there: UserError."""
    if not plugins.is_name(name):
        raise UserError(f"'{name}' cannot be the name of a method.", plugins.NAMES)
    if name in METHODS or plugins.find(name) is not None:
        raise UserError(f"There is a method '{name}' already.", "Choose another name.")
    module = name.replace("-", "_")
    method, test = folder / f"{module}.py", folder / f"test_{module}.py"
    for path in (method, test):
        if path.exists():
            raise UserError(f"{path} exists already; nothing was written.", "Choose another name, or another folder with -o.")
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise UserError(f"A file {module}.py would hide Python's or an installed '{module}'.", "Choose another name.")
    folder.mkdir(parents=True, exist_ok=True)
    title = "".join(part.capitalize() for part in name.split("-"))
    for path, template in ((method, "new_method.py"), (test, "test_new_method.py")):
        text = (_HERE / template).read_text(encoding="utf-8")
        text = text.replace("new-method", name).replace("new_method", module).replace("NewMethod", title)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return method, test
