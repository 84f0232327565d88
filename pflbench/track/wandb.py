"""Weights & Biases: one W&B run for each run, in one project; online, or offline for `wandb sync`.

Marks are files beside W&B's own. If a mark was not set, W&B drops rounds that it has: its steps only ascend.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import wandb

from pflbench.store.exchange.points import TrackedRound, tags, title
from pflbench.store.locks import UNDER_WAY
from pflbench.store.runs import Run
from pflbench.track.deliver import Mark, friendly, read_mark, write_mark

_LONGEST = 64  # characters of a tag
_HINT = "Log in with `wandb login`, or write files for `wandb sync`: --offline."
_friendly = partial(friendly, "Weights & Biases", (wandb.Error, OSError), _HINT)


class WandB:
    """Writes to a project. folder: where W&B makes its folder `wandb`. offline: only write there, for a later `wandb sync`."""

    def __init__(self, project: str, entity: str | None, folder: Path, *, offline: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mode = "offline" if offline else "online"
        self._where: dict[str, Any] = {"project": project, "entity": entity, "dir": str(folder), "mode": mode}
        self._marks = folder / "wandb" / "pflbench" / mode / "-".join(filter(None, (entity, project)))
        self._open: dict[str, Any] = {}

    def mark(self, run: Run) -> Mark:
        return read_mark(self._mark(run))

    def write(self, run: Run, new: Sequence[TrackedRound]) -> None:
        with _friendly():
            opened = self._started(run)
            for point in new:
                if point.round >= opened.starting_step:
                    opened.log({**point.values, "_timestamp": point.time}, step=point.round)

    def tell(self, run: Run, mark: Mark) -> None:
        name = _name(run)
        with _friendly():
            opened = self._started(run)
            opened.summary["status"] = run.status
            if run.status not in UNDER_WAY:
                opened.finish(exit_code=int(run.status != "finished"))
                del self._open[name]
        write_mark(self._mark(run), mark)

    def close(self) -> None:
        with _friendly():
            for opened in self._open.values():
                opened.finish()
        self._open.clear()

    def _mark(self, run: Run) -> Path:
        return self._marks / f"{_name(run)}.json"

    def _started(self, run: Run) -> Any:
        name = _name(run)
        if name not in self._open:
            offline = self._where["mode"] == "offline"
            self._open[name] = wandb.init(
                **self._where,
                id=name,
                name=title(run),
                group=f"{run.dataset} {run.partition_label}",
                job_type=run.method,
                tags=[f"{k}:{v}"[:_LONGEST] for k, v in tags(run).items()],
                config=run.spec,
                resume=None if offline else "allow",
                reinit="create_new",  # with --follow several runs are open
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    # This machine and folder are not those of the training.
                    x_disable_stats=True,
                    x_disable_meta=True,
                    disable_git=True,
                    save_code=False,
                ),
            )
        return self._open[name]


def _name(run: Run) -> str:
    return f"{run.key}-{run.attempt}"
