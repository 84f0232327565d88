"""domains:PATH@SIZE: small folders laid out as Office-Caltech-10 and PACS are, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pflbench import data
from pflbench.errors import UserError


def put(path: Path, seed: int, width: int = 20, height: int = 12, grey: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width) if grey else (height, width, 3)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)).save(path)


def test_images_of_a_domain_are_scaled_and_owned_by_it(tmp_path: Path) -> None:
    put(tmp_path / "pacs" / "art" / "dog" / "b.png", 0)
    put(tmp_path / "pacs" / "art" / "dog" / "a.png", 1, grey=True)
    put(tmp_path / "pacs" / "photo" / "cat" / "1.png", 2, width=50, height=40)
    put(tmp_path / "pacs" / "photo" / "dog" / "1.png", 3, width=24, height=24)
    (tmp_path / "pacs" / "splits.txt").write_text("no domain")
    arrays = data.load(data.parse(f"domains:{tmp_path}/pacs@24", tmp_path), tmp_path)
    assert (arrays.x.shape, arrays.x.dtype, arrays.classes) == ((4, 3, 24, 24), np.uint8, ("cat", "dog"))
    assert arrays.y.tolist() == [1, 1, 0, 1]
    assert arrays.owner is not None
    assert arrays.owner.tolist() == ["art", "art", "photo", "photo"]
    with Image.open(tmp_path / "pacs" / "photo" / "cat" / "1.png") as image:
        scaled = np.asarray(image.resize((24, 24), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(arrays.x[2], scaled.transpose(2, 0, 1))
    np.testing.assert_array_equal(arrays.x[0, 0], arrays.x[0, 1])  # the grey one
    with Image.open(tmp_path / "pacs" / "photo" / "dog" / "1.png") as image:
        np.testing.assert_array_equal(arrays.x[3], np.asarray(image).transpose(2, 0, 1))  # it has that size


def test_grey_images_become_rgb(tmp_path: Path) -> None:
    for domain in ("mnist", "usps"):
        for name in "01":
            put(tmp_path / "digits" / domain / name / "0.png", 0, grey=True)
    assert data.load(data.parse(f"domains:{tmp_path}/digits", tmp_path), tmp_path).x.shape == (4, 3, 32, 32)


def test_size_and_domains_enter_the_hash(tmp_path: Path) -> None:
    for k, place in enumerate(("amazon/bike", "amazon/mug", "dslr/bike", "dslr/mug")):
        put(tmp_path / "office" / place / "frame_0001.jpg", k)
    (tmp_path / "office" / "pflbench.db.checkpoints").mkdir()  # no domain
    specs = [data.parse(f"domains:{tmp_path}/office{size}", tmp_path) for size in ("", "@32", "@8")]
    assert specs[0].content == specs[1].content != specs[2].content
    assert specs[2].label == "domains:office@8"
    assert [data.load(spec, tmp_path).x.shape[-1] for spec in specs] == [32, 32, 8]
    assert [data.defaults(spec, tmp_path).model for spec in specs] == ["cnn", "cnn", "mlp"]
    (tmp_path / "office").rename(tmp_path / "office@8")
    assert data.parse(f"domains:{tmp_path}/office@8", tmp_path).content == specs[0].content, "a folder's own name"
    (tmp_path / "office@8").rename(tmp_path / "office")
    (tmp_path / "office" / "dslr").rename(tmp_path / "office" / "e")
    assert data.parse(f"domains:{tmp_path}/office", tmp_path).content != specs[0].content


@pytest.mark.parametrize(
    ("files", "path", "words"),
    [
        (["cat/1.png", "dog/1.png"], "", "cat holds no folders with images"),
        (["train/cat/1.png", "test/cat/1.png"], "", "test has the name of a training or test part"),
        (["a/images/cat/1.png", "b/cat/1.png"], "", "a holds no folders with images"),
        (["a/cat/1.png", "b/cat/1.png"], "", "has 2 domains and 1 classes"),
        (["a/cat/1.png", "a/dog/1.png"], "", "has 1 domains and 2 classes"),
        ([], "", "has 0 domains and 0 classes"),
        ([], "@0", "cannot be scaled to 0 pixels"),
        ([], "/nowhere", "nowhere does not exist"),
        ([], "/nowhere@16", "nowhere does not exist"),
    ],
)
def test_other_layouts_are_refused(files: list[str], path: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for file in files:
        put(tmp_path / "own" / file, 0)
    with pytest.raises(UserError) as caught:
        data.parse(f"domains:{tmp_path}/own{path}", tmp_path)
    assert words in caught.value.message
    assert len(str(caught.value).splitlines()) == 2
