"""Commands that write, each with the folder that it finds: what is killed, starved and signalled in tests/reliability."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.command import Done
from support.faults import aftermath, witness
from support.faults.aftermath import Left
from support.faults.client import Child, Disturbance, Forks
from support.faults.tally import Tally

SMALL = ("-d", "digits", "--clients", "3", "--rounds", "3", "--batch-size", "100", "--workers", "1", "-q")
OFTEN = ("--checkpoint-every", "0", "--observe-every", "1")
FEDALA = ("run", "-m", "fedala", "--set", "fedala.max_init_epochs=2", *SMALL, *OFTEN)
DITTO = ("run", "-m", "ditto", "--seed", "1", *SMALL)


@dataclass(frozen=True)
class Victim:
    """databases: what lies in the folder before, by name: one of `Material`. outputs: files or folders that are there whole,
    as they were or new, whatever happens; older: the database that the ones before were made from.
    """

    name: str
    arguments: tuple[str, ...]
    databases: dict[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # of these
    older: str = ""
    refuses: str = "\0"  # what the command says where nothing is left to do

    def __str__(self) -> str:
        return self.name

    def ended_well(self, done: Done) -> bool:
        return done.code == 0 or (done.code == 2 and self.refuses in done.err)


BOTH = {"pflbench.db": "both"}
VICTIMS = [
    Victim("run", FEDALA, {"pflbench.db": "new"}),
    Victim("db upgrade of nothing", ("db", "upgrade")),
    Victim("db upgrade of schema 0001", ("db", "upgrade"), {"pflbench.db": "0001"}),
    Victim("db upgrade of schema 0005", ("db", "upgrade"), {"pflbench.db": "0005"}),
    Victim("import", ("import", "other.db"), {"pflbench.db": "first", "other.db": "both"}),
    Victim("import of schema 0001", ("import", "other.db"), {"pflbench.db": "first", "other.db": "0001"}),
    Victim("db copy", ("db", "copy", "pflbench.db", "copy.db", "-q"), BOTH, refuses="is not empty"),
    Victim("db backup", ("db", "backup", "copy.db"), BOTH, refuses="is there already"),
    Victim("export csv", ("export", "clients", "-o", "o.csv"), BOTH, ("o.csv",), older="first"),
    Victim("export parquet", ("export", "clients", "-o", "o.parquet"), BOTH, ("o.parquet",), older="first"),
    Victim("report", ("report", "-o", "o.html"), BOTH, ("o.html",), older="first"),
    Victim("plot", ("plot", "curves", "-o", "o.png"), BOTH, ("o.png",), older="first"),
]


class Material:
    """Databases that victims begin with, made once by commands: "new", "first" (a run), "both" (two), and schemas by number."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        self._forks, self._folder = forks, folder

    def path(self, name: str) -> Path:
        found = self._folder / f"{name}.db"
        if not found.exists():
            self._make(name, found)
        return found

    def _make(self, name: str, path: Path) -> None:
        before = {"both": "first", "first": "new"}.get(name, "both" if name != "new" else None)
        aside = path.with_name(f"{name}.making.db")
        if before:
            shutil.copy(self.path(before), aside)
        if name in ("new", "first", "both"):
            command = {"new": ("db", "upgrade"), "first": FEDALA, "both": DITTO}[name]
            done = self._forks(*command, "--db", aside, folder=self._folder)
            assert done.code == 0, done.err
        else:
            downgrade(aside, name)
        aside.rename(path)


def downgrade(path: Path, revision: str) -> None:
    """Real rows in an old schema."""
    from alembic import command
    from pflbench.store import database as db

    engine = db.open_engine(db.to_url(str(path)))
    with db.migrating(engine) as connection:
        command.downgrade(db.alembic_config(connection), revision)
    engine.dispose()


@dataclass(frozen=True)
class Whole:
    """What an undisturbed command leaves, how long it took, and its events by kind. before: the digests of older outputs."""

    left: Left
    seconds: float
    events: dict[str, list[str]]
    before: dict[str, str]


Disturb = Callable[[Path, Disturbance], Done]
"""Makes a command in a folder, with this beside what it does to it."""


