"""Methods from outside: files and installed packages, the template, and the suite that tests them."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command import Shell, parsed, write

from pflbench import methods
from pflbench.contract import template
from pflbench.contract.small import EXECUTORS
from pflbench.plugins import methods as outside

HEAD = """
import torch
from pflbench.methods.base import hyper, method
from pflbench.methods.fedavg import FedAvg
"""
OWN = (
    HEAD
    + '''
@method
class Own(FedAvg):
    """FedAvg with an inert hyperparameter."""
    title = "Own"
    inert: float = hyper(1.0, "nothing follows from it")
'''
)
SECOND = OWN.split("\n\n")[1]
RUN = ("run", "-d", "digits", "-r", "1", "-q")


@pytest.fixture(autouse=True)
def _without_plug_ins() -> Iterator[None]:
    with outside.plugged_in([]):
        yield


def test_a_plugin_is_run_listed_and_shown(shell: Shell, tmp_path: Path) -> None:
    file = write("own_method.py", OWN)
    own, fedavg = parsed(shell(*RUN, "--plugin", file, "-m", "own-method", "-m", "fedavg", "--json"))
    assert own["method"] == "own-method"
    assert own["best"] == fedavg["best"]
    assert own["key"] != fedavg["key"]
    listed = parsed(shell("methods", "list", "--plugin", file, "--json"))
    assert listed[-1] == {
        "name": "own-method", "title": "Own", "venue": "AISTATS 2017", "category": "traditional FL", "from": file,
    }  # fmt: skip
    assert len(listed) == len(methods.METHODS) + 1
    shown = parsed(shell("methods", "show", "own-method", "--plugin", file, "--json"))
    assert [(h["name"], h["default"]) for h in shown["hyperparameters"]] == [("inert", 1.0)]
    assert "\n  Own " in shell("table", "accuracy", "-m", "own").out
    assert "Unknown method 'own-method'" in shell.refused("run", "-m", "own-method"), "a plug-in ends with its command"


def test_a_run_records_the_file_it_was_made_with_and_does_not_pass_for_another(shell: Shell, tmp_path: Path) -> None:
    file = write("own.py", OWN)
    command = (*RUN, "--plugin", file, "-m", "own", "--json")
    (first,) = parsed(shell(*command))
    sha256 = hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
    environment = parsed(shell("runs", "show", "1", "--json"))["environment"]
    assert environment["plugin"] == {"file": file, "sha256": sha256, "title": "Own"}
    assert parsed(shell(*command)) == [first], "the same file: the result that is there"
    write(file, OWN + "\n# changed\n")
    assert "has changed since run 1" in shell.refused(*command)
    sweep = ("sweep", "--name", "s", *RUN[1:], "--plugin", file, "-m", "own", "--seeds", "0-1")
    assert "has changed since run 1" in shell.refused(*sweep), "a sweep would mix both"
    (forced,) = parsed(shell(*command, "--force"))
    assert (forced["run"], forced["key"]) == (2, first["key"])
    write(file, OWN.replace('title = "Own"', 'title = "Own"\n    version = 2'))
    (raised,) = parsed(shell(*command))
    assert raised["key"] != first["key"]


def test_several_files_by_the_option_and_by_the_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a folder with a space; a file with several methods says their names."""
    two = OWN.replace('title = "Own"', 'title = "Own"\n    name = "one"')
    two += "\n" + SECOND.replace("Own(", "Other(").replace('title = "Own"', 'title = "Other"\n    name = "two"')
    a, b, c = write("a b/Two_Methods.py", two), write("first.py", OWN), write("Second.py", OWN)
    monkeypatch.setenv(outside.VARIABLE, os.pathsep.join([a, b]))
    listed = parsed(shell("methods", "list", "--plugin", c, "--plugin", b, "--json"))
    assert {row["name"]: row["from"] for row in listed[len(methods.METHODS) :]} == {"one": a, "two": a, "first": b, "second": c}
    assert set(methods.names(with_ala=True)) >= {"one", "one+ala", "first+ala"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("own.py", "import os\n\nos.nonsense\n", "own.py cannot be imported (line 3): AttributeError: module 'os' has no"),
        ("own.py", "a = 1\ndef f(:\n", "own.py cannot be imported (line 2): SyntaxError: invalid syntax"),
        ("own.py", "import pflbench.nonsense\n", "No module named 'pflbench.nonsense'"),
        ("own.py", "raise SystemExit('enough')", "own.py cannot be imported (line 1): SystemExit: enough"),
        ("own.py", HEAD, "own.py has no method."),
        ("own.py", OWN.replace("@method\n", ""), "Own is not decorated with @method"),
        ("My Method.py", OWN, "calls its method Own 'my method'"),
        ("own.py", OWN.replace('title = "Own"', 'name = "own+ala"'), "calls its method Own 'own+ala'"),
        ("own.py", HEAD.replace("fedavg", "base").replace("FedAvg", "Method") + "@method\nclass Own(Method):\n    pass\n",
         "Own does not define deployed, init, receive, update"),
        ("own.py", OWN.replace("inert: float", "inert"), "Own gives inert no type"),
        ("own.py", OWN + "    version = '1.1'\n", "Own has version '1.1', which is no whole number"),
        ("own.py", OWN.replace("inert: float = hyper(1.0", "inert: list = hyper([1, 2]"), "Own gives inert a list as default"),
        ("own.py", OWN.replace("inert:", "model:"), "Own has a hyperparameter 'model', which is the name of"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_in_two_lines(shell: Shell, name: str, text: str, words: str) -> None:
    told = shell.refused("methods", "list", "--plugin", write(name, text))
    assert words in told
    assert name in told


def test_what_a_method_itself_says_of_its_hyperparameters_is_told(shell: Shell) -> None:
    check = "\n    def __post_init__(self):\n        if self.inert > 2:\n            raise ValueError('inert is at most 2')\n"
    told = shell.refused(*RUN, "--plugin", write("own.py", OWN + check), "-m", "own", "--set", "own.inert=3")
    assert told.splitlines()[0] == "Error: own: inert is at most 2."


def test_notes_of_the_beginning_are_told_and_kept(shell: Shell) -> None:
    init = "\n    def init(self, fed):\n        fed.ledger.note('big', 'a large model')\n        return super().init(fed)\n"
    assert "a large model" in shell(*RUN[:-1], "--plugin", write("own.py", OWN + init), "-m", "own").err
    assert parsed(shell("runs", "show", "1", "--json"))["environment"]["notes"]["big"] == "a large model"


def test_a_state_that_no_checkpoint_could_keep_is_refused(shell: Shell) -> None:
    counting = OWN.replace("@method", "import dataclasses\n\n\n@dataclasses.dataclass(frozen=True)\nclass State:\n    w: object\n"
                           "    rounds: int = 0\n\n\n@method")  # fmt: skip
    counting += "\n    def init(self, fed):\n        return State(fed.initial())\n"
    told = shell.refused(*RUN, "--plugin", write("own.py", counting), "-m", "own")
    assert "The state of own has a field 'rounds' that is no tensor" in told


def test_an_error_in_a_method_names_its_line(shell: Shell) -> None:
    """It is no bug of pflbench."""
    typo = OWN + "\n    def update(self, fed, s, S):\n        return thta_S\n"
    line = len(typo.splitlines())
    told = shell.refused(*RUN, "--plugin", write("typo.py", typo), "-m", "typo")
    assert f"typo.py, line {line}: NameError: name 'thta_S' is not defined.\nThe error is in your own code" in told


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("    def deployed(self, s):\n        return None\n", "'NoneType' object has no attribute"),
        ("    def receive(self, fed, s):\n        return s\n", "takes 3 positional arguments but 4 were given"),
    ],
)
def test_a_wrong_return_value_or_signature_is_no_bug_of_pflbench(shell: Shell, wrong: str, words: str) -> None:
    told = shell.refused(*RUN, "--plugin", write("own.py", f"{OWN}\n{wrong}"), "-m", "own")
    assert words in told
    assert "where pflbench uses your own code: probably a signature or a return value there is wrong. `pflbench methods" in told


