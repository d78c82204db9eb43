"""Captures with comments: packets, times, blocks and options are those of the input, by independent readers."""

import contextlib
import gzip
import io
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dpkt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dashboards import annotate
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.capture import commenting
from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.cli.program import main
from tests.dashboards.synthetic import rows
from tests.dissector import wire
from tests.dissector.builders import pcapng
from tests.dissector.wire import Tape
from tests.oracles import needs
from tests.thorough import examples

CAPTURES = Path(__file__).parents[1] / "captures"
DEMO = CAPTURES / "demo.pcap"
PCAPNG = sorted(CAPTURES.glob("*.pcapng"))


def copied(path: Path, comments: list[tuple[int, str]], summary: str = "all") -> tuple[bytes, commenting.Copied]:
    out = io.BytesIO()
    found = commenting.copy(str(path), path.name, out, comments, summary)
    return out.getvalue(), found


def blocks(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Type, byte order and bytes of each block."""
    at, order = 0, "<"
    while at < len(data):
        if data[at : at + 4] == b"\x0a\x0d\x0d\x0a":
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
        kind, total = struct.unpack_from(f"{order}II", data, at)
        assert struct.unpack_from(f"{order}I", data, at + total - 4)[0] == total
        yield kind, order, data[at : at + total]
        at += total


def options_of(block: bytes, order: str, at: int) -> list[tuple[int, bytes]]:
    found, end = [], len(block) - 4
    while at + 4 <= end:
        code, length = struct.unpack_from(f"{order}HH", block, at)
        if code == 0:
            break
        found.append((code, block[at + 4 : at + 4 + length]))
        at += 4 + length + -length % 4
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("told")
    assert main(["annotate", str(DEMO), "-o", str(folder / "told.pcapng"), "--lua", str(folder / "told.lua"),
                 "--profile", str(folder / "profile")]) == 0  # fmt: skip
    return folder


def test_packets_and_times_are_those_of_the_capture(told: Path) -> None:
    with DEMO.open("rb") as before, (told / "told.pcapng").open("rb") as after:
        expected = [(round(ts * 10**6), data) for ts, data in dpkt.pcap.Reader(before)]
        assert [(round(ts * 10**6), data) for ts, data in dpkt.pcapng.Reader(after)] == expected


@needs("tshark")
def test_wireshark_finds_the_comments(told: Path) -> None:
    def shown(condition: str, *more: str) -> list[str]:
        command = [
            "tshark",
            "-r",
            str(told / "told.pcapng"),
            "-Y",
            condition,
            "-T",
            "fields",
            "-e",
            "frame.number",
            *more,
        ]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.splitlines()

    marked = shown('frame.comment contains "amqpscope"')
    assert len(marked) > 4000
    (block,) = shown('frame.comment contains "[pub-blocked]" and frame.number < 5000', "-e", "frame.comment")
    assert block.startswith("4864\t") and "low on memory" in block
    assert any("queue carts: nack after" in line for line in shown("frame.number == 3109", "-e", "frame.comment"))
    assert any("refuses the publish in packet 3109" in x for x in shown("frame.number == 3110", "-e", "frame.comment"))


@needs("tshark")
def test_the_script_shows_findings_in_the_unchanged_capture(told: Path) -> None:
    command = ["tshark", "-X", f"lua_script:{told / 'told.lua'}", "-r", str(DEMO), "-Y", "amqpscope.text"]
    done = subprocess.run([*command, "-T", "fields", "-e", "frame.number", "-e", "amqpscope.text"], capture_output=True,
                          encoding="utf-8", check=True)  # fmt: skip
    assert any(line.startswith("4864\t") and "[pub-blocked]" in line for line in done.stdout.splitlines())


@needs("editcap", "mergecap")
def test_other_programs_keep_them(told: Path, tmp_path: Path) -> None:
    subprocess.run(["editcap", "-r", str(told / "told.pcapng"), str(tmp_path / "a.pcapng"), "4860-4870"], check=True)
    subprocess.run(["mergecap", "-w", str(tmp_path / "b.pcapng"), str(tmp_path / "a.pcapng")], check=True)
    assert b"[pub-blocked]" in (tmp_path / "b.pcapng").read_bytes()


def test_answers_and_findings_are_on_their_packets(demo_statistics: Path) -> None:
    tables = Tables(None, demo_statistics)
    found: dict[int, list[str]] = {}
    last = 0
    for packet, text in annotate.comments(tables, "demo.pcap"):
        assert packet >= last and text.startswith("amqpscope") and text.isprintable()
        last = packet
        found.setdefault(packet, []).append(text)
    assert any("no queue 'not there'" in text for text in found[1722])
    texts = [text for each in found.values() for text in each]
    for begin, table in (("amqpscope: publish to ", "confirms"), ("amqpscope: delivery from ", "settlements")):
        assert sum(text.startswith(begin) for text in texts) == len(rows(tables, table))
    frames = {(r["deliver_connection_id"], r["deliver_frame_no"]) for r in rows(tables, "transits")}
    assert sum(text.startswith("amqpscope: published ") for text in texts) == len(frames)
    assert "blocked its" in annotate.summary(tables) or "blocked 3" in annotate.summary(tables)


@pytest.mark.parametrize("path", PCAPNG, ids=lambda path: path.stem)
def test_blocks_and_options_that_are_there_stay(path: Path) -> None:
    data, found = copied(path, [(n, f"amqpscope {n}") for n in range(1, 10_000) for _ in range(2)])
    number = 0
    for (kind, order, before), (kind2, order2, after) in zip(blocks(path.read_bytes()), blocks(data), strict=True):
        assert (kind, order) == (kind2, order2)
        if kind == commenting.SECTION:
            assert before[8:16] == after[8:16]
            kept = [o for o in options_of(after, order, 24) if o[1] != b"all"]
            assert kept == options_of(before, order, 24)
        elif kind in (commenting.PACKET, commenting.OBSOLETE):
            number += 1
            (caplen,) = struct.unpack_from(f"{order}I", before, 20)
            at = 28 + caplen + -caplen % 4
            assert after[8:at] == before[8:at]
            ours = (commenting.OPT_COMMENT, f"amqpscope {number}".encode())
            assert options_of(after, order, at) == [*options_of(before, order, at), ours, ours]
        else:
            number += kind == commenting.SIMPLE
            assert before == after
    assert found.packets == number and found.comments + found.without_room == 2 * number


def test_without_comments_only_the_sections_change() -> None:
    for path in PCAPNG:
        before = [each for each in blocks(path.read_bytes()) if each[0] != commenting.SECTION]
        assert [each for each in blocks(copied(path, [])[0]) if each[0] != commenting.SECTION] == before


def test_nanoseconds_and_compression(tmp_path: Path) -> None:
    path = CAPTURES / "nanoseconds.pcap"
    packed = tmp_path / "nanoseconds.pcap.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    data, _ = copied(path, [(1, "amqpscope")])
    assert copied(packed, [(1, "amqpscope")])[0] == data
    raw = path.read_bytes()
    order = "<" if raw[:4] == b"\x4d\x3c\xb2\xa1" else ">"
    at, expected = 24, []
    while at < len(raw):
        seconds, fraction, caplen, _ = struct.unpack_from(f"{order}IIII", raw, at)
        expected.append((seconds * 10**9 + fraction, raw[at + 16 : at + 16 + caplen]))
        at += 16 + caplen
    shown = []
    for kind, _, block in blocks(data):
        if kind == commenting.PACKET:
            high, low, caplen = struct.unpack_from("<III", block, 12)
            shown.append(((high << 32) + low, block[28 : 28 + caplen]))
    assert shown == expected


def test_concatenated_files_have_an_interface_each(tmp_path: Path) -> None:
    both = tmp_path / "both.pcap"
    both.write_bytes((CAPTURES / "any_sll.pcap").read_bytes() + DEMO.read_bytes())
    data, found = copied(both, [])
    kinds = [kind for kind, *_ in blocks(data)]
    assert kinds.count(commenting.INTERFACE) == 2 and found.problem == ""
    with (CAPTURES / "any_sll.pcap").open("rb") as one, DEMO.open("rb") as other:
        assert found.packets == sum(1 for file in (one, other) for _ in dpkt.pcap.Reader(file))


def shown(path: Path, *fields: str) -> list[list[str]]:
    """What Wireshark shows of each packet."""
    named = [word for field in fields for word in ("-e", field)]
    command = ["tshark", "-r", str(path), "-T", "fields", *named]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


NANO, SMALL = CAPTURES / "nanoseconds.pcap", CAPTURES / "heartbeats.pcap"


@pytest.mark.sampled(3)
@needs("tshark")
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("parts", [(NANO, None), (None, NANO), (NANO, None, SMALL, None)],
                         ids=["pcap first", "pcapng first", "four"])  # fmt: skip
def test_concatenated_files_of_both_formats(parts: tuple[Path | None, ...], order: str, tmp_path: Path) -> None:
    """Packets and times are those of the files one by one; comments count packets from the first file on."""
    one, many, out = tmp_path / "one.pcapng", tmp_path / "many", tmp_path / "out.pcapng"
    one.write_bytes(pcapng(Tape().play(wire.session()).end().packets, order=order))
    files = [part or one for part in parts]
    many.write_bytes(b"".join(file.read_bytes() for file in files))
    fields = ("frame.time_epoch", "frame.cap_len", "ip.id", "tcp.seq_raw", "tcp.checksum")
    expected = [row for file in files for row in shown(file, *fields)]
    comments = [(n, f"amqpscope {n}") for n in range(1, len(expected) + 1, 3)]
    data, found = copied(many, comments, "the summary")
    assert (found.packets, found.comments, found.problem) == (len(expected), len(comments), "")
    out.write_bytes(data)
    assert shown(out, *fields) == expected
    noted = [(int(number), text) for number, text in shown(out, "frame.number", "frame.comment") if text]
    assert noted == comments and data.count(b"the summary") == 1


@settings(max_examples=examples(60))
@given(st.sampled_from([*PCAPNG, CAPTURES / "heartbeats.pcap"]), st.data())
def test_damaged_captures_are_copied_up_to_there(path: Path, data: Any) -> None:
    raw = bytearray(path.read_bytes()[:20_000])
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[place] ^= data.draw(st.integers(1, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    out, comments, found = io.BytesIO(), [(n, "x" * 5000) for n in range(1, 500)], commenting.Copied()
    with contextlib.suppress(CaptureError):  # it is no capture any more, and nothing was written
        found = commenting.copy(io.BytesIO(bytes(raw)), "any", out, comments, "all")
    kinds = [kind for kind, *_ in blocks(out.getvalue())]
    packets = (commenting.PACKET, commenting.OBSOLETE, commenting.SIMPLE)
    assert sum(kind in packets for kind in kinds) == found.packets


@pytest.mark.parametrize("path", PCAPNG, ids=lambda path: path.stem)
def test_a_block_whose_lengths_differ_ends_the_copy(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    kept = list(blocks(bytes(raw)))[:-1]
    raw[-1] ^= 1
    out = io.BytesIO()
    found = commenting.copy(io.BytesIO(bytes(raw)), "any", out, [], "all")
    assert len(list(blocks(out.getvalue()))) == len(kept) and "lengths of a block differ" in found.problem


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["annotate", *words]) == 2
    return capsys.readouterr().err.strip()


def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = str(tmp_path / "out.pcapng")
    assert "reads a capture twice" in refused(capsys, "-", "-o", out)
    assert "nothing to write" in refused(capsys, str(DEMO))
    assert "takes one capture" in refused(capsys, str(DEMO), str(DEMO), "-o", out)
    assert "no such file" in refused(capsys, str(tmp_path / "none"), "-o", out)
    shutil.copy(DEMO, out)
    assert "is there already" in refused(capsys, str(DEMO), "-o", out)
    assert [each.name for each in tmp_path.iterdir()] == ["out.pcapng"]
