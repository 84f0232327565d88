"""A stored run that is trained again has the same rows; whatever was changed in it, or in a bundle, is found."""

from __future__ import annotations

import json
import math
import random
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from support.command import Shell, parsed
from support.postgres import Server
from support.raw_sql import sql

from pflbench import plugins
from pflbench.cli import main
from pflbench.run import federation_data
from pflbench.spec import RunSpec
from pflbench.store import arrays, measures, partitions
from pflbench.store import database as db
from pflbench.store.exchange import bundle

RUN = ("run", "-m", "fedala", "-m", "ditto", "-d", "digits", "--clients", "4", "-r", "5", "--join-ratio", "0.5", "-q",
       "--metrics-every", "2")  # fmt: skip
NUMBERS = "SELECT accuracy, test_loss, train_loss, correct, total, loss FROM round JOIN client_round USING (run_id, round)"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run 1 is FedALA, run 2 Ditto, which has a series; 5 rounds, with a rate that depends on their number."""
    path = tmp_path_factory.mktemp("trained") / "pflbench.db"
    assert main([*RUN, "--lr-schedule", "cosine", "--save-artifacts-every", "2", "--db", str(path)]) == 0
    return path


@pytest.fixture
def mine(trained: Path, shell: Shell) -> Path:
    return Path(shutil.copy(trained, "pflbench.db"))


@pytest.fixture
def paper(mine: Path, shell: Shell) -> Path:
    assert shell("runs", "bundle", "1", "2", "-o", "paper.db").code == 0
    return Path("paper.db")


def signed(path: Path) -> None:
    """What an attacker does who knows how the hashes are made."""
    engine = db.connect(db.to_url(str(path)))
    bundle._sign(engine)
    engine.dispose()


def put_correct(path: Path, run: int, t: int, client: int) -> tuple[int, int]:
    """One more (or fewer) right prediction, and a round that agrees with it; returns the numbers before and after."""
    ((before, total),) = sql(
        path, f"SELECT correct, total FROM client_round WHERE (run_id, round, client) = ({run}, {t}, {client})"
    )
    after = before + 1 if before < total else before - 1
    at = f"WHERE run_id = {run} AND round = {t}"
    sql(path, f"UPDATE client_round SET correct = {after} {at} AND client = {client}")
    found = sql(path, f"SELECT correct, total FROM client_round {at}")
    shares = [correct / total for correct, total in found]
    mean = sum(shares) / len(shares)
    deviation = math.sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))
    accuracy = sum(correct for correct, _ in found) / sum(total for _, total in found)
    sql(path, f"UPDATE round SET accuracy = ?, accuracy_mean = ?, accuracy_std = ? {at}", accuracy, mean, deviation)
    return before, after


def test_the_same_run_has_the_same_bits(mine: Path, shell: Shell) -> None:
    before, stored = sha256(mine.read_bytes()).digest(), sql(mine, "SELECT count(*) FROM client_round WHERE run_id = 1")[0][0]
    done = shell("runs", "reproduce", "1", "-q", "--workers", "2")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"Run 1, FedALA on Digits: all 6 rounds and {stored} client rows are equal bit for bit.\n"
    assert sha256(mine.read_bytes()).digest() == before, "nothing is written to it"
    assert list(Path().glob("*")) == [mine]


def test_fewer_rounds_are_the_first_ones_of_the_same_specification(mine: Path, shell: Shell) -> None:
    """The cosine's rate in round 2 is another one in a run of 2 rounds."""
    told = shell("runs", "reproduce", "2", "-q", "--rounds", "2").out
    assert told == "Run 2, Ditto on Digits: rounds 0 to 2 of 5 and 6 client rows are equal bit for bit.\n"
    sql(mine, "UPDATE round SET accuracy = 0 WHERE run_id = 2 AND round = 3")
    assert shell("runs", "reproduce", "2", "-q", "--rounds", "2").out == told
    assert shell("runs", "reproduce", "2", "-q", "--rounds", "3").code == 2


