"""Folders of images and Tiny-ImageNet: layouts, order, decoding, the cache, and files that must not be used."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.spies import on_call

from pflbench import data
from pflbench.data import images, tiny
from pflbench.data.cache import cached
from pflbench.errors import UserError

Pixels = npt.NDArray[np.uint8]


def pixels(seed: int, *, size: int = 6, grey: bool = False) -> Pixels:
    shape = (size, size) if grey else (size, size, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def put(path: Path, array: Pixels) -> Pixels:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return array


def put_two(source: Path) -> None:
    """Two classes of one image each."""
    for name in "ab":
        put(source / name / "0.png", pixels(ord(name)))


def load(path: Path, root: Path) -> data.Arrays:
    return data.load(data.parse(f"folder:{path}", root), root)


def test_plain_class_folders_in_order_of_names(tmp_path: Path) -> None:
    source = tmp_path / "pets"
    order = [("cat", "10.png"), ("cat", "9.PNG"), ("dog", "a.png")]
    expected = {place: put(source.joinpath(*place), pixels(i)) for i, place in enumerate(order)}
    (source / "cat" / ".hidden.png").write_bytes(b"no image")
    (source / "cat" / "notes.txt").write_text("no image")
    arrays = load(source, tmp_path)
    assert arrays.classes == ("cat", "dog")
    assert arrays.y.tolist() == [0, 0, 1]
    assert arrays.x.dtype == np.uint8
    for i, place in enumerate(order):
        np.testing.assert_array_equal(arrays.x[i], expected[place].transpose(2, 0, 1))


@pytest.mark.parametrize(("size", "model"), [(15, "mlp"), (16, "cnn")])
def test_the_default_model_follows_the_size(size: int, model: str, tmp_path: Path) -> None:
    for name in "ab":
        put(tmp_path / "pets" / name / "0.png", pixels(0, size=size))
    assert data.defaults(data.parse(f"folder:{tmp_path / 'pets'}", tmp_path), tmp_path).model == model


@pytest.mark.parametrize("inner", ["", "images"])
@pytest.mark.parametrize("held_out", ["test", "val"])
def test_split_folders_are_merged_train_first(inner: str, held_out: str, tmp_path: Path) -> None:
    source = tmp_path / "s"
    first = put(source / "train" / "b" / inner / "0.png", pixels(0))
    put(source / "train" / "a" / inner / "0.png", pixels(1))
    last = put(source / held_out / "b" / inner / "0.png", pixels(2))
    arrays = load(source, tmp_path)
    assert (arrays.classes, arrays.y.tolist(), arrays.train_size) == (("a", "b"), [0, 1, 1], 2)
    np.testing.assert_array_equal(arrays.x[1:], np.stack([first, last]).transpose(0, 3, 1, 2))


def test_unlabelled_images_are_left_out(tmp_path: Path) -> None:
    """Tiny-ImageNet's val/images is no class (methods.md 5)."""
    for name in ("train/a", "train/b", "val/images"):
        put(tmp_path / "s" / name / "0.png", pixels(0))
    arrays = load(tmp_path / "s", tmp_path)
    assert (len(arrays.y), arrays.train_size) == (2, None)


@pytest.mark.parametrize("folders", [("train", "test", "val"), ("train", "training"), ("train",), ("",)])
def test_where_the_test_part_begins_is_not_guessed(folders: tuple[str, ...], tmp_path: Path) -> None:
    for folder in folders:
        for name in "ab":
            put(tmp_path / "s" / folder / name / "0.png", pixels(0))
    assert load(tmp_path / "s", tmp_path).train_size is None


def test_greyscale_images_stay_one_channel_unless_one_has_colour(tmp_path: Path) -> None:
    source = tmp_path / "s"
    a, b = (put(source / name / "0.png", pixels(i, grey=True)) for i, name in enumerate("ab"))
    np.testing.assert_array_equal(load(source, tmp_path).x, np.stack([a, b])[:, None])
    colour = put(source / "b" / "1.png", pixels(2))
    x = load(source, tmp_path).x
    np.testing.assert_array_equal(x, np.stack([np.stack([a] * 3), np.stack([b] * 3), colour.transpose(2, 0, 1)]))


