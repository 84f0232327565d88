"""What a file of the user's imports from its own folder is part of what it is: its hash follows these files, too."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command import Shell, parsed, write

from pflbench import plugins
from pflbench.plugins.imports import imported, sha256_of

NETS = """
import json
from torch import nn
{imports}


def layers(input_shape, classes):
    {lazily}
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))
"""
WIDTH = "WIDTH = {}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, where Python finds modules; none of them stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("helper", "other", "parts", "installed")]:
        del sys.modules[name]


def hashed(changed: str, imports: str = "", lazily: str = "pass", **others: str) -> list[str]:
    """Of nets.py, while another file is written in two ways. others: what stands in further files, by their paths."""
    write("nets.py", NETS.format(imports=imports, lazily=lazily))
    for path, text in others.items():
        write(path, text)
    found = []
    for width in (16, 8):
        write(changed, WIDTH.format(width))
        found.append(sha256_of(Path("nets.py"), Path("nets.py").read_bytes()))
    return found


@pytest.mark.parametrize(
    ("changed", "imports", "lazily", "others"),
    [
        ("helper.py", "from helper import WIDTH", "", {}),
        ("helper.py", "import helper as h; WIDTH = h.WIDTH", "", {}),
        ("helper.py", "", "from helper import WIDTH", {}),
        ("helper.py", "from other import WIDTH", "", {"other.py": "from helper import *\n"}),
        ("parts/widths.py", "from parts.widths import WIDTH", "", {}),  # no __init__.py
        ("parts/widths.py", "from parts import WIDTH", "", {"parts/__init__.py": "from .widths import WIDTH\n"}),
        ("parts/widths.py", "from parts import WIDTH", "", {"parts/__init__.py": "from . import widths; WIDTH = widths.WIDTH\n"}),
        ("parts/__init__.py", "from parts.deep.er import WIDTH", "", {"parts/deep/er.py": "from .. import WIDTH\n"}),
    ],
)
def test_the_hash_follows_what_is_imported(folder: Path, changed: str, imports: str, lazily: str, others: dict[str, str]) -> None:
    first, second = hashed(changed, imports, lazily or "pass", **others)
    assert first != second
    write(changed, WIDTH.format(16))
    assert sha256_of(Path("nets.py"), Path("nets.py").read_bytes()) == first, "and nothing else"
    plugins.execute(Path("nets.py"))[0].layers((1, 8, 8), 10)  # Python finds it, too
    assert sha256_of(Path("nets.py"), Path("nets.py").read_bytes()) == first, "loaded or not"


@pytest.mark.parametrize(
    ("changed", "imports"),
    [
        ("unrelated.py", "WIDTH = 16"),
        ("sub/helper.py", "try:\n    from helper import WIDTH\nexcept ImportError:\n    WIDTH = 16"),  # not to be found
        (".venv/site-packages/installed.py", "from installed import WIDTH"),
    ],
)
def test_a_file_that_imports_nothing_of_its_own_keeps_its_hash(folder: Path, changed: str, imports: str) -> None:
    sys.path.append(str(folder / ".venv/site-packages"))  # the fixture restores it
    found = hashed(changed, imports)
    assert found == [hashlib.sha256(Path("nets.py").read_bytes()).hexdigest()] * 2
    plugins.execute(Path("nets.py"))[0].layers((1, 8, 8), 10)


def test_pflbench_is_no_helper_of_a_file_beside_it(folder: Path) -> None:
    """Nor is Python, wherever they lie."""
    for place in (Path(plugins.__file__).parents[1], Path(json.__file__).parents[1]):
        assert imported(place, b"import json, pflbench.plugins") == {}


def test_a_changed_helper_makes_other_runs(folder: Path, shell: Shell) -> None:
    """Of both files that share it."""
    write("nets.py", NETS.format(imports="from helper import WIDTH", lazily="pass"))
    write("more.py", NETS.format(imports="import helper; WIDTH = helper.WIDTH", lazily="pass"))
    command = ("run", "-m", "fedavg", "-d", "digits", "-r", "1", "--clients", "2", "-q", "--json")
    numbers = []
    for width in (16, 16, 8):
        write("helper.py", WIDTH.format(width))
        sys.modules.pop("helper", None)  # another command
        numbers.append([parsed(shell(*command, "--model", f"{file}:layers"))[0]["run"] for file in ("nets.py", "more.py")])
    assert numbers == [[1, 2], [1, 2], [3, 4]]