@pytest.mark.parametrize(
    ("run", "change", "told"),
    [
        (1, "UPDATE round SET accuracy = 0.25 WHERE run_id = 1 AND round = 3", "round 3, accuracy: 0.25 stored, 0."),
        (1, "UPDATE round SET train_loss = train_loss + 1e-15 WHERE run_id = 1 AND round = 4", "round 4, train loss: "),
        (1, "UPDATE client_round SET correct = 0 WHERE run_id = 1 AND round = 5 AND correct > 0", "round 5, correct of client "),
        (1, "DELETE FROM client_round WHERE run_id = 1 AND round = 2", "round 2, correct of client "),
        (2, "UPDATE series SET accuracy = 1 WHERE run_id = 2 AND round = 4", "round 4, accuracy of global: 1.0 stored, 0."),
        (1, "UPDATE run SET spec = json_set(spec, '$.seed', 7) WHERE id = 1", "round 0, "),
    ],
)
def test_a_changed_row_is_found(mine: Path, shell: Shell, run: int, change: str, told: str) -> None:
    sql(mine, change)
    done = shell("runs", "reproduce", str(run), "-q")
    assert done.code == 2
    (line,) = done.out.splitlines()
    assert f"differs. First in {told}" in line
    found = parsed(shell("runs", "reproduce", str(run), "-q", "--json"), code=2)
    assert found["difference"].startswith(told)


def test_a_changed_measure_is_found(mine: Path, shell: Shell) -> None:
    """The AUC of a client in the last round, which is measured although it is no second one."""
    engine = db.connect(db.to_url(str(mine)))
    before = arrays.read(engine, 1, measures.NAME, [5])[5]
    engine.dispose()
    changed = before.copy()
    changed[3, 0] = 0.25
    sql(mine, "UPDATE artifact SET data = ? WHERE (run_id, round, name) = (1, 5, 'measures')", arrays.pack_array(changed))
    done = shell("runs", "reproduce", "1", "-q")
    assert (done.code, f"First in round 5, AUC of client 2: 0.25 stored, {before[3, 0]} now." in done.out) == (2, True)


@pytest.mark.slow
def test_another_executor_rounds_otherwise_and_is_named(mine: Path, shell: Shell) -> None:
    exact = shell("runs", "reproduce", "1", "-q", "--engine", "batched")
    assert exact.code == 2
    assert exact.err == "Note: run 1, not as recorded: executor batched (was loop).\n"
    near = shell("runs", "reproduce", "1", "-q", "--engine", "batched", "--tolerance", "1e-4")
    assert (near.code, "are equal within 0.0001." in near.out) == (0, True)
    sql(mine, "UPDATE round SET test_loss = test_loss * 1.001 WHERE run_id = 1 AND round = 2")
    assert "First in round 2, test loss" in shell("runs", "reproduce", "1", "-q", "--tolerance", "1e-4").out
    assert shell("runs", "reproduce", "1", "-q", "--tolerance", "1e-2").code == 0


def test_other_versions_are_named(mine: Path, shell: Shell) -> None:
    sql(
        mine,
        "UPDATE run SET environment = json_set(environment, '$.packages.torch', '1.0', '$.commit', 'abc'), device = 'Abacus'",
    )
    told = shell("runs", "reproduce", "1", "-q", "--rounds", "0").err
    assert all(text in told for text in ("torch ", "(was 1.0)", "(was abc)", "(was Abacus)"))
    assert "numpy" not in told


def test_a_bundle_is_a_database_of_these_runs_alone(mine: Path, shell: Shell) -> None:
    done = shell("runs", "bundle", "2", "2", "-o", "paper.db")
    (words,) = [line.split() for line in done.out.splitlines()]
    assert words[:4] == ["paper.db:", "1", "run,", "SHA-256"]
    assert sql(Path("paper.db"), NUMBERS) == sql(mine, f"{NUMBERS} WHERE run_id = 2")
    assert sql(Path("paper.db"), "SELECT count(*) FROM artifact") == sql(mine, "SELECT count(*) FROM artifact WHERE run_id = 2")
    assert shell("db", "check", "--db", "paper.db").code == 0
    assert "Ditto" in shell("table", "accuracy", "--db", "paper.db").out
    assert "1 run new" in shell("import", "paper.db", "--db", "theirs.db").out
    assert [path.name for path in Path().glob("paper.db*")] == ["paper.db"]
    verified = shell("runs", "verify", "paper.db", "--rounds", "0")
    assert (verified.code, words[4] in verified.out, "as it was bundled" in verified.out) == (0, True, True)