def test_many_images_decode_in_a_pool_as_they_do_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "s"
    for i in range(23):
        put(source / "ab"[i % 2] / f"{i:02}.png", pixels(i))
    here = load(source, tmp_path / "here")
    monkeypatch.setattr(images, "FEW", 0)
    monkeypatch.setattr(images, "CHUNK", 5)
    calls: list[tuple[str, int, int]] = []
    spec = data.parse(f"folder:{source}", tmp_path / "pool")
    pooled = data.load(spec, tmp_path / "pool", lambda *call: calls.append(call))
    np.testing.assert_array_equal(pooled.x, here.x)
    assert spec == data.parse(f"folder:{source}", tmp_path / "here")
    assert calls == [("decoding images of s", done, 23) for done in (5, 10, 15, 20, 23)]
    (source / "a" / "00.png").write_bytes((source / "a" / "00.png").read_bytes()[:-30])
    with pytest.raises(UserError, match=r"a/00\.png cannot be decoded"):  # also out of another process
        load(source, tmp_path / "pool")


def test_images_are_decoded_anew_if_they_change_or_their_cache_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "s"
    put_two(source)
    first = load(source, tmp_path)
    decoded: list[str] = []
    on_call(monkeypatch, images, "_decode", lambda root, name, *_: decoded.append(name))
    np.testing.assert_array_equal(load(source, tmp_path).x, first.x)
    assert decoded == []
    put(source / "b" / "0.png", pixels(1))
    np.testing.assert_array_equal(load(source, tmp_path).x[1], pixels(1).transpose(2, 0, 1))
    assert decoded
    for cache in (tmp_path / ".cache").glob("*.npy"):
        cache.write_bytes(cache.read_bytes()[:-7])
    np.testing.assert_array_equal(load(source, tmp_path).x[1], pixels(1).transpose(2, 0, 1))
    assert not list((tmp_path / ".cache").glob("*.part"))


def test_the_user_cache_serves_where_the_data_folder_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    root = tmp_path / "root"
    root.mkdir()
    (root / ".cache").write_text("a file is in the way")
    put_two(tmp_path / "s")
    assert len(load(tmp_path / "s", root).y) == 2
    assert list((tmp_path / "user-cache" / "pflbench").glob("*.npy"))
    shutil.rmtree(tmp_path / "user-cache")
    (tmp_path / "user-cache").write_text("here too")
    with pytest.raises(UserError, match="No cache can be written"):
        load(tmp_path / "s", root)


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    def build(path: Path) -> None:
        path.write_text("half")
        with open("/dev/full", "w") as file:
            file.write("other half")

    with pytest.raises(UserError, match="disk is full"):
        cached(tmp_path, "x", lambda path: path.read_text(), build)
    assert [p.name for p in (tmp_path / ".cache").iterdir()] == ["x.lock"]


def test_the_content_follows_bytes_and_names_but_not_the_place(tmp_path: Path) -> None:
    put_two(tmp_path / "s")

    def content(folder: str) -> str | None:
        return data.parse(f"folder:{tmp_path / folder}", tmp_path).content

    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    original = content("s")
    assert content("copy") == original
    (tmp_path / "copy" / "b").rename(tmp_path / "copy" / "c")
    assert content("copy") != original
    (tmp_path / "copy" / "c").rename(tmp_path / "copy" / "b")
    assert content("copy") == original
    put(tmp_path / "copy" / "b" / "0.png", pixels(9))
    assert content("copy") != original


def test_folders_that_are_no_classification_data(tmp_path: Path) -> None:
    put(tmp_path / "flat" / "0.png", pixels(0))
    with pytest.raises(UserError, match="holds 0 folders with images"):
        load(tmp_path / "flat", tmp_path)
    for name in ("train/a", "train/b", "test/c", "test/a"):
        put(tmp_path / "split" / name / "0.png", pixels(0))
    with pytest.raises(UserError, match="'c' is no class"):
        load(tmp_path / "split", tmp_path)


@pytest.fixture
def small_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tiny-ImageNet's layout with 2 classes of 3 images; the last one is greyscale, as some are."""
    monkeypatch.setattr(tiny, "CLASSES", 2)
    monkeypatch.setattr(tiny, "PER_CLASS", 3)
    folder = tmp_path / "tiny-imagenet-200"
    for c, wnid in enumerate(["n02", "n01"]):
        for i in (0, 2, 10):
            put(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", pixels(c, size=8, grey=c == 1 and i == 10))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    put(folder / "val" / "images" / "val_0.JPEG", pixels(7))
    return folder


def as_zip(folder: Path) -> Path:
    target = folder.with_name("tiny-imagenet-200.zip")
    with zipfile.ZipFile(target, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))
    shutil.rmtree(folder)
    return target


