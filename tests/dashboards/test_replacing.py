"""What is written takes its place when it is whole; what is no work of ours stays."""

import os
from pathlib import Path

import pytest

from amqpscope.dashboards.replacing import replacing
from amqpscope.dissector.cli.program import main
from amqpscope.errors import Error

CAPTURE = Path(__file__).parents[1] / "captures" / "pika_confirms.pcap"


def test_what_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("before")
    for path in (there, new):
        with pytest.raises(KeyboardInterrupt), replacing(path) as other:
            other.write_text("half")
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), replacing(new) as other:
        other.mkdir()
        (other / "half").touch()
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == [there] and there.read_text() == "before"


def test_files_folders_links_and_devices(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    for path in (tmp_path / "file", link, Path(os.devnull)):
        with replacing(path) as other:
            other.write_text(path.name)
    with replacing(tmp_path / "folder") as other:
        other.mkdir()
    assert link.is_symlink() and link.read_text() == "link"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link"]


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    wanted = pytest.raises(Error, match=r"missing.x: cannot write: no such file or directory$")
    with wanted, replacing(tmp_path / "missing" / "x") as other:
        other.write_text("")


def test_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(Error, match=r"link: cannot write: "), replacing(tmp_path / "link") as other:
        other.write_text("")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_names_as_long_as_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with replacing(path) as other:
        other.write_text("there")
    assert path.read_text() == "there"


def test_a_file_that_is_replaced_keeps_its_mode_and_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "there").chmod(0o640)
    owner, owned = (tmp_path / "there").stat(), []
    monkeypatch.setattr(os, "chown", lambda _, user, group: owned.append((user, group)))
    for name in ("there", "new"):
        with replacing(tmp_path / name) as other:
            other.write_text("x")
            assert name == "new" or other.stat().st_mode & 0o777 == 0o600
    assert owned == [(owner.st_uid, owner.st_gid)]
    (tmp_path / "plain").touch()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes["there"] == 0o640 and modes["new"] == modes["plain"]


def test_notes_at_either_end_of_a_large_picture_are_found(tmp_path: Path) -> None:
    from amqpscope.dashboards import pictures  # noqa: PLC0415

    path = tmp_path / "large.pdf"
    for begin, end in ((pictures.MAKER, ""), ("", pictures.MAKER)):
        path.write_bytes(begin.encode() + bytes(1 << 25) + end.encode())
        pictures.check("percentiles", path)
    path.write_bytes(bytes(1 << 25))
    with pytest.raises(pictures.PlotError, match="name another file"):
        pictures.check("percentiles", path)


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
