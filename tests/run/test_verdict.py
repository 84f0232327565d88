"""What a run makes of what is known of its GPU, and where that is kept."""

from __future__ import annotations

import json

import pytest
import torch
from support.runs import spec

from pflbench.run import verdict
from pflbench.run.execution import Execution
from pflbench.run.verdict import MEMORY, PACKING, PRODUCTS, RESUME, Check, CheckResult, choose, needed

CPU = torch.device("cpu")  # of which the same can be kept as of a GPU
GPU = Execution(device="cuda", pack=None)
PASSED, FAILED = CheckResult("passed", 1e-16, 1e-9), CheckResult("failed", 0.5, 1e-9, "fedavg: w")
REFUSED = CheckResult("not supported", 1e-16, 1e-9, "not captured: a wait")


def findings(run, how, **instead):
    """All passed but those of the names: by what is checked and by the way, as captured=..., or resume=..."""
    return {check: instead.get(check.way or check.what, instead.get(check.what, PASSED)) for check in needed(run, how)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv(verdict.SKIP, raising=False)
    monkeypatch.setenv(verdict.FILE, str(tmp_path / "state" / "gpu.json"))
    monkeypatch.setattr(verdict, "_known", {})
    return tmp_path


# -- what a run does ----------------------------------------------------------------------------------------------------


def test_what_passed_is_believed():
    assert choose(spec(), GPU, findings(spec(), GPU)) == verdict.Belief(GPU, (), True, "passed")


def test_needed_are_the_own_model_the_own_method_and_the_own_floats():
    found = needed(spec("apple"), GPU)
    assert {check.floats for check in found} == {"float64"}
    assert {check.what for check in found} == {PRODUCTS, RESUME, MEMORY, PACKING, "mlp", "apple"}
    single = needed(spec("fedala", dtype="tf32").model_copy(update={"model": "cnn"}), Execution(capture="none"))
    assert {check.floats for check in single} == {"float32"}
    assert {check.what for check in single} == {PRODUCTS, RESUME, MEMORY, "tf32", "cnn, 1 channel", "cnn, 3 channels"}
    assert "captured" not in {check.way for check in single}
    assert {check.way for check in needed(spec(), Execution(engine="loop"))} == {"", "loop"}


@pytest.mark.parametrize(("found", "then"), [(FAILED, "off by 5.0e-01, 1e-09 allowed; fedavg: w"), (REFUSED, "a wait")])
def test_steps_are_captured_only_where_that_passed(found, then):
    belief = choose(spec(), GPU, findings(spec(), GPU, captured=found))
    assert (belief.how.engine, belief.how.capture) == ("auto", "none")
    (note,) = (one for one in belief.notes if "not captured, which is slower" in one)
    assert "mlp, captured in float64" in note or "out of memory, captured in float64" in note
    assert then in note
    asked = Execution(capture="graph")
    warned = choose(spec(), asked, findings(spec(), asked, captured=found))
    assert warned.how == asked
    assert "all the same, as --capture graph says" in warned.notes[0]


def test_clients_go_together_only_where_that_passed():
    how = Execution(chunk=4, pack=None)
    belief = choose(spec(), how, findings(spec(), how, batched=FAILED, captured=FAILED))
    assert (belief.how.engine, belief.how.capture, belief.how.chunk, belief.how.pack) == ("loop", "auto", None, 1)
    assert len(belief.notes) == 1
    assert "one after another, which is slower" in belief.told
    asked = Execution(engine="batched")
    warned = choose(spec(), asked, findings(spec(), asked, batched=FAILED))
    assert warned.how == asked
    assert "all the same, as --engine batched says" in warned.notes[0]


def test_that_something_cannot_be_tried_says_nothing():
    found = {check: REFUSED if check.what in (MEMORY, PACKING) else PASSED for check in needed(spec(), GPU)}
    assert choose(spec(), GPU, found).how == GPU


def test_runs_are_packed_only_where_that_passed():
    found = {check: FAILED if check.what == PACKING else PASSED for check in needed(spec(), GPU)}
    belief = choose(spec(), GPU, found)
    assert (belief.how.pack, belief.how.capture, belief.how.engine) == (1, "auto", "auto")
    asked = Execution(pack=3)
    assert choose(spec(), asked, found).how == asked
    assert "as --pack 3 says" in choose(spec(), asked, found).notes[0]


def test_where_no_checkpoint_is_read_right_a_run_begins_anew():
    belief = choose(spec(), GPU, findings(spec(), GPU, resume=FAILED))
    assert not belief.resumes
    assert belief.how == GPU
    assert "begins anew" in belief.notes[0]


def test_where_nothing_is_right_the_cpu_is_named():
    wrong = dict.fromkeys(("products", "loop", "batched", "captured"), FAILED)
    belief = choose(spec(), GPU, findings(spec(), GPU, **wrong))
    assert belief.how.engine == "loop"
    assert "--device cpu is" in belief.notes[-1]


def test_what_was_not_checked_is_said_and_done():
    belief = choose(spec(), GPU, {})
    assert belief.how == GPU
    assert "checks of this GPU have not been made: `pflbench doctor --gpu`" in belief.told


def test_on_a_cpu_nothing_is_asked():
    assert verdict.believed(spec(), CPU, Execution()) == verdict.Belief(Execution())
    assert verdict.missing([spec()], CPU, Execution()) == []


# -- what is kept -------------------------------------------------------------------------------------------------------


def another_process(monkeypatch):
    monkeypatch.setattr(verdict, "_known", {})


FIRST, SECOND = Check("mlp", "loop", "float64"), Check("apple", "captured", "float32")


def test_a_verdict_is_read_again_and_grows(monkeypatch):
    assert verdict.read(CPU) == ({}, "")
    assert verdict.keep(CPU, {FIRST: PASSED}) == ""
    another_process(monkeypatch)
    assert verdict.keep(CPU, {SECOND: FAILED}) == ""
    another_process(monkeypatch)
    assert verdict.read(CPU) == ({FIRST: PASSED, SECOND: FAILED}, "")
    verdict.keep(CPU, {SECOND: PASSED})
    another_process(monkeypatch)
    assert verdict.read(CPU)[0][SECOND] == PASSED


@pytest.mark.parametrize("word", ["device", "driver", "torch", "code"])
def test_it_is_of_one_device_driver_pytorch_and_code(monkeypatch, folder, word):
    verdict.keep(CPU, {FIRST: PASSED})
    about = verdict.identity(CPU)
    monkeypatch.setattr(verdict, "identity", lambda device: {**about, word: "another"})
    assert verdict.read(CPU) == ({}, "")
    verdict.keep(CPU, {FIRST: FAILED})
    another_process(monkeypatch)
    assert verdict.read(CPU)[0] == {FIRST: FAILED}
    monkeypatch.setattr(verdict, "identity", lambda device: about)
    assert verdict.read(CPU)[0] == {FIRST: PASSED}


def test_old_verdicts_make_room(monkeypatch, folder):
    about = verdict.identity(CPU)
    for code in range(verdict.KEPT + 3):
        monkeypatch.setattr(verdict, "identity", lambda device, code=code: {**about, "code": str(code)})
        verdict.keep(CPU, {FIRST: PASSED})
    kept = json.loads((folder / "state" / "gpu.json").read_text())["verdicts"]
    assert [one["code"] for one in kept] == [str(code) for code in range(verdict.KEPT + 2, 2, -1)]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"verdicts": [{}]}', '{"verdicts": 3}', "\udcff"])
