"""Downloads from a server of our own: checked, and whole or not there."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.command import Shell
from support.vision_files import put_set

from pflbench import data
from pflbench._torchvision import torchvision
from pflbench.data import agnews, fetch, har, tiny
from pflbench.errors import UserError

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Server:
    """Files by path. cut: after so many bytes it hangs up."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: int | None = None
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            wanted = self.headers.get("Range", "bytes=0-")
            content = content[int(wanted.removeprefix("bytes=").removesuffix("-")) :]
            if not content:
                self.send_error(416)
                return
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            state.ranges.append(wanted)
            if self.command == "GET":
                state.requests.append(self.path)
                self.wfile.write(content[: state.cut])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        state.url = f"http://127.0.0.1:{httpd.server_port}"
        for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(proxy, raising=False)
        yield state
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("", ""),
        ("cut off", "could not be downloaded: the connection broke off after 1,000 of 1,024,000 bytes"),
        ("other bytes", "could not be downloaded: .*corrupted"),
        ("refused", "could not be downloaded: .*404"),
        ("no folder", "cannot be written"),
    ],
)
def test_a_file_is_put_in_place_whole_or_not_at_all(fault: str, told: str, server: Server, tmp_path: Path) -> None:
    server.files["/f.bin"] = CONTENT[:-1] + b"?" if fault == "other bytes" else CONTENT
    server.cut = 1000 if fault == "cut off" else None
    if fault == "refused":
        server.files.clear()
    if fault == "no folder":
        (tmp_path / "new").write_text("a file is in the way")
    target = tmp_path / "new" / "f.bin"
    if fault:
        with pytest.raises(UserError, match=told):
            fetch.fetch([f"{server.url}/f.bin"], target, MD5)
        assert not target.exists()
        if fault != "cut off":
            assert fault == "no folder" or list((tmp_path / "new").iterdir()) == []
            return
        server.cut = None
    steps: list[tuple[str, int, int]] = []
    fetch.fetch([f"{server.url}/f.bin"], target, MD5, lambda *step: steps.append(step))
    assert target.read_bytes() == CONTENT
    assert list((tmp_path / "new").iterdir()) == [target]
    assert server.ranges[-1] == ("bytes=1000-" if fault else "bytes=0-")
    assert steps[-1] == ("Downloading f.bin", len(CONTENT), len(CONTENT))


def test_a_part_that_is_whole_is_put_in_place_by_the_first_server_that_answers(server: Server, tmp_path: Path) -> None:
    server.files["/f.bin"] = CONTENT
    (tmp_path / "f.bin.part").write_bytes(CONTENT)
    fetch.fetch([f"{server.url}/absent", f"{server.url}/f.bin"], tmp_path / "f.bin", MD5)
    assert [path.name for path in tmp_path.iterdir()] == ["f.bin"]


def test_agnews_fetches_only_what_is_not_whole(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"train.csv": b'"1","a","b"\n', "test.csv": b'"2","c","d"\n'}
    monkeypatch.setattr(agnews, "URL", f"{server.url}/")
    monkeypatch.setattr(agnews, "MD5", {name: hashlib.md5(content).hexdigest() for name, content in files.items()})
    server.files = {f"/{name}": content for name, content in files.items()}
    folder = tmp_path / "ag_news_csv"
    folder.mkdir()
    (folder / "test.csv").write_bytes(files["test.csv"])
    (folder / "train.csv").write_bytes(b"cut off")
    data.download("agnews", tmp_path)
    assert set(server.requests) == {"/train.csv"}
    assert {f.state for f in data.verify("agnews", tmp_path)} == {"ok"}
    assert data.load(data.parse("agnews", tmp_path), tmp_path).y.tolist() == [0, 1]


