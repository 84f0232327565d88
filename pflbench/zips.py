"""Zip files from anywhere: their members are read in memory, and never take more of it than they declare."""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from pflbench.errors import require_regular

# What zipfile raises for damaged ones: also for other offsets, ways of packing, encryption and names.
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, ValueError, KeyError, RuntimeError)
PIECE = 2**18  # bytes that are unpacked at a time
LARGEST_HEADER = 10_000  # bytes of an array's header: what NumPy takes


def opened(path: Path) -> zipfile.ZipFile:
    """The zip file. Raises zipfile.BadZipFile where two members have one name: which one is meant, nobody says.

    Raises UserError for a pipe or a device.
    """
    require_regular(path)
    file = zipfile.ZipFile(path)
    names = file.namelist()
    if len(set(names)) < len(names):
        file.close()
        raise zipfile.BadZipFile("two of its members have one name")
    return file


def member(file: zipfile.ZipFile, name: str) -> io.BufferedReader:
    """The content of a member, at most as long as it declares.

    Raises KeyError where there is none, zipfile.BadZipFile for one that is packed otherwise than by deflate; reading raises one
    of DAMAGED.
    """
    info = file.getinfo(name)
    # zipfile unpacks bzip2 and LZMA whole, whatever their size.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"{name} is packed by method {info.compress_type}, not stored or deflated")
    return io.BufferedReader(_Pieces(file.open(info)), PIECE)


class _Pieces(io.RawIOBase):
    """Asks for little at a time: zipfile unpacks as much as it is asked for, and only then cuts off what was not declared."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._packed.read(min(len(buffer), PIECE))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._packed.close()
        super().close()


def array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type of the array that follows, and the length of this header in bytes.

    Raises ValueError for what is no header or too long for one.
    """
    version = np.lib.format.read_magic(stream)
    size = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(size, "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"the header of an array has {length:,} bytes; at most {LARGEST_HEADER:,} are read")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(io.BytesIO(size + stream.read(length)))
    return shape, dtype, np.lib.format.MAGIC_LEN + len(size) + length
