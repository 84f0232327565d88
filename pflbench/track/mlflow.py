"""MLflow: one MLflow run for each run, in one experiment. The mark is stored as the tags `round` and `status`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from pflbench.store.exchange.points import TrackedRound, began, parameters, tags, timestamp, title
from pflbench.store.locks import UNDER_WAY
from pflbench.store.runs import Run
from pflbench.track.deliver import Mark, friendly

_STATES = {"finished": "FINISHED", "failed": "FAILED", "diverged": "FAILED", "interrupted": "KILLED"}
_TOGETHER = 900  # metrics per call: MLflow takes at most 1,000 metrics, parameters and tags
_friendly = partial(
    friendly, "MLflow", (MlflowException, SQLAlchemyError, OSError), "A URI is e.g. sqlite:///mlflow.db or http://host:5000."
)


class MLflow:
    """Writes to a tracking server, or to the database of one.

    A metric that is sent twice has the same time, and MLflow stores it once: so a mark that was not set does no harm.
    """

    def __init__(self, uri: str | None, experiment: str) -> None:
        """uri: None for MLFLOW_TRACKING_URI. Raises UserError if it cannot be reached."""
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it would print ten lines for a new database
        with _friendly():
            self._client = MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment = found.experiment_id if found else self._client.create_experiment(experiment)
        self._runs: dict[tuple[str, int], str] = {}  # MLflow's ids by key and attempt

    def mark(self, run: Run) -> Mark:
        query = f"tags.key = '{run.key}' and tags.attempt = '{run.attempt}'"
        with _friendly():
            for found in self._client.search_runs([self._experiment], query):
                self._runs[run.key, run.attempt] = found.info.run_id
                return Mark(int(found.data.tags.get("round", -1)), found.data.tags.get("status", ""))
        return Mark()

    def write(self, run: Run, new: Sequence[TrackedRound]) -> None:
        with _friendly():
            name = self._started(run)
            metrics = (Metric(k, float(v), round(1000 * p.time), p.round) for p in new for k, v in p.values.items())
            while some := list(islice(metrics, _TOGETHER)):
                self._client.log_batch(name, metrics=some)

    def tell(self, run: Run, mark: Mark) -> None:
        with _friendly():
            name = self._started(run)
            self._client.log_batch(name, tags=[RunTag("round", str(mark.round)), RunTag("status", mark.status)])
            if run.status in UNDER_WAY:
                self._client.update_run(name, status="RUNNING")
            else:
                ended = round(1000 * timestamp(run.finished_at)) if run.finished_at else None
                self._client.set_terminated(name, _STATES[run.status], ended)

    def close(self) -> None:
        pass

    def _started(self, run: Run) -> str:
        if (run.key, run.attempt) not in self._runs:
            created: Any = self._client.create_run(
                self._experiment, start_time=round(1000 * began(run)), tags=tags(run), run_name=title(run)
            )
            own = [Param(name, str(value)) for name, value in parameters(run).items()]
            self._client.log_batch(created.info.run_id, params=own)
            self._runs[run.key, run.attempt] = created.info.run_id
        return self._runs[run.key, run.attempt]
