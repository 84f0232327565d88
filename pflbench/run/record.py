"""An account of how a run was executed, kept with it: what is found out only while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy

from pflbench.engine.memory import in_words
from pflbench.engine.requests import Executor
from pflbench.store import write


class Account:
    """Of one run. `environment` is what was written down when it began."""

    def __init__(self, store: sqlalchemy.Engine, run_id: int, environment: dict[str, Any], executor: Executor) -> None:
        self._store, self._run_id, self._environment = store, run_id, environment
        self._executor = executor
        self._shortages_told = 0
        self._notes: dict[str, str] = dict(environment.get("notes", {}))
        self._untold: list[str] = []

    def note(self, notes: Mapping[str, str]) -> None:
        """Takes in what a round noted, by name; what is known of that name already stays."""
        new = {name: text for name, text in notes.items() if name not in self._notes}
        self._notes |= new
        self._untold += new.values()

    def keep(self, last: bool = False) -> None:
        """Writes notes and what the executor tells, when that has changed. last: and how the run was packed."""
        known = {**self._environment}
        if self._notes:
            known["notes"] = dict(self._notes)
        known |= {name: told for name, told in self._executor.record().items() if last or name != "pack"}
        if known != self._environment:
            self._environment = known
            write.update_run(self._store, self._run_id, environment=known)

    def news(self) -> tuple[str, ...]:
        """What the user should know: shortages of memory and notes, each once."""
        told, self._untold = self._untold, []
        new = self._executor.shortages()[self._shortages_told :]
        self._shortages_told += len(new)
        told += [in_words(new)] if new else []
        return tuple(told)
