"""Folders and zip files of images: listed, hashed, and decoded once, in parallel, to one cached uint8 array."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pflbench import environment
from pflbench.data import cache
from pflbench.data.base import Arrays, Progress
from pflbench.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# Those of the suffixes. Pillow goes by the content: it would hand an EPS file that is called .png to Ghostscript, a program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
CHUNK = 250  # images a worker takes at a time
FEW = 2000  # below this a pool of processes costs more than it saves
REPLACE = "Replace this file by a whole one."
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")

# What zipfile raises for damaged files.
DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, RuntimeError)

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a dataset in stored order. root is a folder or a zip file, `files` are names in it, y int64 [n].

    train_size, owner: as in Arrays. size: pixels to which width and height are scaled; None: all images have one size.
    """

    root: Path
    files: tuple[str, ...]
    y: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    train_size: int | None = None
    owner: npt.NDArray[np.str_] | None = None
    size: int | None = None


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def fingerprint(listing: Listing) -> str:
    """Tells whether anything was changed: see `cache.fingerprint`. Raises UserError for a file that is not there."""
    try:
        files = (f"{listing.root}/{name}" for name in listing.files)
        return cache.fingerprint([listing.root] if listing.root.is_file() else files)
    except OSError as e:
        raise UserError(f"{e.filename} cannot be read: {e.strerror}.", "Remove it, or replace it by an image.") from e


def content(listing: Listing, root: Path, progress: Progress | None) -> str:
    """SHA-256 (hex) of all names, sizes and bytes in stored order, remembered until the fingerprint changes."""

    def compute() -> str:
        digest = hashlib.sha256()
        for name, (size, of_bytes) in zip(listing.files, digests(listing, progress), strict=True):
            digest.update(f"{name}\0{size}\0{of_bytes}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    return cache.remembered(root, f"{fingerprint(listing)}.sha256", compute)


def digests(listing: Listing, progress: Progress | None) -> list[tuple[int, str]]:
    """Of each image file, in stored order: its size in bytes and its SHA-256 (hex)."""
    jobs = [(listing.root, names) for names in _chunks(listing.files)]
    return [one for some in _parallel(_digests, jobs, "hashing images", listing, progress) for one in some]


def shape(listing: Listing) -> tuple[int, ...]:
    """[3, h, w] of the first image, whose size all have. Raises UserError if it cannot be decoded."""
    return _decode(listing.root, listing.files[0], None, listing.size)[0].shape


def load(listing: Listing, root: Path, progress: Progress | None) -> Arrays:
    """All images, uint8 [n, c, h, w]: c = 1 if every image is greyscale and none is scaled, else 3 (greyscale ones become RGB).

    Raises UserError naming the file that cannot be decoded, is no 8-bit image or, unless scaled, differs in size from the first.
    """

    def read(path: Path) -> npt.NDArray[np.uint8]:
        # Copy-on-write: torch warns of arrays it may not write to.
        x: npt.NDArray[np.uint8] = np.load(path, mmap_mode="c", allow_pickle=False)
        if x.dtype != np.uint8 or x.ndim != 4 or len(x) != len(listing.files):
            raise ValueError(f"{path} is not the array of these images")
        return x

    scaled = "" if listing.size is None else f".{listing.size}"
    x = cache.cached(root, f"{fingerprint(listing)}{scaled}.npy", read, lambda path: _decode_all(listing, path, progress))
    return Arrays(x, listing.y, listing.classes, train_size=listing.train_size, owner=listing.owner)


def _digests(job: tuple[Path, Sequence[str]]) -> list[tuple[int, str]]:
    root, names = job
    return [(len(data), hashlib.sha256(data).hexdigest()) for data in (_bytes(root, name) for name in names)]


def _decode_all(listing: Listing, path: Path, progress: Progress | None) -> None:
    each = shape(listing)
    jobs = [(listing.root, names, each, listing.size) for names in _chunks(listing.files)]
    grey = listing.size is None
    # Ordinary writes, not a memory map: a full disk then is an error, not a SIGBUS.
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(listing.files), *each)}
        np.lib.format.write_array_header_1_0(file, header)
        for x, is_grey in _parallel(_decode_chunk, jobs, "decoding images", listing, progress):
            file.write(x.data)
            grey &= is_grey
    if grey:
        one_channel = np.load(path, mmap_mode="r")[:, :1].copy()
        with path.open("wb") as file:
            np.save(file, one_channel)


