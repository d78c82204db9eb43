"""How far work is, on a terminal."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amqpscope.dissector.cli.program import main
from tests.dissector.runs import FOLDER

pytestmark = pytest.mark.skipif(not hasattr(os, "openpty"), reason="makes a terminal")


END = "(over)"


def printed(ours: int) -> str:
    """What is written to a terminal up to the end: processes that go on may have it open."""
    found = b""
    while END.encode() not in found:
        found += os.read(ours, 1 << 12)
    return found.decode()


@pytest.mark.parametrize("given", [["dissect"], ["dissect", "--jobs", "2"], ["analyze"]])
def test_files_bytes_and_rows_are_shown(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ours, theirs = os.openpty()
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(printed, ours)
        with os.fdopen(theirs, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            assert main([*given, str(FOLDER / "rotated"), "-o", str(tmp_path / "out")]) == 0
            terminal.write(END)
    os.close(ours)
    files = len(list((FOLDER / "rotated").iterdir()))
    assert re.search(rf"reading: {files} of {files} files, [\d,]+ rows? .*\d\.\d/\d+\.\d kB", shown.result())