def test_tiny_is_checked_and_used_as_the_zip_it_is(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = io.BytesIO()
    Image.new("RGB", (4, 4)).save(image, "JPEG")
    content = zipped({f"tiny-imagenet-200/train/{name}/images/{name}_0.JPEG": image.getvalue() for name in ("n1", "n2")})
    server.files["/tiny-imagenet-200.zip"] = content
    monkeypatch.setattr(tiny, "URL", f"{server.url}/tiny-imagenet-200.zip")
    with pytest.raises(UserError, match="corrupted"):
        data.download("tiny", tmp_path)
    monkeypatch.setattr(tiny, "MD5", hashlib.md5(content).hexdigest())
    monkeypatch.setattr(tiny, "CLASSES", 2)
    monkeypatch.setattr(tiny, "PER_CLASS", 1)
    data.download("tiny", tmp_path)
    server.files.clear()
    data.download("tiny", tmp_path)  # it is there: the server is not asked
    assert [f.state for f in data.verify("tiny", tmp_path)] == ["ok"]
    assert data.load(data.parse("tiny", tmp_path), tmp_path).x.shape == (2, 3, 4, 4)


def test_har_keeps_the_zip_file_inside_the_one_that_is_downloaded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No published checksum of it is known: what the server sends is taken, if it holds the zip file with readable data."""
    monkeypatch.setattr(har, "URL", f"{server.url}/har.zip")
    monkeypatch.setattr(har, "read", lambda place, progress=None: data.Arrays(np.zeros((2, 3)), np.zeros(2, int), ("a",)))
    for content in (b"<html>", zipped({"README.txt": b""})):
        server.files["/har.zip"] = content
        with pytest.raises(
            UserError, match=r"har.zip could not be downloaded: .*(not a zip file|holds no 'UCI HAR Dataset.zip')"
        ):
            data.download("har", tmp_path)
        assert list((tmp_path / "har").iterdir()) == []
    server.files["/har.zip"] = zipped({"UCI HAR Dataset.names": b"", "UCI HAR Dataset.zip": b"inner"})
    data.download("har", tmp_path)
    server.files.clear()
    data.download("har", tmp_path)  # it is there: the server is not asked
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "har").iterdir()] == [("UCI HAR Dataset.zip", b"inner")]


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def mnist_mirror(server: Server, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Serves two training images and one test image under MNIST's names, and lets torchvision know their checksums."""
    reader = torchvision().datasets.MNIST
    folder = tmp_path_factory.mktemp("mirror")
    put_set(folder, ("train", "t10k"), ([3, 4], [5]))
    resources = []
    for name, _ in reader.resources:
        server.files[f"/{name}"] = gzip.compress((folder / name.removesuffix(".gz")).read_bytes(), mtime=0)
        resources.append((name, hashlib.md5(server.files[f"/{name}"]).hexdigest()))
    monkeypatch.setattr(reader, "mirrors", [f"{server.url}/"])
    monkeypatch.setattr(reader, "resources", resources)
    return server.files.clear


def test_torchvision_downloads_and_replaces_what_is_damaged(mnist_mirror: Callable[[], None], tmp_path: Path) -> None:
    data.download("mnist", tmp_path)
    raw = tmp_path / "mnist" / "MNIST" / "raw"
    assert data.load(data.parse("mnist", tmp_path), tmp_path).y.tolist() == [3, 4, 5]
    (raw / "t10k-images-idx3-ubyte").write_bytes(b"cut off")
    data.download("mnist", tmp_path)
    assert {f.state for f in data.verify("mnist", tmp_path)} == {"ok"}
    mnist_mirror()
    data.download("mnist", tmp_path)  # everything is there: the server is not asked


@pytest.mark.parametrize("why", ["404", "corrupted"])
def test_a_failed_download_of_torchvision_is_a_users_error(
    why: str, mnist_mirror: Callable[[], None], server: Server, tmp_path: Path
) -> None:
    if why == "404":
        mnist_mirror()
    else:
        server.files["/train-images-idx3-ubyte.gz"] = gzip.compress(b"something else")
    with pytest.raises(UserError, match=rf"could not be downloaded: .*{why}") as e:
        data.download("mnist", tmp_path)
    assert "\n" not in e.value.message
    assert {f.state for f in data.verify("mnist", tmp_path)} == {"missing"}


def test_torchvision_unpacks_only_what_has_its_checksum(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tar files may write anywhere: who has not published this one has not written it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("cifar10-unpacked"))
    server.files["/cifar.tar.gz"] = buffer.getvalue()
    reader = torchvision().datasets.CIFAR10
    monkeypatch.setattr(reader, "url", f"{server.url}/cifar.tar.gz")
    with pytest.raises(UserError, match=r"could not be downloaded: .*corrupted"):
        data.download("cifar10", tmp_path)
    assert not list(tmp_path.rglob("cifar10-unpacked"))
    monkeypatch.setattr(reader, "tgz_md5", hashlib.md5(buffer.getvalue()).hexdigest())
    with pytest.raises(UserError):
        data.download("cifar10", tmp_path)
    assert list(tmp_path.rglob("cifar10-unpacked")), "with its checksum it is"


def test_the_home_in_a_data_folder_is_found(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shell leaves `~` as it is in --data-dir=~/data."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    command = ("run", "-m", "fedavg", "-d", "mnist", "--no-download", "--data-dir=~/data")
    assert f"--data-dir {tmp_path}/me/data" in shell.refused(*command)


def test_run_downloads_what_is_missing(
    mnist_mirror: Callable[[], None], server: Server, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken connection ends with the missing data's error; the same command continues the download and trains."""
    command = ("run", "-m", "fedavg", "-d", "mnist", "-p", "iid", "--clients", "1", "--model", "logreg", "-r", "1", "-q")
    assert "Get them (12 MB): pflbench data download mnist" in shell.refused(*command, "--no-download")
    assert not server.requests
    monkeypatch.delenv("PFLBENCH_DOWNLOAD")
    server.cut = 30
    done = shell(*command)
    assert done.code == 2
    assert "mnist is not in data: downloading 12 MB." in done.err
    assert "the connection broke off after 30 of" in done.err
    server.cut = None
    assert shell(*command).code == 0
    assert "bytes=30-" in server.ranges
    assert "downloading" not in shell(*command).err