@pytest.mark.parametrize("where", ["root", "root/tiny"])
def test_tiny_from_the_folder_and_from_the_zip_are_the_same(where: str, small_tiny: Path, tmp_path: Path) -> None:
    (tmp_path / where).mkdir(parents=True)
    folder = small_tiny.rename(tmp_path / where / small_tiny.name)
    root = tmp_path / "root"
    unpacked = data.load(data.parse("tiny", root), root)
    assert (unpacked.classes, unpacked.y.tolist()) == (("n01", "n02"), [0, 0, 0, 1, 1, 1])
    files = [f"{c}/images/{c}_{i}.JPEG" for c in ("n01", "n02") for i in (0, 10, 2)]
    for x, name in zip(unpacked.x, files, strict=True):
        with Image.open(folder / "train" / name) as image:
            np.testing.assert_array_equal(x, np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    as_zip(folder)
    zipped = data.load(data.parse("tiny", root), root)
    np.testing.assert_array_equal(zipped.x, unpacked.x)
    assert (zipped.classes, zipped.y.tolist()) == (unpacked.classes, unpacked.y.tolist())


def test_an_incomplete_tiny_is_refused(small_tiny: Path, tmp_path: Path) -> None:
    (small_tiny / "train" / "n02" / "images" / "n02_10.JPEG").unlink()
    with pytest.raises(UserError, match=r"2 of 3 images of class n02(.|\n)*pflbench data download tiny"):
        data.load(data.parse("tiny", tmp_path), tmp_path)
    assert [f.state for f in data.verify("tiny", tmp_path)] == ["corrupt"]
    shutil.rmtree(small_tiny / "train" / "n02")
    with pytest.raises(UserError, match="1 of 2 classes"):
        data.load(data.parse("tiny", tmp_path), tmp_path)


def test_a_damaged_image_in_tiny_is_named(small_tiny: Path, tmp_path: Path) -> None:
    assert [f.state for f in data.verify("tiny", tmp_path)] == ["ok"]
    path = small_tiny / "train" / "n01" / "images" / "n01_2.JPEG"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=r"n01_2\.JPEG cannot be decoded"):
        data.load(data.parse("tiny", tmp_path), tmp_path)
    (finding,) = data.verify("tiny", tmp_path)
    assert finding.state == "corrupt"
    assert "n01_2.JPEG" in finding.detail


def test_a_damaged_zip_file_is_named(small_tiny: Path, tmp_path: Path) -> None:
    target = as_zip(small_tiny)
    whole = target.read_bytes()
    target.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"tiny-imagenet-200\.zip is corrupt"):
        data.load(data.parse("tiny", tmp_path), tmp_path)
    target.write_bytes(whole.replace(b"JFIF", b"JFIX", 1))  # in the first image of those that are read
    with pytest.raises(UserError, match=r"tiny-imagenet-200\.zip is corrupt at .*CRC"):
        data.load(data.parse("tiny", tmp_path), tmp_path)
    (finding,) = data.verify("tiny", tmp_path)
    assert finding.state == "corrupt"
    assert "CRC" in finding.detail


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 6 6
%%EndComments
(made-by-ghostscript) print
showpage
%%EOF
"""


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: put(path, pixels(0, size=7)), "is 7 x 7 pixels; the images before it are 6 x 6"),
        (lambda path: put(path, np.full((6, 6), 40_000, np.uint16)), "has pixels of type I;16"),
        # Pillow itself would open it by its content, and hand it to Ghostscript.
        (lambda path: path.write_bytes(EPS), "cannot be decoded: its content is none of JPEG, PNG"),
        (lambda path: path.symlink_to("nowhere"), "cannot be read"),
    ],
)
def test_a_file_that_is_no_image_like_the_others_is_named(
    write: Callable[[Path], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import EpsImagePlugin

    called: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *a, **k: called.append(a))
    put(tmp_path / "s" / "a" / "0.png", pixels(0))
    (tmp_path / "s" / "b").mkdir()
    write(tmp_path / "s" / "b" / "0.png")
    with pytest.raises(UserError, match=rf"b/0\.png {words}"):
        load(tmp_path / "s", tmp_path)
    assert called == []