def test_a_bundle_is_verified_on_rounds_that_a_seed_draws(paper: Path, shell: Shell) -> None:
    draw = random.Random(8)
    last = [max(draw.sample(range(6), 2)) for _ in range(2)]
    found = parsed(shell("runs", "verify", "paper.db", "-q", "--rounds", "2", "--seed", "8", "--json"))
    assert [run["last"] for run in found["runs"]] == last
    assert [run["difference"] for run in found["runs"]] == [None, None]
    told = shell("runs", "verify", "paper.db", "-q", "--rounds", "all")
    assert told.code == 0
    assert told.out.count("all 6 rounds") == 2
    seeds = {parsed(shell("runs", "verify", "paper.db", "--rounds", "0", "--json"))["seed"] for _ in range(3)}
    assert len(seeds) == 3, "who wrote the bundle cannot know them"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE run SET device = 'Abacus' WHERE id = 2",
        'UPDATE "partition" SET left_out = 3',
        "UPDATE round SET seconds_update = 0 WHERE run_id = 2 AND round = 2",
        "UPDATE series SET test_loss = test_loss + 1e-9 WHERE run_id = 2 AND round = 3",
        "UPDATE artifact SET name = 'other' WHERE (run_id, round, name) = (2, 2, 'measures')",
    ],
)
def test_a_change_shows_in_the_hash(paper: Path, shell: Shell, change: str) -> None:
    before = parsed(shell("runs", "verify", "paper.db", "--rounds", "0", "--json"))
    sql(paper, change)
    found = parsed(shell("runs", "verify", "paper.db", "--rounds", "0", "--json"), code=2)
    assert found["changed"] == ([1, 2] if "partition" in change else [2])
    assert found["sha256"] != before["sha256"]
    assert "Run 2 is not as it was bundled" in shell("runs", "verify", "paper.db", "--rounds", "0").out


def test_columns_of_later_versions_change_no_hash(paper: Path, shell: Shell) -> None:
    sql(paper, "ALTER TABLE round ADD COLUMN energy FLOAT")
    sql(paper, "CREATE TABLE later (run_id INTEGER, round INTEGER)")
    assert shell("runs", "verify", "paper.db", "--rounds", "0").code == 0


@pytest.mark.slow
def test_forged_hashes_do_not_hide_a_row_from_training(paper: Path, shell: Shell) -> None:
    """Nor do sums that agree with it. A draw that ends before its round does."""
    ((client,),) = sql(paper, "SELECT min(client) FROM client_round WHERE run_id = 1 AND round = 5")
    before, after = put_correct(paper, 1, 5, client)
    line = f"Run 1, FedALA on Digits, differs. First in round 5, correct of client {client}: {after} stored, {before} now.\n"
    assert shell("db", "check", "--db", "paper.db").code == 0
    found = shell("runs", "verify", "paper.db", "-q", "--rounds", "all")
    assert (found.code, "Run 1 is not as it was bundled" in found.out, line in found.out) == (2, True, True)
    signed(paper)
    assert shell("runs", "verify", "paper.db", "--rounds", "0").code == 0
    found = shell("runs", "verify", "paper.db", "-q", "--rounds", "all")
    assert (found.code, line in found.out, "Run 2, Ditto on Digits: all 6 rounds" in found.out) == (2, True, True)
    early = next(seed for seed in range(99) if random.Random(seed).sample(range(6), 1)[0] < 5)
    assert shell("runs", "verify", "paper.db", "-q", "--rounds", "1", "--seed", str(early)).code == 0
    assert shell("runs", "reproduce", "1", "-q", "--db", "paper.db").out == line


