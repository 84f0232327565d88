"""Output of the commands: data on stdout, messages on stderr."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from pflbench.plain import each_text, in_json, printable, private_command, without_passwords

# Piped output is read by programs: there a line must not be broken at a guessed width.
_PIPED_WIDTH = 500


BROKEN_PIPE = 141  # as shells report a program that SIGPIPE ended


def prepare_streams() -> None:
    """Prints characters that a stream's encoding lacks as escapes, and nothing to a stream that was closed before the start."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def flushed(code: int) -> int:
    """Writes what is left for stdout; returns the exit code, which is another one where that fails."""
    try:
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        code = BROKEN_PIPE
    except OSError as failed:
        error(f"stdout: {failed.strerror}.")
        code = 2
    # Python would complain when it closes a stdout with something left in it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


class _SafeConsole(Console):
    """Without control codes and passwords in texts, which may be anybody's. Rich's own codes for colours and bars stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def stdout() -> Console:
    return _SafeConsole(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def stderr() -> Console:
    return _SafeConsole(stderr=True, width=None if sys.stderr.isatty() else _PIPED_WIDTH, highlight=False)


def say(*parts: object, sep: str = " ", end: str = "\n", flush: bool = False) -> None:
    """As `print`, which would print control codes, too."""
    print(printable(sep.join(map(str, parts))), end=end, flush=flush)


def message(text: str) -> None:
    """One message to stderr. Square brackets in it are text, not markup."""
    stderr().print(Text(text), soft_wrap=True)


def error(failure: object) -> None:
    """Prints a UserError, or the text of one: what is wrong, and on a second line what to do."""
    stderr().print(Text.assemble(("Error: ", "bold red"), str(failure)), soft_wrap=True)


def print_json(value: Any) -> None:
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"  # an escape of the stream's would be no JSON
    shown = each_text(value, without_passwords)
    print(in_json(json.dumps(shown, indent=2, ensure_ascii=plain, default=lambda other: without_passwords(str(other)))))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, err: bool = False, spare: Collection[str] = ()
) -> None:
    """A plain table, on stdout or as a message; columns of numbers are right-aligned, the first is never broken.

    spare: columns that are left out where the terminal is too narrow for all.
    """
    cells = [[text(cell) for cell in row] for row in rows]
    table, console = _table(columns, cells, range(len(columns))), stderr() if err else stdout()
    if spare and console.measure(table, options=console.options.update(max_width=_PIPED_WIDTH)).maximum > console.width:
        table = _table(columns, cells, [i for i, name in enumerate(columns) if name not in spare])
    _print(table, err)


def print_records(records: Sequence[Mapping[str, object]], as_json: bool = False, spare: Collection[str] = ()) -> None:
    """Records with the same names, as JSON or as a table. spare: as in `print_table`."""
    if as_json:
        print_json(records)
    elif records:
        print_table(tuple(records[0]), [tuple(record.values()) for record in records], spare=spare)


def print_info(info: Mapping[str, object], as_json: bool) -> None:
    """Names and values, as JSON or one pair a line."""
    if as_json:
        print_json(info)
    else:
        print_fields((name.replace("_", " "), value) for name, value in info.items())


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, Text(text(value)))
    _print(table)


def text(value: object) -> str:
    """One line for a reader: lists and dicts without brackets and quotes."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {text(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value)) or "none"
    return "" if value is None else printable(" ".join(str(value).splitlines()))


def duration(seconds: float) -> str:
    """In the two largest units: "2 d 3 h", "5 min", "40 s"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours = round(seconds / 3600)
    units = (("d", hours // 24), ("h", hours % 24)) if hours >= 24 else (("h", minutes // 60), ("min", minutes % 60))
    return " ".join(f"{number} {unit}" for unit, number in units if number)


def _print(table: Table, err: bool = False) -> None:
    console = stderr() if err else stdout()
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as printed:
        console.print(table)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()), file=sys.stderr if err else sys.stdout)


def _table(columns: Sequence[str], cells: Sequence[Sequence[str]], shown: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in shown:
        numbers = all(_is_number(row[i]) for row in cells)
        table.add_column(columns[i], justify="right" if numbers else "left", overflow="fold", no_wrap=i == 0)
    for row in cells:
        table.add_row(*(Text(row[i]) for i in shown))
    return table


def _is_number(cell: str) -> bool:
    return not cell.strip("0123456789.+-e/%")


_typed: list[str] = []


def remember(arguments: Sequence[str]) -> None:
    """Stores the command line for `command_line`."""
    _typed[:] = arguments


def command_line(whole: bool = False) -> str:
    """The command, without passwords: it is recorded with every run and in every file that is written.

    whole: as it was typed; else without the user's folders and hosts.
    """
    words = ["pflbench", *(without_passwords(word, alone=True) for word in _typed)]
    return shlex.join(words) if whole else private_command(words)
