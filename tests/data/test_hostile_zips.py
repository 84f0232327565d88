"""Zip files that somebody else made: read rightly or refused, in little memory, and nothing is written outside the cache."""

from __future__ import annotations

import bz2
import io
import stat
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pflbench import data
from pflbench.data import tiny
from pflbench.errors import UserError
from pflbench.partition import pfllib, pickled

LARGE = 2**24  # bytes that a bomb has, once it is unpacked
LITTLE = 2**23
X, Y = np.arange(32, dtype=np.float32).reshape(8, 4), np.arange(8) % 2
NAMES = [f"tiny-imagenet-200/train/{c}/images/{c}_{i}.PNG" for c in ("n1", "n2") for i in range(2)]
PACK: dict[int, Callable[[bytes], bytes]] = {
    zipfile.ZIP_STORED: bytes,
    zipfile.ZIP_DEFLATED: lambda content: zlib.compress(content, 1)[2:-4],
    zipfile.ZIP_BZIP2: bz2.compress,
}

Member = tuple[str, int, bytes, int, int]  # name, method, packed content, checksum, declared size


def member(name: str, content: bytes, method: int = zipfile.ZIP_STORED, *, declared: int | None = None) -> Member:
    """The checksum is that of what is declared: nothing but the size tells that there is more."""
    size = len(content) if declared is None else declared
    return name, method, PACK[method](content), zlib.crc32(content[:size]), size


def write(path: Path, members: list[Member], links: tuple[str, ...] = ()) -> Path:
    """By the format alone: zipfile writes no such files."""
    contents, directory = b"", b""
    for name, method, packed, checksum, size in members:
        known = struct.pack("<3H3I2H", method, 0, 33, checksum, len(packed), size, len(name.encode()), 0)
        mode = (stat.S_IFLNK | 0o777) << 16 if name in links else 0
        directory += struct.pack("<4s3H", b"PK\1\2", 3 << 8, 20, 0) + known
        directory += struct.pack("<3H2I", 0, 0, 0, mode, len(contents)) + name.encode()
        contents += struct.pack("<4s2H", b"PK\3\4", 20, 0) + known + name.encode() + packed
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(contents), 0)
    path.write_bytes(contents + directory + end)
    return path


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


def png(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (value, 0, 0)).save(out, "PNG")
    return out.getvalue()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def header(shape: tuple[int, ...], dtype: str) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder below one that stays as it is. Tiny-ImageNet has 2 classes of 2 images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "user-cache"))
    monkeypatch.setattr(tiny, "CLASSES", 2)
    monkeypatch.setattr(tiny, "PER_CLASS", 2)
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    yield folder
    assert [path.name for path in (tmp_path, *tmp_path.iterdir())] == [tmp_path.name, "a"]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"b"}


def images(root: Path, members: list[Member], links: tuple[str, ...] = ()) -> data.Arrays:
    write(root / "tiny-imagenet-200.zip", members, links)
    return data.load(data.parse("tiny", root), root)


def own(root: Path, *members: Member) -> data.Arrays:
    file = write(root / "own.npz", [*members])
    return data.load(data.parse(f"npz:{file}", root), root)


