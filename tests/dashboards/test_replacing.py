"""What is written takes its place when it is whole; what is no work of ours stays."""

import os
from pathlib import Path

import pytest

from amqpscope.dashboards.unfinished import unfinished
from amqpscope.dissector.cli.program import main
from amqpscope.errors import Error

CAPTURE = Path(__file__).parents[1] / "captures" / "pika_confirms.pcap"


def test_what_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("before")
    for path in (there, new):
        with pytest.raises(KeyboardInterrupt), unfinished(path) as other:
            other.write_text("half")
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), unfinished(new) as other:
        other.mkdir()
        (other / "half").touch()
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == [there] and there.read_text() == "before"


def test_files_folders_links_and_devices(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    for path in (tmp_path / "file", link, Path(os.devnull)):
        with unfinished(path) as other:
            other.write_text(path.name)
    with unfinished(tmp_path / "folder") as other:
        other.mkdir()
    assert link.is_symlink() and link.read_text() == "link"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link"]


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    wanted = pytest.raises(Error, match=r"missing.x: cannot write: no such file or directory$")
    with wanted, unfinished(tmp_path / "missing" / "x") as other:
        other.write_text("")


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_pictures_replace_pictures_and_nothing_else(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / f"picture.{kind}"
    words = ["plot", "percentiles", str(CAPTURE), "-o", str(picture)]
    assert [main(words), main(words)] == [0, 0]
    picture.write_text("<svg/>")
    capsys.readouterr()
    assert main(words) == 2
    assert "no picture of amqpscope; name another file, or remove it\n" in capsys.readouterr().err
    assert picture.read_text() == "<svg/>"