@pytest.mark.parametrize(
    ("part", "change", "told"),
    [
        ("train", {"lr": 0.11}, "round 1, "),
        ("partition", {"seed": 2}, "partition, client 0: the stored training samples are not those"),
    ],
)
def test_a_changed_specification_with_its_own_key_is_found(
    paper: Path, shell: Shell, part: str, change: dict[str, float], told: str
) -> None:
    ((text,),) = sql(paper, "SELECT spec FROM run WHERE id = 1")
    plain = json.loads(text)
    spec = RunSpec.model_validate({**plain, part: {**plain[part], **change}})
    values = (json.dumps(spec.model_dump(mode="json")), spec.key, spec.protocol)
    sql(paper, "UPDATE run SET spec = ?, key = ?, protocol = ? WHERE id = 1", *values)
    signed(paper)
    assert shell("runs", "verify", "paper.db", "--rounds", "0").code == 0
    found = shell("runs", "verify", "paper.db", "-q", "--rounds", "all")
    assert (found.code, f"Run 1, FedALA on Digits, differs. First in {told}" in found.out) == (2, True)


def test_changed_samples_of_a_client_are_found(paper: Path, shell: Shell) -> None:
    ((number, packed),) = sql(paper, 'SELECT id, indices FROM "partition"')
    indices = partitions.unpack_indices(packed)
    indices["test_3"] = indices["test_3"][::-1]
    sql(paper, 'UPDATE "partition" SET indices = ? WHERE id = ?', partitions.pack_indices(indices), number)
    signed(paper)
    assert shell("runs", "verify", "paper.db", "--rounds", "0").code == 0
    found = shell("runs", "verify", "paper.db", "-q")
    assert (found.code, found.out.count("First in partition, client 3: the stored test samples are not those")) == (2, 2)


def test_rows_that_contradict_each_other_are_refused_before_training(paper: Path, shell: Shell) -> None:
    sql(paper, "UPDATE client_round SET correct = total + 1 WHERE run_id = 2 AND round = 3")
    assert "round 3" in shell.refused("runs", "verify", "paper.db")
    sql(paper, "UPDATE client_round SET correct = total WHERE run_id = 2 AND round = 3")
    assert "paper.db: run 2, round 3: accuracy is " in shell.refused("runs", "verify", "paper.db")


def test_an_unfinished_run_is_compared_as_far_as_it_got(mine: Path, shell: Shell) -> None:
    for table in ("round", "client_round", "series", "artifact"):
        sql(mine, f"DELETE FROM {table} WHERE run_id = 2 AND round > 2")
    sql(mine, "UPDATE run SET status = 'interrupted', finished_at = NULL WHERE id = 2")
    told = "Run 2, Ditto on Digits: rounds 0 to 2 of 5 and 6 client rows are equal bit for bit.\n"
    assert shell("runs", "reproduce", "2", "-q").out == told
    assert "Unfinished: run 2, interrupted after round 2 of 5." in shell("runs", "bundle", "2", "-o", "paper.db").err
    assert shell("runs", "verify", "paper.db", "-q", "--rounds", "all").out.endswith(told.replace("Run 2", "Run 1"))
    sql(mine, "UPDATE round SET round = 3 WHERE run_id = 2 AND round = 2")
    assert "round 2, " in shell("runs", "reproduce", "2", "-q").out
    sql(mine, "DELETE FROM round WHERE run_id = 2")
    assert "Run 2 has no rounds" in shell.refused("runs", "reproduce", "2")
    assert "Run 2 has no rounds" in shell.refused("runs", "bundle", "1", "2", "-o", "other.db")


def test_a_run_that_diverged_diverges_again(shell: Shell) -> None:
    assert shell("run", "-m", "fedavg", "-d", "digits", "--clients", "2", "--lr", "1e20", "-r", "5", "-q").code == 2
    ((status, last),) = sql(Path("pflbench.db"), "SELECT status, max(round) FROM run JOIN round ON run_id = run.id")
    assert (status, last < 5) == ("diverged", True)
    told = shell("runs", "reproduce", "1", "-q")
    assert (told.code, "equal bit for bit, and it diverges again." in told.out) == (0, True)
    spec = "json_set(spec, '$.train.lr', 0.1)"
    sql(Path("pflbench.db"), f"UPDATE run SET spec = {spec}")
    assert shell("runs", "reproduce", "1", "-q").code == 2