def _decode_chunk(job: tuple[Path, Sequence[str], tuple[int, ...], int | None]) -> tuple[npt.NDArray[np.uint8], bool]:
    """Some images, and whether all of them are greyscale."""
    root, names, shape, size = job
    decoded = [_decode(root, name, shape, size) for name in names]
    return np.ascontiguousarray([x for x, _ in decoded]), all(grey for _, grey in decoded)


def _decode(
    root: Path, name: str, shape: tuple[int, ...] | None = None, size: int | None = None
) -> tuple[npt.NDArray[np.uint8], bool]:
    """One image as uint8 [3, h, w], and whether it is greyscale. shape: what it must have; size: what it is scaled to instead."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(_bytes(root, name)), formats=FORMATS) as image:
            if shape is not None and size is None and image.size[::-1] != shape[1:]:
                raise UserError(
                    f"{root / name} is {image.width} x {image.height} pixels; the images before it are {shape[2]} x {shape[1]}.",
                    "All images of a dataset must have one size: resize or remove this one.",
                )
            mode = image.mode
            if mode not in (*GREY, *COLOUR):
                raise UserError(f"{root / name} has pixels of type {mode}; expected an 8-bit grey or RGB image.")
            rgb = image.convert("RGB")
            rgb = rgb if size is None else rgb.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(rgb).transpose(2, 0, 1), mode in GREY
    except UnidentifiedImageError as e:  # it names the buffer
        raise UserError(f"{root / name} cannot be decoded: its content is none of {', '.join(FORMATS)}.", REPLACE) from e
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as e:
        raise UserError(f"{root / name} cannot be decoded: {e}.", REPLACE) from e


def _bytes(root: Path, name: str) -> bytes:
    """Raises UserError for a zip member whose checksum fails, OSError for a file that cannot be read."""
    if root.is_dir():
        return (root / name).read_bytes()
    try:
        return _zip(root).read(name)
    except DAMAGED as e:
        raise UserError(f"{root} is corrupt at {name}: {e}.", "Delete it and get it anew.") from e


@lru_cache(1)
def _zip(path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def _chunks(files: Sequence[str]) -> list[Sequence[str]]:
    return [files[i : i + CHUNK] for i in range(0, len(files), CHUNK)]


def _parallel(
    work: Callable[[Job], Result], jobs: Sequence[Job], what: str, listing: Listing, progress: Progress | None
) -> Iterator[Result]:
    """`work` on chunks of images, in order: in this process if they are few, else on all cores."""
    total = len(listing.files)
    for i, result in enumerate(map(work, jobs) if total < FEW else _pool_map(work, jobs), 1):
        if progress:
            progress(f"{what} of {listing.root.name}", min(i * CHUNK, total), total)
        yield result


def _pool_map(work: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("forkserver")  # this process may hold torch's and Rich's threads
    try:
        with ProcessPoolExecutor(environment.cores(), context, initializer=_ignore_interrupt) as pool:
            yield from pool.map(work, jobs)
    except BrokenProcessPool as e:
        raise UserError("A process that reads images was killed.", "Perhaps memory is short. Run it again.") from e


def _ignore_interrupt() -> None:
    import signal

    from pflbench.interrupts import SIGNALS

    for number in SIGNALS:  # whoever has started it ends it
        signal.signal(number, signal.SIG_IGN)
