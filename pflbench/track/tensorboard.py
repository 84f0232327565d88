"""TensorBoard: one folder of event files for each run, with its parameters for the HPARAMS page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from pflbench.store.exchange.points import TrackedRound, began, parameters, tags, timestamp, title
from pflbench.store.locks import UNDER_WAY
from pflbench.store.runs import Run
from pflbench.track.deliver import Mark, read_mark, write_mark

_MARK = "pflbench.json"
_LONGEST = 200  # characters of a folder's name; file systems take 255 bytes


class TensorBoard:
    """Writes below `folder`, for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[Path, EventFileWriter] = {}

    def mark(self, run: Run) -> Mark:
        return read_mark(self._folder_of(run) / _MARK)

    def write(self, run: Run, new: Sequence[TrackedRound]) -> None:
        writer = self._writer(run)
        for point in new:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            writer.add_event(Event(wall_time=point.time, step=point.round, summary=Summary(value=values)))
        writer.flush()

    def tell(self, run: Run, mark: Mark) -> None:
        place = self._folder_of(run)
        if run.status not in UNDER_WAY:
            writer = self._writer(run)
            writer.add_event(_end(run))
            writer.close()
            del self._open[place]
        write_mark(place / _MARK, mark)

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()
        self._open.clear()

    def _folder_of(self, run: Run) -> Path:
        return self._folder / re.sub(r"[^\w.()=,+-]+", "_", title(run))[-_LONGEST:]

    def _writer(self, run: Run) -> EventFileWriter:
        place = self._folder_of(run)
        if place not in self._open:
            place.mkdir(parents=True, exist_ok=True)
            is_new = not any(place.glob("events.out.tfevents.*"))
            self._open[place] = EventFileWriter(str(place))
            if is_new:
                self._open[place].add_event(_start(run))
        return self._open[place]


def _start(run: Run) -> Event:
    known = {**parameters(run), **tags(run)}
    values = Struct()
    values.update({name: value if isinstance(value, bool | int | float) else str(value) for name, value in known.items()})
    started = plugin_data_pb2.SessionStartInfo(start_time_secs=began(run), hparams=values.fields)
    data = plugin_data_pb2.HParamsPluginData(session_start_info=started)
    return _parameters_page(metadata.SESSION_START_INFO_TAG, data, began(run))


def _end(run: Run) -> Event:
    at = timestamp(run.finished_at) if run.finished_at else began(run)
    went_well = {"finished": api_pb2.STATUS_SUCCESS, "failed": api_pb2.STATUS_FAILURE, "diverged": api_pb2.STATUS_FAILURE}
    ended = plugin_data_pb2.SessionEndInfo(status=went_well.get(run.status, api_pb2.STATUS_UNKNOWN), end_time_secs=at)
    return _parameters_page(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=ended), at)


def _parameters_page(tag: str, data: Any, at: float) -> Event:
    value = Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR)
    return Event(wall_time=at, summary=Summary(value=[value]))