def test_the_line_of_an_error_is_told_where_other_runs_go_on(shell: Shell) -> None:
    typo = OWN + "\n    def update(self, fed, s, S):\n        return thta_S\n"
    told = shell(*RUN, "--keep-going", "--plugin", write("typo.py", typo), "-m", "typo")
    assert (told.code, f"typo.py, line {len(typo.splitlines())}: NameError" in told.err) == (2, True)


def test_a_missing_file_and_a_name_given_twice(shell: Shell) -> None:
    assert "nowhere.py cannot be read: No such file" in shell.refused(*RUN, "-m", "fedavg", "--plugin", "nowhere.py")
    a, b = write("a/own.py", OWN), write("b/own.py", OWN)
    told = shell.refused("methods", "show", "own", "--plugin", a, "--plugin", b)
    assert f"'own' stands for several methods: of {a} and of {b}" in told
    told = shell.refused(*RUN, "-m", "fedavg", "--plugin", write("fedavg.py", OWN))
    assert "'fedavg' stands for several methods: built into pflbench and of fedavg.py" in told


@pytest.mark.slow
def test_ala_plugs_in_where_a_method_loads_what_it_received(shell: Shell) -> None:
    file = write("own.py", OWN)
    (own,) = parsed(shell(*RUN, "--plugin", file, "-m", "own", "--ala", "--json"))
    (fedala,) = parsed(shell(*RUN, "-m", "fedala", "--json"))
    assert (own["method"], own["best"]) == ("own+ala", fedala["best"])
    deaf = OWN + "\n    def receive(self, fed, s, S):\n        return s\n"
    told = shell.refused(*RUN, "--plugin", write("deaf.py", deaf), "-m", "deaf+ala")
    assert "Own does not take over a received model" in told
    mute = OWN + "\n    def update(self, fed, s, S):\n        fed.sgd(fed.load(fed.rows(s.w, S), S), S)\n        return s\n"
    told = shell.refused(*RUN, "--plugin", write("mute.py", mute), "-m", "mute+ala")
    assert "Own collects no trained model" in told
    told = shell.refused(*RUN, "--plugin", write("eta.py", OWN.replace("inert:", "eta:")), "-m", "eta+ala")
    assert "both have a hyperparameter eta" in told


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with three methods, of which one is broken and one has the name of a built-in one."""
    site = tmp_path / "site"
    info = site / "pfl_extras-1.2.dist-info"
    write(str(info / "METADATA"), "Metadata-Version: 2.1\nName: pfl-extras\nVersion: 1.2\n")
    points = "extra = pfl_extras:Own\nbroken = pfl_extras.broken:Own\nfedavg = pfl_extras.methods:Own\n"
    write(str(info / "entry_points.txt"), f"[pflbench.methods]\n{points}")
    write(str(site / "pfl_extras" / "__init__.py"), "from .methods import Own\n")
    write(str(site / "pfl_extras" / "methods.py"), OWN)
    write(str(site / "pfl_extras" / "broken.py"), "1 / 0\n")
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [name for name in sys.modules if name.startswith("pfl_extras")]:
        del sys.modules[name]


def test_methods_of_installed_packages(shell: Shell, package: Path) -> None:
    assert methods.names()[-2:] == ["broken", "extra"]
    assert not [name for name in sys.modules if name.startswith("pfl_extras")], "a name is known without an import"
    listed = {row["name"]: row for row in parsed(shell("methods", "list", "--json"))[len(methods.METHODS) :]}
    assert listed["extra"]["title"] == "Own"
    assert listed["extra"]["venue"] == "AISTATS 2017"
    assert {row["from"] for row in listed.values()} == {"pfl-extras 1.2"}
    (own,) = parsed(shell(*RUN, "-m", "extra", "--json"))
    assert own["method"] == "extra"
    assert parsed(shell("runs", "show", "1", "--json"))["environment"]["plugin"] == {
        "package": "pfl-extras 1.2", "entry point": "pfl_extras:Own", "title": "Own",
    }  # fmt: skip
    assert "Method 'broken' of pfl-extras 1.2 cannot be imported: ZeroDivisionError" in shell.refused("methods", "show", "broken")
    told = shell.refused(*RUN, "-m", "fedavg")
    assert "'fedavg' stands for several methods: built into pflbench and of pfl-extras 1.2" in told


def test_a_new_method_works_and_keeps_the_contract(tmp_path: Path, shell: Shell) -> None:
    done = shell("methods", "new", "fed-mix", "-o", "mine")
    assert done.out.split() == ["mine/fed_mix.py", "mine/test_fed_mix.py"]
    assert "pflbench methods test fed-mix --plugin mine/fed_mix.py" in done.err
    assert "new" not in "".join(path.read_text().lower() for path in Path("mine").iterdir()).replace("a new state", "")
    tested = shell("methods", "test", "fed-mix", "--plugin", "mine/fed_mix.py")
    assert tested.code == 0, tested.out
    assert "29 passed" in tested.out
    assert [path.name for path in tmp_path.iterdir()] == ["mine"], "nothing is left behind"
    told = shell.refused("methods", "new", "fed-mix", "-o", "mine")
    assert "fed_mix.py exists already; nothing was written" in told


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FedMix", "cannot be the name of a method"),
        ("fedmix+ala", "cannot be the name of a method"),
        ("ditto", "There is a method 'ditto' already"),
        ("random", "would hide Python's or an installed 'random'"),
        ("lambda", "would hide Python's"),
    ],
)
def test_a_new_method_needs_a_name_of_its_own(shell: Shell, tmp_path: Path, name: str, words: str) -> None:
    assert words in shell.refused("methods", "new", name)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_template_s_own_test_passes_and_can_fail(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one mixes with the wrong weight, which shows in no number where both are 1/2."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # pytest adds the folder of a test, and leaves it there
    _, test = template.write("fed-mix", Path())
    method, test_of_wrong = template.write("fed-wrong", Path())
    method.write_text(method.read_text().replace("(1 - self.alpha)", "self.alpha"))
    alone = ("-c", os.devnull, "--rootdir", str(Path.cwd()), "-p", "no:cacheprovider", "-q", "--tb=no")
    code = pytest.main([str(test), str(test_of_wrong), *alone, "-k", "not Contract"])
    told = capsys.readouterr().out
    assert (code, f"{len(EXECUTORS)} failed, " in told) == (1, True), told
    assert told.count("test_fed_wrong.py::test_with_alpha_1_it_is_fedavg") == len(EXECUTORS)


UPDATE = "\n    def update(self, fed, s, S):\n        s = super().update(fed, s, S)\n"
BROKEN = {
    "a leak between clients": (
        UPDATE.replace("super().update(", "Ditto.update(self, ") + "        return replace(s, v=s.v + 0.01 * s.v.mean(0))\n",
        ["test_who_does_not_take_part_is_left_alone"],
    ),
    "the global generator": (
        UPDATE + "        return replace(s, w=s.w + 1e-3 * torch.randn_like(s.w))\n",
        ["test_all_chance_depends_on_seed_round_and_client_alone"],
    ),
    "memory beside the state": (
        "\n    def update(self, fed, s, S):\n        MEMORY.append(super().update(fed, s, S).w)\n"
        "        return replace(s, w=torch.stack(MEMORY[-9:]).mean(0))\n",
        ["test_the_same_seed_gives_the_same_numbers", "test_checkpoint_and_restore"],
    ),
    "an average of what was not sent": (
        "\n    def update(self, fed, s, S):\n        theta_S = fed.sgd(fed.rows(s.w, S), S)\n"
        "        fed.collect(theta_S, S, since=s.w)\n        return replace(s, w=fed.mean(theta_S, S))\n",
        ["test_the_server_works_with_what_it_gets"],
    ),
    "the cohort of reception": (
        "\n    def receive(self, fed, s, S):\n        MEMORY[:] = [S]\n        return super().receive(fed, s, S)\n"
        "\n    def update(self, fed, s, S):\n        return replace(s, w=fed.mean(fed.sgd(fed.rows(s.w, S), S), MEMORY[0]))\n",
        ["test_clients_may_fail_after_reception"],
    ),
    "another type than at first": (
        UPDATE + "        return replace(s, w=s.w.double())\n",
        ["test_checkpoint_and_restore"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", BROKEN)
def test_a_broken_method_fails_the_test_of_what_it_breaks(shell: Shell, monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    code, failing = BROKEN[defect]
    text = "from dataclasses import replace\nfrom pflbench.methods.ditto import Ditto\nMEMORY = []\n" + OWN + code
    file = write("own.py", text.replace("Own(FedAvg)", "Own(Ditto)") if "Ditto." in code else text)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'not executors and not tiny'")
    done = shell("methods", "test", "own", "--plugin", file)
    assert done.code == 1
    assert set(failing) <= set(re.findall(r"^FAILED \S+::Contract::(\w+)\[own", done.out, re.M)), done.out


def test_the_suite_needs_a_method_and_pytest(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Did you mean 'fedavg'?" in shell.refused("methods", "test", "fedvg")
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert "pip install pytest" in shell.refused("methods", "test", "fedavg")
