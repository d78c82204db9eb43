"""What `import amqpscope` offers, and that all of it is imported by this name only."""

import importlib
import json
import pickle
import pkgutil
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import amqpscope
from amqpscope import dissector
from amqpscope.dissector.cli import program
from amqpscope.dissector.formatting import exact

ROOT = Path(__file__).parents[1]
CAPTURES = ROOT / "tests" / "captures"
CAPTURE = CAPTURES / "pika_confirms.pcap"
PACKAGES = ("dashboards", "dissector", "pipelines", "spec")
INTERNAL = {"MalformedError"}
"""Raised and caught within a module's own package."""


def python(code: str) -> str:
    """What a fresh interpreter prints, started where the bare names can be imported."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert program.main([str(word) for word in words]) == 0
    return capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------- one name


def test_modules_are_imported_by_one_name() -> None:
    for package in ("pyspark", "matplotlib", "jinja2"):
        pytest.importorskip(package)
    code = f"""
import importlib, pkgutil, sys, amqpscope
for module in pkgutil.walk_packages(amqpscope.__path__, "amqpscope."):
    importlib.import_module(module.name)
print(sorted(name for name in sys.modules if name.split(".")[0] in {PACKAGES}))
"""
    assert python(code) == "[]"


def test_tests_import_by_that_name_too() -> None:
    assert not [name for name in sys.modules if name.split(".")[0] in PACKAGES]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_wheel_has_the_compiled_kernels_of_a_folder_or_none(is_compiled: bool, tmp_path: Path) -> None:
    """`pip install .` compiles nothing; `make wheel` compiles, and names the folder."""
    libraries, made, source = tmp_path / "compiled", tmp_path / "made", tmp_path / "source"
    libraries.mkdir()
    (libraries / "generic.so").write_bytes(b"code")
    names = ("tools", "src", *PACKAGES, "docs/amqpscope.1", "pyproject.toml", "README.md", "LICENSE")
    for name in names:  # the build writes beside its source
        into = source / name
        into.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, into, symlinks=True, ignore=left_out)
        else:
            shutil.copy(ROOT / name, into)
    settings = {"compiled": str(libraries)} if is_compiled else None
    code = (
        f"import sys; sys.path.insert(0, 'tools'); import backend as b; print(b.build_wheel({str(made)!r}, {settings}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True, text=True)
    name = done.stdout.split()[-1]
    with zipfile.ZipFile(made / name) as wheel:
        code_in = [each for each in wheel.namelist() if each.endswith(".so")]
    assert code_in == (["amqpscope/dissector/kernels/compiled/generic.so"] if is_compiled else [])
    assert name.endswith("-py3-none-any.whl") is not is_compiled
    assert not (source / "dissector" / "kernels" / "compiled").exists()


def test_links_are_relative() -> None:
    for package in PACKAGES:
        link = ROOT / "src" / "amqpscope" / package
        assert str(link.readlink()) == f"../../{package}", "a clone elsewhere, or an archive, has it too"


def test_types_are_declared() -> None:
    assert (ROOT / "src" / "amqpscope" / "py.typed").exists()


def test_references_are_pickled_by_the_name() -> None:
    assert b"amqpscope.dissector.reading" in pickle.dumps(dissector.read)


# ---------------------------------------------------------------------------------------------------- import amqpscope


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys; from time import process_time; t = process_time(); import amqpscope; t = process_time() - t;"
        "dir(amqpscope);"
        "print(t < 0.1, [m for m in sys.modules if m.split('.')[0] in"
        " ('pyarrow', 'numpy', 'numba', 'llvmlite', 'pyspark', 'matplotlib', 'dpkt') or m.startswith('amqpscope.')])"
    )
    assert python(code) == "True ['amqpscope.errors']"


def test_the_specification_loads_no_arrow() -> None:
    code = "import sys, amqpscope; amqpscope.spec.load(); print('pyarrow' in sys.modules, 'numpy' in sys.modules)"
    assert python(code) == "False False"


def test_the_programs_help_loads_nothing_heavy() -> None:
    code = """
import contextlib, io, sys
from amqpscope.dissector.cli.program import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as printed:
    main(["--help"])