@pytest.mark.slow
def test_runs_of_a_server_are_bundled(mine: Path, shell: Shell, server: Server) -> None:
    url = server.new(filled=False)
    assert shell("db", "copy", "pflbench.db", url).code == 0
    assert shell("runs", "bundle", "1", "2", "-o", "paper.db", "--db", url).code == 0
    assert sql(Path("paper.db"), NUMBERS) == sql(mine, NUMBERS)
    assert shell("runs", "verify", "paper.db", "-q", "--rounds", "all").code == 0
    assert shell("runs", "reproduce", "2", "-q", "--db", url).code == 0
    server.drop(url)


# --- data and code of others ---

NETS = """
import pathlib
from torch import nn

pathlib.Path(__file__).with_name("executed").touch()


def layers(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.Linear(4, classes))
"""
METHOD = """
from pflbench.methods.base import method
from pflbench.methods.fedavg import FedAvg


@method
class Own(FedAvg):
    title = "Own"
"""


def test_code_in_a_bundle_is_not_executed_until_it_is_typed(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data and code of the user's own lie beside the bundle, wherever that is."""
    Path("nets.py").write_text(NETS)
    Path("own.py").write_text(METHOD)
    np.savez("own.npz", x=np.random.default_rng(0).random((80, 3), np.float32), y=np.arange(80) % 2)
    more = ("-d", "npz:own.npz", "--model", "nets.py:layers", "--clients", "2", "-p", "iid", "-r", "2", "-q")
    assert shell("run", "-m", "own", "--plugin", "own.py", *more).code == 0
    assert "Add --plugin FILE.py." in shell.refused("runs", "reproduce", "1")
    assert shell("runs", "reproduce", "1", "-q", "--plugin", "own.py").code == 0
    assert shell("runs", "bundle", "1", "-o", "paper.db").code == 0
    there = tmp_path / "there"
    there.mkdir()
    for name in ("nets.py", "own.py", "own.npz", "paper.db"):
        shutil.move(name, there)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(plugins, "_executed", {})
    Path("executed").unlink()
    assert shell("runs", "verify", "there/paper.db", "--rounds", "0").code == 0
    told = shell.refused("runs", "verify", "there/paper.db")
    assert f"Run 1 comes with code or addresses that you have not named on this machine yet: --plugin {there}/nets.py" in told
    assert not (there / "executed").exists()
    typed = [word for name in ("nets.py", "own.py") for word in ("--plugin", f"there/{name}")]
    assert shell("runs", "verify", "there/paper.db", "-q", *typed).code == 0
    (there / "own.npz").unlink()
    monkeypatch.setattr(federation_data, "_kept", {})  # as in another command
    assert "own.npz does not exist" in shell.refused("runs", "verify", "there/paper.db", *typed)
    assert shell("runs", "verify", "there/paper.db", "--rounds", "0").code == 0


def test_wrong_input(mine: Path, shell: Shell) -> None:
    Path("text.txt").write_text("hello")
    assert "No run '77'" in shell.refused("runs", "reproduce", "77")
    assert "No run '77'" in shell.refused("runs", "bundle", "1", "77", "-o", "paper.db")
    assert not Path("paper.db").exists()
    assert "replaces nothing" in shell.refused("runs", "bundle", "1", "-o", "text.txt")
    assert "No folder" in shell.refused("runs", "bundle", "1", "-o", "nowhere/paper.db")
    assert "text.txt is no bundle of runs" in shell.refused("runs", "verify", "text.txt")
    assert "pflbench.db is no bundle: run 1 has no hash" in shell.refused("runs", "verify", "pflbench.db")
    assert "neither all nor a number" in shell.refused("runs", "verify", "pflbench.db", "--rounds", "-1")
    sql(mine, "UPDATE run SET spec = json_set(spec, '$.data.name', 'mnist') WHERE id = 1")
    assert "pflbench data download mnist" in shell.refused("runs", "reproduce", "1")
