"""Rows as a folder of Parquet files, one for each value of some columns, as Hive has it: `method=fedala/dataset=mnist/...`.

Polars, DuckDB, Spark, pyarrow and `datasets` read such a folder as one table, and of it only the files that a query is about.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pflbench.errors import UserError, unknown
from pflbench.store.exchange.export import Counted, Rows, as_arrow
from pflbench.store.files import locked, partial_of, remove_abandoned

MOST = 5_000  # files: more of them would be slower to read than one
_OPEN = 200  # files at a time


def write_folder(found: Rows, by: Sequence[str], folder: Path) -> int:
    """Writes the rows below `folder`, which takes the place of an older one when all is written. Returns how many there were.

    Raises:
        UserError: no such column, one of fractions or of JSON, too many values; a folder with other files, or not to be written.
    """
    folder = folder.absolute()
    _require_columns(found, by)
    _require_ours(folder)
    partial, counted = partial_of(folder), Counted(found.chunks)
    try:
        remove_abandoned(folder)
        partial.mkdir(parents=True)
        with ExitStack() as stack:
            with suppress(OSError):  # where there are no locks
                stack.enter_context(locked(partial))
            _write(Rows(found.columns, iter(counted)), by, partial)
            _move(partial, folder)
    except OSError as error:
        raise UserError(f"Cannot write {folder}: {error.strerror or error}.", "Name another folder with -o.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counted.rows


def _move(partial: Path, folder: Path) -> None:
    """The older folder is whole until it is moved away, and back in its place should the new one not take it."""
    before = partial.with_name(f"{partial.name}.before.partial")
    if folder.exists():
        folder.rename(before)
    try:
        partial.rename(folder)
    except OSError:
        if before.exists():
            before.rename(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _write(found: Rows, by: Sequence[str], folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import dataset

    schema, batches = as_arrow(found)
    dataset.write_dataset(
        _few(batches, by),
        folder,
        schema=schema,
        format="parquet",
        partitioning=dataset.partitioning(pa.schema([schema.field(name) for name in by]), flavor="hive"),
        existing_data_behavior="overwrite_or_ignore",
        max_partitions=MOST,
        max_open_files=_OPEN,
        use_threads=False,  # rows stay in order, and no more of them are read ahead than are written
    )


def _few(batches: Iterable[Any], by: Sequence[str]) -> Iterator[Any]:
    """The batches, as long as there are not too many values in them."""
    import pyarrow as pa

    seen: set[tuple[Any, ...]] = set()
    for batch in batches:
        seen.update(zip(*pa.table(batch).group_by(list(by)).aggregate([]).to_pydict().values(), strict=True))
        if len(seen) > MOST:
            told = f"There are more than {MOST:,} different values of {', '.join(by)}."
            raise UserError(told, "Partition by fewer columns, such as method and dataset.")
        yield batch


def _require_columns(found: Rows, by: Sequence[str]) -> None:
    possible = [name for name, kind in found.columns.items() if kind in (int, str)]
    for name in by:
        if name not in possible:
            raise unknown("column to partition by", name, possible)
    if len(set(by)) < len(by):
        raise UserError(f"--partition-by {','.join(by)} names a column twice.", "Name it once.")


def _require_ours(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file.", "With --partition-by a folder is written: name one with -o.")
    if folder.is_dir():
        others = [path for path in folder.rglob("*") if not path.is_dir() and not _is_ours(path.relative_to(folder))]
        if others:
            raise UserError(f"{folder} has other files, such as {others[0].name}.", "Name a new folder with -o.")


def _is_ours(path: Path) -> bool:
    """Whether a folder that was exported has such a file: "method=fedala/part-0.parquet"."""
    *folders, name = path.parts
    return bool(folders) and all("=" in part for part in folders) and fnmatch(name, "part-*.parquet")