print("handshakes" in printed.getvalue(), "pyarrow" in sys.modules, "numpy" in sys.modules)
"""
    assert python(code) == "True False False"


def test_all_names_are_there_and_complete() -> None:
    assert set(amqpscope.__all__) == {"Error", *amqpscope._HOMES} <= set(dir(amqpscope))
    assert not {name for name in dir(amqpscope) if not name.startswith("__")} - set(amqpscope.__all__)
    for name in amqpscope.__all__:
        assert getattr(amqpscope, name).__doc__, name
    assert amqpscope.read is dissector.read
    assert amqpscope.spec is importlib.import_module("amqpscope.spec")


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'amqpscope' has no attribute 'frame'"):
        _ = amqpscope.frame
    with pytest.raises(ImportError):
        from amqpscope import nothing  # noqa: F401, PLC0415


def test_a_star_imports_what_it_offers() -> None:
    code = "from amqpscope import *; print(read.__name__, frames.__name__, analyze.__name__, spec.__name__)"
    assert python(code) == "read frames analyze amqpscope.spec"


# ------------------------------------------------------------------------------------------------------------- reading


def test_frames_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "frames", CAPTURE, "--format", "json").splitlines()
    found = list(amqpscope.frames(CAPTURE))
    assert exact(found) == [json.loads(line) for line in lines]
    assert found[0]["sender"].startswith("127.0.0.1:")
    assert [frame["frame_no"] for frame in found] == sorted(frame["frame_no"] for frame in found)
    assert {"connection.start", "basic.publish"} <= {frame.get("method") for frame in found}


def test_frames_of_several_captures_within_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(CAPTURE), CAPTURES / "many_confirms.pcap"]
    found = list(amqpscope.frames(paths))
    assert len(found) == sum(len(list(amqpscope.frames(path))) for path in paths)
    middle = sorted(frame["ts_ns"] for frame in found)[len(found) // 2]
    before, after = list(amqpscope.frames(paths, to=middle)), list(amqpscope.frames(paths, from_=middle))
    assert 0 < len(before) < len(found)
    assert len(before) + len(after) == len(found)


def test_times_are_datetimes_with_a_zone_too() -> None:
    first, *_, last = amqpscope.frames(CAPTURE)
    when = datetime.fromtimestamp(last["ts_ns"] // 1000 / 1e6, UTC)
    for zone in (UTC, timezone(timedelta(hours=5))):
        found = list(amqpscope.frames(CAPTURE, from_=when.astimezone(zone)))
        assert {frame["frame_no"] for frame in found} <= {f["frame_no"] for f in amqpscope.frames(CAPTURE)}
        assert len(found) > 0 and all(frame["ts_ns"] >= last["ts_ns"] // 1000 * 1000 for frame in found)
    with pytest.raises(amqpscope.Error, match="from_ has no time zone"):
        amqpscope.read(CAPTURE, from_=when.replace(tzinfo=None))
    with pytest.raises(amqpscope.Error, match="to is not after from_"):
        amqpscope.dissect(CAPTURE, "never", from_=last["ts_ns"], to=first["ts_ns"])


def test_dissect_writes_the_tables_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "dissect", CAPTURE, "-o", tmp_path / "command")
    assert amqpscope.dissect(CAPTURE, tmp_path / "python") == tmp_path / "python"
    written = [pq.read_table(tmp_path / name / "messages") for name in ("command", "python")]
    assert written[0].num_rows and written[0].equals(written[1])


def test_frames_come_one_by_one() -> None:
    found = amqpscope.frames(CAPTURE)
    assert next(found)["packet"] < next(found)["packet"] <= next(found)["packet"]
    found.close()


def test_handshakes_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(CAPTURES.glob("refused_*.pcap"))
    found = list(amqpscope.handshakes(paths))
    document = json.loads(printed(capsys, "handshakes", *paths, "--format", "json"))
    assert by_id(exact(json.loads(json.dumps(found)))) == by_id(document["connections"])
    assert all(row["code"] and row["summary"] and row["handshake_steps"] for row in found)


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=itemgetter("connection_id"))


def test_handshakes_of_tables_are_those_of_the_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "dissect", CAPTURE, "-o", tmp_path)
    assert list(amqpscope.handshakes(tmp_path)) == list(amqpscope.handshakes(str(CAPTURE)))


# -------------------------------------------------------------------------------------------------------------- errors


def test_all_errors_have_one_base() -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("matplotlib")
    for module in pkgutil.walk_packages(amqpscope.__path__, "amqpscope."):
        for name, value in vars(importlib.import_module(module.name)).items():
            own = isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module.name
            if own and name not in INTERNAL and not issubclass(value, Warning):
                assert issubclass(value, amqpscope.Error), f"{module.name}.{name}"


def test_what_is_missing_is_also_not_found(tmp_path: Path) -> None:
    path = str(tmp_path / "none.pcap")
    for attempt in (
        lambda: next(amqpscope.frames(path)),
        lambda: next(amqpscope.handshakes(path)),
        lambda: amqpscope.frames([path, CAPTURE]),
        lambda: amqpscope.frames(str(tmp_path / "*.pcap")),
        lambda: next(amqpscope.frames(CAPTURES / "demo.pcap", keylog=path)),
        lambda: amqpscope.read(path),
        lambda: amqpscope.frames(path),
        partial(amqpscope.dissect, path, tmp_path / "tables"),
        partial(amqpscope.spec.load_xml, path),
    ):
        with pytest.raises(amqpscope.Error, match=r"no such file|no file matches|No such file") as caught:
            attempt()
        assert isinstance(caught.value, FileNotFoundError)
        assert str(caught.value).startswith(str(tmp_path))
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_missing_tables_are_not_found(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from amqpscope.dashboards import tables  # noqa: PLC0415
    from amqpscope.pipelines.spark import reader  # noqa: PLC0415

    for attempt in (lambda: tables.locate([tmp_path / "none"]), lambda: reader.dissected(tmp_path / "none")):
        with pytest.raises(amqpscope.Error, match="no such folder") as caught:
            attempt()
        assert isinstance(caught.value, FileNotFoundError)


def test_other_errors_are_not_about_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "text.pcap"
    path.write_text("nothing that is a capture")
    with pytest.raises(amqpscope.Error, match=r"text\.pcap") as caught:
        next(amqpscope.frames(path))
    assert not isinstance(caught.value, OSError)
    with pytest.raises(amqpscope.Error):
        amqpscope.spec.load("no-such")


def test_errors_of_a_reader_come_through_arrow(tmp_path: Path) -> None:
    path = tmp_path / "soon-gone.pcap"
    path.write_bytes(CAPTURE.read_bytes())
    reader = amqpscope.read(path)["connections"]
    path.unlink()
    assert isinstance(reader, pa.RecordBatchReader)
    with pytest.raises(FileNotFoundError):
        reader.read_next_batch()
