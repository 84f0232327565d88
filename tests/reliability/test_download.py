"""kill -9 in a download: the same command goes on, and what lies there in the end is what the server has."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults.client import Disturbance, Forks
from support.faults.tally import Tally
from support.faults.victims import Material, Trials, Victim

TEXTS = "".join(f'"{1 + i % 4}","title {i}","{i * i} and so on"\n' for i in range(2000)).encode()
AGNEWS = {"train.csv": TEXTS, "test.csv": TEXTS[:9000]}


def idx(number: int, images: bool) -> bytes:
    if images:
        return struct.pack(">4B3I", 0, 0, 8, 3, number, 28, 28) + bytes(number * 784)
    return struct.pack(">4BI", 0, 0, 8, 1, number) + bytes(number)


MNIST = {
    f"{part}-{name}-ubyte.gz": gzip.compress(idx(number, "images" in name), mtime=0)
    for part, number in (("train", 60), ("t10k", 10))
    for name in ("images-idx3", "labels-idx1")
}


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Its address. It has these files, and goes on where it is asked to."""
    files = {f"/{name}": content for name, content in (AGNEWS | MNIST).items()}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content, wanted = files[self.path], self.headers.get("Range")
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()
        thread.join()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def patches(name: str, url: str) -> list[Disturbance]:
    """The server's address and checksums, and blocks so small that a download can be killed between them."""
    if name == "agnews":
        sums = {name: md5(content) for name, content in AGNEWS.items()}
        return [("patched", {"module": "pflbench.data.agnews", "URL": url, "MD5": sums}), SMALL_BLOCKS]
    known = [(name, md5(content)) for name, content in MNIST.items()]
    return [("patched", {"module": "torchvision.datasets", "MNIST__mirrors": [url], "MNIST__resources": known})]


SMALL_BLOCKS: Disturbance = ("patched", {"module": "pflbench.data.fetch", "BLOCK": 4096})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agnews", "mnist"])
def test_download(name: str, server: str, forks: Forks, material: Material, tmp_path: Path, tally: Tally) -> None:
    """kill -9 before a file operation, and at a random time, of a download"""
    victim = Victim(f"download of {name}", ("data", "download", name, "--data-dir", "data"))
    of, chance = Trials(victim, forks, material, tmp_path, patches(name, server)), random.Random(0)
    for at in tally.some(range(len(of.whole.events["file"])), 3):
        of.killed_at(tally, "file", at)
    for _ in range(tally.number(3, 15)):
        of.killed_after(tally, chance.random() * of.whole.seconds)