@pytest.mark.parametrize(("above", "read"), [("..", True), ("/", True), ("../../../outside", False), ("/tmp", False)])
def test_names_that_lead_elsewhere(root: Path, above: str, read: bool) -> None:
    """Names are never paths to write to; a member is an image or is none."""
    members = [member(name.replace("tiny-imagenet-200", above).replace("//", "/"), png(i)) for i, name in enumerate(NAMES)]
    if read:
        assert images(root, members).x[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    else:
        with pytest.raises(UserError, match="0 of 2 classes"):
            images(root, members)
    assert {path.name for path in root.iterdir()} <= {"tiny-imagenet-200.zip", ".cache"}


def test_a_link_is_no_image(root: Path) -> None:
    """What it leads to is one, and is not looked at."""
    (root / "private.png").write_bytes(png(9))
    members = [*(member(name, png(0)) for name in NAMES[:3]), member(NAMES[3], str(root / "private.png").encode())]
    with pytest.raises(UserError, match=r"n2_1\.PNG cannot be decoded: its content is none of"):
        images(root, members, links=(NAMES[3],))


def test_one_name_twice(root: Path) -> None:
    """The numbers are those of a whole one; an image would be read twice, and another one never."""
    members = [member(NAMES[i], png(i)) for i in (0, 1, 2, 2)]
    with pytest.raises(UserError, match="two of its members have one name"):
        images(root, members)
    with pytest.raises(UserError, match="two of its members have one name"):
        own(root, member("x.npy", npy(X)), member("x.npy", npy(X + 1)), member("y.npy", npy(Y)))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_an_image_that_is_larger_than_it_declares(root: Path, method: int) -> None:
    members = [member(NAMES[0], bytes(LARGE), method, declared=100), *(member(name, png(0)) for name in NAMES[1:])]
    with little_memory(), pytest.raises(UserError, match=r"n1_0\.PNG (cannot be decoded|is packed by method 12)"):
        images(root, members)


@pytest.mark.parametrize("size", [200, 2048])
def test_an_image_that_is_smaller_than_it_declares(root: Path, size: int) -> None:
    """2048 MiB are refused unread; 200 end where they end."""
    first = member(NAMES[0], png(0), zipfile.ZIP_DEFLATED, declared=size * 2**20)
    members = [first, *(member(name, png(i)) for i, name in enumerate(NAMES[1:], 1))]
    with little_memory():
        if size == 200:
            assert images(root, members).x[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
        else:
            with pytest.raises(UserError, match="has 2048 MiB; an image has at most 256"):
                images(root, members)


def test_cut_off_and_changed_ones(root: Path) -> None:
    wrong = [(name, method, packed, crc ^ 1, size) for name, method, packed, crc, size in [member(NAMES[0], png(0))]]
    with pytest.raises(UserError, match=r"corrupt at .*n1_0\.PNG: Bad CRC-32"):
        images(root, [*wrong, *(member(name, png(0)) for name in NAMES[1:])])
    for name, array in (("x", X), ("y", Y)):
        good = {"x": member("x.npy", npy(X)), "y": member("y.npy", npy(Y))}
        good[name] = (f"{name}.npy", 0, npy(array), 1, len(npy(array)))
        with pytest.raises(UserError, match=f"Bad CRC-32 for file '{name}.npy'"):
            own(root, *good.values())
    whole = write(root / "own.npz", [member("x.npy", npy(X)), member("y.npy", npy(Y))]).read_bytes()
    for keep in (0, 30, len(whole) // 2, len(whole) - 1):
        (root / "own.npz").write_bytes(whole[:keep])
        with pytest.raises(UserError, match=r"own\.npz cannot be read"):
            data.load(data.parse(f"npz:{root}/own.npz", root), root)


LONG = b"\x93NUMPY\x02\x00" + struct.pack("<I", LARGE)  # a header of so many bytes


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (member("x.npy", LONG + bytes(LARGE), zipfile.ZIP_DEFLATED), "the header of an array has 16,777,216 bytes"),
        (member("x.npy", header((8, 4), "<f4") + bytes(LARGE), zipfile.ZIP_DEFLATED, declared=256), None),
        (member("x.npy", npy(X) + bytes(LARGE), zipfile.ZIP_BZIP2, declared=256), "packed by method 12"),
        (("x.npy", zipfile.ZIP_LZMA, b"\t\4\5\0" + b"\xff" * 50, 0, 256), "packed by method 14"),
    ],
)
def test_an_array_that_is_not_what_it_declares(root: Path, x: Member, words: str | None) -> None:
    with little_memory():
        if words is None:
            assert not own(root, x, member("y.npy", npy(Y))).x.any()
        else:
            with pytest.raises(UserError, match=words):
                own(root, x, member("y.npy", npy(Y)))


def test_an_array_that_is_smaller_than_it_declares(root: Path) -> None:
    x = member("x.npy", header((2**29,), "<f4"), zipfile.ZIP_DEFLATED, declared=2**31 + 128)
    with pytest.raises(UserError, match=r"own\.npz (cannot be read|does not fit into memory)"):
        own(root, x, member("y.npy", npy(Y)))


def test_a_member_beside_the_array_is_not_taken_for_it(root: Path) -> None:
    """NumPy prefers `x` to `x.npy`, and gives what is no array as bytes."""
    arrays = own(root, member("x", b"no array"), member("x.npy", npy(X)), member("y.npy", npy(Y)))
    np.testing.assert_array_equal(arrays.x, X)
    with pytest.raises(UserError, match="has no array 'x'"):
        own(root, member("x", npy(X)), member("y.npy", npy(Y)))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("content", [LONG, header((), "|O") + b"\x80\4C\1"], ids=["header", "pickle"])
def test_a_pickle_that_is_larger_than_it_declares(root: Path, method: int, content: bytes) -> None:
    file = write(root / "0.npz", [member("data.npy", content + bytes(LARGE), method, declared=200)])
    with little_memory(), pytest.raises(UserError, match=r"0\.npz is damaged"):
        pickled.read(file)


def test_a_version_of_the_format_that_nobody_knows(root: Path) -> None:
    (root / "train").mkdir()
    content = write(root / "train" / "0.npz", [member("data.npy", b"")]).read_bytes()
    at = content.index(b"PK\1\2") + 6
    (root / "train" / "0.npz").write_bytes(content[:at] + b"\xff\0" + content[at + 2 :])
    (root / "config.json").write_text('{"num_clients": 1}')
    with pytest.raises(UserError, match=r"0\.npz is damaged"):
        pfllib.describe(root)
