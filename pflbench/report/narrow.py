"""Reports of a part of the runs: by model, clients, rounds, number or key, and hyperparameter, the same for every report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import labels
from pflbench.store import read
from pflbench.store.only import only
from pflbench.store.read import Result, Select


@dataclass(frozen=True)
class Part:
    """What is asked for; nothing lets everything pass. runs: numbers or beginnings of keys. where: "fedala.p=2".

    Of one kind any may fit, and all kinds have to. `where` is about the runs of its method alone: others stay.
    """

    models: Sequence[str] = ()
    clients: Sequence[int] = ()
    rounds: Sequence[int] = ()
    runs: Sequence[str] = ()
    where: Sequence[str] = ()

    def of(self, engine: Engine) -> Engine:
        """The database in which reports see these runs alone. Raises UserError for what no run has, and where none is left."""
        if not self.words or not (found := read.results(engine, Select("best"))):
            return engine
        found = _fitting("model", self.models, found, lambda r: r.spec["model"], lambda name: labels.MODELS.get(name, name))
        found = _fitting("clients", self.clients, found, lambda r: str(r.spec["partition"]["clients"]))
        found = _fitting("rounds", self.rounds, found, lambda r: str(r.spec["train"]["rounds"]))
        if self.runs:
            named = {read.run(engine, text).info.id for text in self.runs}
            found = [r for r in found if r.id in named]
        for (method, name), values in _conditions(self.where).items():
            found = _with_value(found, method, name, values)
        if not found:
            raise UserError(f"No run has {self.words}.", "`pflbench runs list` shows what there is.")
        return only(engine, {r.id for r in found})

    @property
    def words(self) -> str:
        """'model cnn, rounds 20 or 50, fedala.p=2'; nothing where nothing is asked for."""
        kinds = {"model": self.models, "clients": self.clients, "rounds": self.rounds, "run": self.runs}
        said = [f"{kind} {' or '.join(map(str, asked))}" for kind, asked in kinds.items() if asked]
        return ", ".join([*said, *self.where])


def _fitting(
    kind: str,
    asked: Iterable[object],
    results: list[Result],
    has: Callable[[Result], str],
    title: Callable[[str], str] = str,
) -> list[Result]:
    wanted = {str(text).casefold() for text in asked}
    present = {text for r in results for name in [has(r)] for text in (name, title(name))}
    if missing := wanted - {text.casefold() for text in present}:
        there = sorted({has(r) for r in results}, key=lambda text: (len(text), text) if text.isdecimal() else (0, text))
        raise UserError(f"No runs with {kind} '{min(missing)}' among those asked for.", f"There are: {', '.join(there)}.")
    return [r for r in results if not wanted or {has(r).casefold(), title(has(r)).casefold()} & wanted]


def _conditions(where: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for text in where:
        target, equals, value = text.partition("=")
        method, dot, name = target.strip().partition(".")
        if not (equals and dot and method and name):
            raise UserError(f"--where {text}: expected METHOD.NAME=VALUE.", "For example --where fedala.p=2.")
        found.setdefault((method.casefold(), name), []).append(value.strip())
    return found


def _with_value(results: list[Result], method: str, name: str, values: Sequence[str]) -> list[Result]:
    """Without the runs of this method that have another value."""
    own = [r for r in results if method in (r.method.casefold(), labels.method_title(r.method).casefold())]
    if not own:
        there = ", ".join(sorted({r.method for r in results}))
        raise UserError(f"--where {method}.{name}: no such runs of '{method}'.", f"There are runs of: {there or 'no method'}.")
    known = {key for r in own for key in r.spec["method"]["hyperparameters"]}
    if name not in known:
        raise UserError(
            f"--where {method}.{name}: {method} has no hyperparameter '{name}'.", f"It has: {', '.join(sorted(known)) or 'none'}."
        )
    present = {r.id: r.spec["method"]["hyperparameters"].get(name) for r in own}
    for value in values:
        if not any(_is(one, value) for one in present.values()):
            there = ", ".join(sorted({_text(one) for one in present.values()}))
            raise UserError(f"No run of {method} has {name}={value}.", f"There are: {there}.")
    out = {run for run, one in present.items() if not any(_is(one, value) for value in values)}
    return [r for r in results if r.id not in out]


def _is(stored: object, text: str) -> bool:
    """As --set reads a value: 80 and 80.0 are the same."""
    if isinstance(stored, int | float) and not isinstance(stored, bool):
        try:
            return float(stored) == float(text)
        except ValueError:
            return False
    return _text(stored) == text.casefold()


def _text(stored: object) -> str:
    return f"{stored:g}" if isinstance(stored, float) else str(stored).casefold()
