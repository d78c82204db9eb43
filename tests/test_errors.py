"""What users read of errors: reasons in words, and commands that can be run as printed."""

import errno
import os
import shlex
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from amqpscope.dissector.cli.program import main
from amqpscope.errors import installing, reason

CAPTURE = Path(__file__).parent / "captures" / "any_sll2.pcap"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "no such file or directory"),
        (OSError(-2, "Name or service not known"), "name or service not known"),
        (OSError("the disk\nis wet"), "the disk is wet"),
        (ValueError(), "ValueError"),
    ],
)
def test_reasons_are_words(error: Exception, words: str) -> None:
    assert reason(error) == words


def test_reasons_of_arrow_are_words() -> None:
    with pytest.raises(OSError) as caught:
        pa.OSFile("/nowhere/at/all")
    assert "[Errno" in str(caught.value)
    assert reason(caught.value) == "no such file or directory"


@pytest.mark.parametrize(
    "words",
    [
        ["spec", "--spec", "/nowhere/vendor.xml"],
        ["frames", str(CAPTURE), "--keylog", "/nowhere/keys.log"],
        ["report", str(CAPTURE), "-o", "/proc/page.html"],
        ["dissect", str(CAPTURE), "-o", "/proc/tables"],
    ],
)
def test_no_command_prints_the_number_of_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "rrno" not in err and "no such file" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, ["amqpscope[tls]"]),
        ('{"url": "file:///src/a%20b", "dir_info": {"editable": true}}', ["-e", "/src/a b[tls]"]),
        ('{"url": "file:///src", "dir_info": {}}', ["amqpscope[tls] @ file:///src"]),
        ('{"url": "https://host/a.git", "vcs_info": {"vcs": "git"}}', ["amqpscope[tls] @ git+https://host/a.git"]),
    ],
)
def test_an_extra_is_installed_from_where_this_comes(
    source: str | None, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda name: source))
    python, *others = shlex.split(installing("tls"))
    assert os.access(python, os.X_OK) and others == ["-m", "pip", "install", *words]


def test_the_extra_that_is_named_exists() -> None:
    assert "report" in (metadata.distribution("amqpscope").metadata.get_all("Provides-Extra") or [])
