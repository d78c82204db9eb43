"""Digests of all that the dissector makes of the recordings: to show that a change of its insides changes nothing else.

    python -m tests.digests write FILE [--quick]     run it before the change
    python -m tests.digests check FILE [--quick]     and after it
    (--statistics instead for what is computed of its tables)

Of each recording (TLS with its key log and without), and of each way to damage it: every table with its schema, rows in
their order. Of each recording also what `amqpscope frames` and `amqpscope handshakes` print. Words that were renamed
count as equal, see `RENAMED`. Rows of statistics have no order: their digests are of the sorted rows.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa

import amqpscope
from amqpscope.dissector.cli.program import main as program
from amqpscope.dissector.dissector import Options
from tests.captures.damage.recordings import recordings
from tests.captures.damage.ways import HARMFUL, HARMLESS, Capture, numbered
from tests.dissector.builders import pcap
from tests.dissector.runs import FOLDER, SETS, dissect, dissect_packets, recorded

ROOT = Path(__file__).parents[1]
RENAMED = (
    (r"\b(octet)(s?)\b", r"byte\2"),
    (r"\bhole(s?)\b", r"gap\1"),
)
"""Words of older releases in messages, codes and printed texts, and what they are called now."""
WORDED = {"code", "detail", "ended_by", "handshake_outcome"}
"""Columns of tables that hold words of ours."""
QUICK = {
    "rotated", "failed_handshakes.pcap", "lossy_link.pcap", "stream_chunks.pcap", "stream_errors.pcap",
    "violations.pcap", "amqp10_handshakes.pcap", "two_interfaces.pcapng", "tls_sessions.pcap", "broken_contents.pcap",
}  # fmt: skip
"""Recordings that `--quick` runs over, as far as they are there."""

QUICK_WAYS = {"reordered", "lossy", "snapped"}
COMPILED = 1 << 18
"""Recordings of more bytes are dissected with compiled kernels, which others do not repay."""

Digests = dict[str, str]


def worded(text: str) -> str:
    """Text as the latest release would have it, without its layout."""
    for old, new in RENAMED:
        text = re.sub(old, new, text)
    return " ".join(text.split())


def table_digest(table: pa.Table) -> str:
    """Of the schema and all rows, in their order."""
    digest = hashlib.sha256(worded(str(table.schema)).encode())
    for name, column in zip(table.schema.names, table.columns, strict=True):
        values = column.to_pylist()
        if name in WORDED:
            values = [worded(value) if isinstance(value, str) else value for value in values]
        digest.update(repr(values).encode())
    return f"{table.num_rows} rows {digest.hexdigest()[:24]}"


def printed_digest(*arguments: str) -> str:
    """Of what the program prints, and how it ends."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = program(arguments)
    text = worded(f"{status} {out.getvalue()} {errors.getvalue()}")
    return f"{len(text.splitlines())} {hashlib.sha256(text.encode()).hexdigest()[:24]}"


def digests_of(path: Path, quick: bool) -> Digests:
    """All digests of one recording, by what they are of."""
    os.chdir(ROOT)
    compiled = path.stat().st_size > COMPILED
    name = path.relative_to(ROOT)
    keylog = path.with_suffix(".keylog")
    found: Digests = {}

    def add(way: str, tables: dict[str, pa.Table]) -> None:
        found.update({f"{name} {way}: {table}": table_digest(rows) for table, rows in tables.items()})

    add("as it is", dissect(str(name), compiled=compiled, options=Options()))
    for command in ("frames", "handshakes"):
        for kind in ("text", "json"):
            found[f"{name}: {command} {kind}"] = printed_digest(command, str(name), "--format", kind)
    options = None
    if keylog.exists():
        options = Options(keylog=str(keylog))
        add("decrypted", dissect(str(name), compiled=compiled, options=options))
        key = ("--keylog", str(keylog.relative_to(ROOT)))
        for command in ("frames", "handshakes"):
            found[f"{name}: {command} decrypted"] = printed_digest(command, str(name), *key)
    if path in recordings():
        packets, link = recorded(path.name)
        for way, damage in (HARMLESS | HARMFUL).items():
            if quick and way not in QUICK_WAYS:
                continue
            capture = Capture(numbered(packets), link)
            damaged = damage(capture, random.Random(f"digests {path.name}"))
            add(way, dissect_packets(damaged, link, compiled=compiled, options=options))
    return found


def statistics_digests_of(path: Path, quick: bool) -> Digests:
    """Digests of the statistics of one recording and of the ways to damage it, by what they are of."""
    os.chdir(ROOT)
    name, found = path.relative_to(ROOT), {}
    keylog = path.with_suffix(".keylog")

    def add(way: str, capture: Path) -> None:
        made = amqpscope.analyze(capture, keylog=str(keylog) if keylog.exists() else None)
        for table, rows in made.items():
            text = worded("\n".join([str(rows.schema), *sorted(map(repr, rows.to_pylist()))]))
            found[f"{name} {way}: {table}"] = f"{len(rows)} rows {hashlib.sha256(text.encode()).hexdigest()[:24]}"

    add("as it is", path)
    if path in recordings():
        packets, link = recorded(path.name)
        for way, damage in (HARMLESS | HARMFUL).items():
            if quick and way not in QUICK_WAYS:
                continue
            damaged = damage(Capture(numbered(packets), link), random.Random(f"digests {path.name}"))
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / path.name
                file.write_bytes(pcap(damaged, ns=True, link=link))
                add(way, file)
    return found


def all_digests(quick: bool, processes: int, of: Callable[..., Digests] = digests_of) -> Digests:
    """Digests of all recordings."""
    paths = sorted([*FOLDER.glob("*.pcap"), *FOLDER.glob("*.pcapng"), *SETS])
    if quick:
        paths = [path for path in paths if path.name in QUICK]
    paths.sort(key=lambda path: -path.stat().st_size)
    with ProcessPoolExecutor(processes) as pool:
        return {k: v for found in pool.map(partial(of, quick=quick), paths) for k, v in found.items()}


def differences(before: Digests, after: Digests, quick: bool) -> Iterator[str]:
    """What is not as it was."""
    for key in sorted(before.keys() | after.keys()):
        if key not in after and quick:
            continue
        if before.get(key) != after.get(key):
            yield f"{key}: {before.get(key)} -> {after.get(key)}"


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true", help="a few recordings only")
    parser.add_argument("--statistics", action="store_true", help="of statistics, not of the tables")
    parser.add_argument("--processes", type=int, default=2, help="side by side (default: 2)")
    arguments = parser.parse_args()
    file = arguments.file.resolve()
    of = statistics_digests_of if arguments.statistics else digests_of
    found = all_digests(arguments.quick, arguments.processes, of)
    if arguments.what == "write":
        file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{len(found)} digests")
        return 0
    changed = list(differences(json.loads(file.read_text(encoding="utf-8")), found, arguments.quick))
    print("\n".join([*changed, f"{len(found)} digests, {len(changed)} differ"]))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