class Trials:
    """Of one victim."""

    def __init__(
        self, victim: Victim, forks: Forks, material: Material, folder: Path, always: Sequence[Disturbance] = ()
    ) -> None:
        """always: what is done to each command, such as the address of a server that is the test's own."""
        self.victim, self.forks, self.material, self._folder = victim, forks, material, folder
        self._always, self._number = always, 0
        self.whole = self._undisturbed()

    def fresh(self) -> Path:
        """A folder as the command finds it."""
        folder = self._folder / str(self._number)
        self._number += 1
        folder.mkdir(parents=True)
        if self.victim.older:
            self._lay(folder, {"pflbench.db": self.victim.older})
            assert self.made(folder).code == 0
        self._lay(folder, self.victim.databases)
        return folder

    def scratch(self) -> Path:
        """A folder for the trials of another command."""
        self._number += 1
        return self._folder / f"beside-{self._number}"

    def start(self, folder: Path, *disturbed: Disturbance) -> Child:
        return self.forks.start(*self.victim.arguments, folder=folder, disturbed=[*disturbed, *self._always])

    def made(self, folder: Path, *disturbed: Disturbance) -> Done:
        return self.start(folder, *disturbed).wait()

    def one(self, tally: Tally, what: str, disturb: Disturb, codes: Collection[int] = (-signal.SIGKILL,), said: str = "") -> None:
        """One try: disturbed, looked at, and the same command again. It is not counted if the command was over before.

        codes: one of which it must end with. said: a pattern of what it must say then.
        """
        folder, log = self.fresh(), self.forks.path("witness")
        done = disturb(folder, ("witnessed", {"into": str(log)}))
        if done.code == 0 and 0 not in codes:
            shutil.rmtree(folder, ignore_errors=True)
            return
        well = done.code in codes and re.search(said, done.err) is not None and "Traceback" not in done.err
        wrong = [] if well else [f"exit code {done.code}: {done.err[-300:]}"]
        rows = sum(self._missing(folder / name, log) for name in self.whole.left.databases)
        wrong += self._torn(folder)
        done = self.made(folder)
        if not self.victim.ended_well(done):
            wrong.append(f"the same command again: exit code {done.code}: {done.err[-300:]}")
        found = aftermath.left(folder)
        runs, more = aftermath.lost(found, self.whole.left)
        wrong += aftermath.differences(found, self.whole.left)
        if self.victim.arguments[0] in ("run", "db", "import"):
            checked = self.forks("db", "check", folder=folder)
            wrong += [] if checked.code == 0 else [f"db check: {checked.out}{checked.err}"]
        tally.count(what, runs, rows + more, wrong)
        shutil.rmtree(folder, ignore_errors=True)

    def killed_at(self, tally: Tally, kind: str, at: int) -> None:
        kill: Disturbance = ("killed", {"kinds": [kind], "at": at})
        self.one(tally, f"{kind} {at} ({self.whole.events[kind][at]})", lambda folder, more: self.made(folder, kill, more))

    def killed_after(self, tally: Tally, seconds: float) -> None:
        def disturb(folder: Path, more: Disturbance) -> Done:
            return self.start(folder, more).killed_after(seconds)

        self.one(tally, f"after {seconds:.3f} s", disturb)

    def _undisturbed(self) -> Whole:
        folder = self.fresh()
        logs = {kind: self.forks.path(kind) for kind in ("file", "sql")}
        disturbed: list[Disturbance] = [("counted", {"kinds": [kind], "into": str(log)}) for kind, log in logs.items()]
        before = aftermath.left(folder).files
        done = self.made(folder, *disturbed)
        assert done.code == 0, done.err
        again = self.fresh()
        begun = time.monotonic()
        assert self.made(again).code == 0
        seconds = time.monotonic() - begun
        found = aftermath.left(folder)
        assert aftermath.differences(aftermath.left(again), found) == [], "two undisturbed commands differ"
        return Whole(found, seconds, {kind: log.read_text().splitlines() for kind, log in logs.items()}, before)

    def _lay(self, folder: Path, databases: dict[str, str]) -> None:
        for name, kind in databases.items():
            shutil.copy(self.material.path(kind), folder / name)

    @staticmethod
    def _missing(database: Path, log: Path) -> int:
        return witness.heard(log, database).missing(aftermath.counts(database))

    def _torn(self, folder: Path) -> list[str]:
        """Outputs that are neither as they were nor as they are to be."""
        files = aftermath.left(folder).files
        wrong = []
        for output in self.victim.outputs:
            here, old, new = (
                {name: digest for name, digest in each.items() if name == output or name.startswith(f"{output}/")}
                for each in (files, self.whole.before, self.whole.left.files)
            )
            # A folder takes the place of another in two moves: between them there is none, and both lie beside it, whole.
            if here not in (old, new) and not (output in self.victim.folders and not here):
                wrong.append(f"{output} is neither what it was nor what it is to be")
        return wrong


Of = Callable[[str], Trials]
