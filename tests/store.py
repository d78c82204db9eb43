"""An object store on this machine: the S3 of moto, in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import Request, urlopen

KEYS = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


@contextmanager
def running() -> Iterator[str]:
    """Yield the URL of a bucket; what reads the environment finds the store while this lasts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], **quiet)  # type: ignore[call-overload]
    before = dict(os.environ)
    os.environ.update(KEYS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    try:
        for _ in range(300):
            try:
                urlopen(Request(f"http://127.0.0.1:{port}/archive-{port}", method="PUT"))
                break
            except URLError:
                time.sleep(0.1)
        yield f"s3://archive-{port}"  # file systems are cached by their URL
    finally:
        server.terminate()
        server.wait()
        os.environ.clear()
        os.environ.update(before)
