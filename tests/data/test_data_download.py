"""Downloads from a server of our own: resumed, retried, checked; through torchvision's downloader too."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pflbench import data
from pflbench._torchvision import torchvision
from pflbench.data import agnews, fetch, tiny
from pflbench.errors import UserError

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Server:
    """Files by path. `answers` are taken one per request before the honest ones: a status, or after how many bytes to hang up."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    answers: list[tuple[str, int]] = field(default_factory=list)
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.requests.append((self.path, wanted))
            kind, number = state.answers.pop(0) if state.answers else ("whole", 0)
            content = state.files.get(self.path)
            if kind == "status" or content is None:
                self.send_error(number or 404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[start:] if kind == "whole" else content[start : start + number])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        state.url = f"http://127.0.0.1:{httpd.server_port}"
        for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(proxy, raising=False)
        monkeypatch.setattr(fetch, "PAUSE", 0.001)
        yield state
        httpd.shutdown()
        thread.join()


def get(server: Server, tmp_path: Path, checksum: str = MD5, progress: data.Progress | None = None) -> Path:
    fetch.fetch(f"{server.url}/f.bin", tmp_path / "new" / "f.bin", checksum, progress)
    return tmp_path / "new" / "f.bin"


def test_a_file_arrives_with_progress(server: Server, tmp_path: Path) -> None:
    server.files["/f.bin"] = CONTENT
    calls: list[tuple[str, int, int]] = []
    target = get(server, tmp_path, progress=lambda *call: calls.append(call))
    assert target.read_bytes() == CONTENT
    assert calls[-1] == ("downloading f.bin", len(CONTENT), len(CONTENT))
    assert [p.name for p in target.parent.iterdir()] == ["f.bin"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_resumed_or_begun_anew(ranges: bool, server: Server, tmp_path: Path) -> None:
    server.files["/f.bin"] = CONTENT
    server.ranges = ranges
    server.answers = [("cut", 100_000), ("status", 503), ("cut", 50_000 if ranges else 150_000)]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]


def test_a_later_command_goes_on_where_the_first_gave_up(server: Server, tmp_path: Path) -> None:
    server.files["/f.bin"] = CONTENT
    server.answers = [("cut", 1000)] * fetch.ATTEMPTS
    with pytest.raises(UserError, match="connection ended after 5,000 of 1,024,000 bytes") as e:
        get(server, tmp_path)
    assert "run the command again" in e.value.hint
    assert not (tmp_path / "new" / "f.bin").exists()
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/f.bin", "bytes=5000-")


@pytest.mark.parametrize("leftover", [b"of another file", CONTENT, CONTENT + b"too much"])
def test_a_leftover_part_is_completed_or_replaced(leftover: bytes, server: Server, tmp_path: Path) -> None:
    server.files["/f.bin"] = CONTENT
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "f.bin.part").write_bytes(leftover)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_never_put_in_place(server: Server, tmp_path: Path) -> None:
    server.files["/f.bin"] = CONTENT[:-1] + b"?"
    with pytest.raises(UserError, match=f"f.bin from .* is corrupt: its MD5 is .*, expected {MD5}"):
        get(server, tmp_path)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_refusal_is_told_at_once(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the server answered 404"):
        get(server, tmp_path)
    assert len(server.requests) == 1


def test_no_server_at_all(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"could not be downloaded: .*refused"):
        fetch.fetch("http://127.0.0.1:9/f.bin", tmp_path / "f.bin", MD5)


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    server.files["/f.bin"] = CONTENT
    (tmp_path / "new").write_text("a file is in the way")
    with pytest.raises(UserError, match="cannot be written") as e:
        get(server, tmp_path)
    assert "--data-dir" in e.value.hint


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
    assert [path for path, _ in server.requests] == ["/train.csv"]
    assert {f.state for f in data.verify("agnews", tmp_path)} == {"ok"}
    assert data.load(data.parse("agnews", tmp_path), tmp_path).y.tolist() == [0, 1]


def test_tiny_is_checked_and_used_as_the_zip_it_is(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in ("n1", "n2"):
            image = io.BytesIO()
            Image.new("RGB", (4, 4)).save(image, "JPEG")
            file.writestr(f"tiny-imagenet-200/train/{name}/images/{name}_0.JPEG", image.getvalue())
    server.files["/tiny-imagenet-200.zip"] = buffer.getvalue()
    monkeypatch.setattr(tiny, "URL", f"{server.url}/tiny-imagenet-200.zip")
    with pytest.raises(UserError, match="is corrupt"):
        data.download("tiny", tmp_path)
    monkeypatch.setattr(tiny, "MD5", hashlib.md5(buffer.getvalue()).hexdigest())
    monkeypatch.setattr(tiny, "CLASSES", 2)
    monkeypatch.setattr(tiny, "PER_CLASS", 1)
    data.download("tiny", tmp_path)
    data.download("tiny", tmp_path)
    assert len(server.requests) == 2  # the corrupt one, the good one, and none for what is there
    assert [f.state for f in data.verify("tiny", tmp_path)] == ["ok"]
    assert data.load(data.parse("tiny", tmp_path), tmp_path).x.shape == (2, 3, 4, 4)


def idx(labels: list[int] | None, n: int) -> bytes:
    if labels is not None:
        return struct.pack(">4BI", 0, 0, 8, 1, n) + bytes(labels)
    return struct.pack(">4B3I", 0, 0, 8, 3, n, 28, 28) + bytes(n * 784)


@pytest.fixture
def mnist_mirror(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Serves two training images and one test image under MNIST's names, and lets torchvision know their checksums."""
    reader = torchvision().datasets.MNIST
    contents = [idx(None, 2), idx([3, 4], 2), idx(None, 1), idx([5], 1)]
    resources = []
    for (name, _), content in zip(reader.resources, contents, strict=True):
        server.files[f"/{name}"] = gzip.compress(content, mtime=0)
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


def test_a_failed_download_of_torchvision_is_a_users_error(mnist_mirror: Callable[[], None], tmp_path: Path) -> None:
    mnist_mirror()
    with pytest.raises(UserError, match=r"'mnist' could not be downloaded: .*404") as e:
        data.download("mnist", tmp_path)
    assert "\n" not in e.value.message


def test_a_corrupt_download_of_torchvision_is_a_users_error(
    mnist_mirror: Callable[[], None], server: Server, tmp_path: Path
) -> None:
    server.files["/train-images-idx3-ubyte.gz"] = gzip.compress(b"something else")
    with pytest.raises(UserError, match=r"'mnist' could not be downloaded: .*corrupted"):
        data.download("mnist", tmp_path)
    assert {f.state for f in data.verify("mnist", tmp_path)} == {"missing"}


def test_torchvision_unpacks_only_what_has_its_checksum(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tar files may write anywhere: who has not published this one has not written it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("cifar10-unpacked"))
    server.files["/cifar.tar.gz"] = buffer.getvalue()
    reader = torchvision().datasets.CIFAR10
    monkeypatch.setattr(reader, "url", f"{server.url}/cifar.tar.gz")
    with pytest.raises(UserError, match=r"'cifar10' could not be downloaded: .*corrupted"):
        data.download("cifar10", tmp_path)
    assert not list(tmp_path.rglob("cifar10-unpacked"))
    monkeypatch.setattr(reader, "tgz_md5", hashlib.md5(buffer.getvalue()).hexdigest())
    with pytest.raises(UserError):
        data.download("cifar10", tmp_path)
    assert list(tmp_path.rglob("cifar10-unpacked")), "with its checksum it is"