def test_a_file_that_cannot_be_read_is_no_verdict(monkeypatch, folder, content):
    file = folder / "state" / "gpu.json"
    file.parent.mkdir()
    file.write_bytes(content.encode(errors="surrogateescape"))
    found, problem = verdict.read(CPU)
    assert found == {}
    assert f"{file} cannot be read" in problem
    assert verdict.keep(CPU, {FIRST: PASSED}) == "", "it is replaced"
    another_process(monkeypatch)
    assert verdict.read(CPU) == ({FIRST: PASSED}, "")


def test_where_nothing_can_be_written_this_process_still_knows(monkeypatch, folder):
    (folder / "file").write_text("")
    monkeypatch.setenv(verdict.FILE, str(folder / "file" / "gpu.json"))
    assert "could not be kept" in verdict.keep(CPU, {FIRST: PASSED})
    assert verdict.read(CPU)[0] == {FIRST: PASSED}


def test_where_it_lies(monkeypatch, folder):
    monkeypatch.delenv(verdict.FILE)
    monkeypatch.setenv("HOME", str(folder))
    for state in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", state)
        assert verdict.place() == folder / ".local" / "state" / "pflbench" / "gpu.json"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "own"))
    assert verdict.place() == folder / "own" / "pflbench" / "gpu.json"


def test_the_driver_is_found_where_the_system_says_it(monkeypatch, tmp_path):
    told = tmp_path / "version"
    monkeypatch.setattr(verdict, "NVIDIA", told)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: None)
    assert verdict.driver(torch.device("cuda")) == "unknown"
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12080, raising=False)
    assert verdict.driver(torch.device("cuda")) == "CUDA 12.8"
    told.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.2.0\n")
    assert verdict.driver(torch.device("cuda")) == "570.86.15"
    assert verdict.driver(CPU) == "unknown"
