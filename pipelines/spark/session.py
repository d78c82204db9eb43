"""The Spark session that the jobs expect."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from amqpscope.errors import Error, reason
from amqpscope.pipelines import memory
from amqpscope.pipelines.spark import executors, versions

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SMALL = {
    "spark.sql.shuffle.partitions": "1",
    # Planning anew after each stage, and compiling loops for a few rows, take longer than they save.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # So do the optimizing compiler of the JVM, as planning is most of the work, and collecting garbage in parallel.
    _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
}
"""Settings for little work of Spark itself, on one machine."""

THROWN = re.compile(r"\b(?:\w+\.)+\w*(?:Exception|Error): (.+)")
"""What the JVM threw, by its class; the reason follows it."""

RELEASE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
"""The major version in the file `release` of a Java; that of Java 8 is 1.8."""

REACH_S = 5
"""Seconds in which something must listen where a master should be."""
ANSWER_S = 60
"""Seconds in which a master must answer a JVM that has started."""
UNANSWERED = "All masters are unresponsive"
"""What Spark says after three attempts of 20 seconds, however long it may take to start."""
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable that `spark-submit` sets, which has started a JVM."""
OLDEST_JAVA, NAMED_JAVA = 17, (17, 21)
JAVA = "Spark needs Java 17 or 21"
END_S = 2
"""Seconds that a JVM has to remove its files when it must end."""


class SessionError(Error):
    """Spark cannot be started; the message is one line that says why."""


def session(
    master: str | None = None,
    *,
    small: bool = False,
    folder: str | None = None,
    answer_s: int = ANSWER_S,
    **settings: str,
) -> SparkSession:
    """Return a session with the settings that the tables need; the running one, if there is one.

    Times are UTC, timestamps in Parquet are microseconds (Spark's own default is a deprecated type of 96 bits), errors
    in arithmetic are errors, and the workers run this Python.

    Args:
        master: Spark's master URL, such as `local[*]`; None leaves it to the environment (`spark-submit`).
        small: there is little for Spark itself to do: on one machine, spend less on planning and compiling.
        folder: where the JVM keeps temporary files; None leaves it to Spark.
        answer_s: seconds in which a standalone master must answer.
        settings: further ones, `_` standing for `.`: `spark_sql_shuffle_partitions="2"`.

    Raises:
        SessionError: Spark does not start.
    """
    is_new = SparkSession._instantiatedSession is None
    if is_new:
        _check(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("amqpscope")
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.ansi.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # To see whether a batch has too many bytes, Spark goes through all of its columns with every row.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    }
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            chosen |= _local(small)
    if folder is not None:
        java = f"{chosen.get(_JAVA_OPTIONS, '')} -Djava.io.tmpdir={folder}"
        chosen |= {"spark.local.dir": folder, _JAVA_OPTIONS: java.strip()}
    chosen |= {name.replace("_", "."): value for name, value in settings.items()}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    # The page they write is in the exception as well.
    versions.disable_loggers(("DataFrameQueryContextLogger", "SQLQueryContextLogger"))
    with _silenced() as log, _noted(), _answered(master, answer_s) as is_late:
        try:
            found = builder.getOrCreate()
        except Exception as error:  # py4j and the launcher raise many kinds
            if is_late() or UNANSWERED in log.read_text(errors="replace"):
                raise SessionError(f"no Spark master at {', '.join(_addresses(master))}: it does not answer") from error
            raise SessionError(_reason(error, log)) from error
    if is_new:
        executors.wait(found)
    return found


def parallelism(parts: int | None) -> dict[str, str]:
    """Return the settings that divide work into as many parts; None: by the cores that Spark knows."""
    return {} if parts is None else {executors.PARALLELISM: str(parts)}


_started: list[subprocess.Popen[bytes]] = []
"""JVMs that were started here, and are not yet ended."""
_ended = False


@contextlib.contextmanager
def running(
    master: str, *, small: bool = False, answer_s: int = ANSWER_S, **settings: str
) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that starts a session in any thread; the session ends with this, unless it ran before.

    Args:
        master: as for `session`.
        small: as for `session`.
        answer_s: as for `session`.
        settings: as for `session`.
    """
    global _ended  # noqa: PLW0603
    _ended = False
    if SparkSession._instantiatedSession is not None:
        yield lambda: session(master, small=small, answer_s=answer_s, **settings)
        return
    # What a JVM leaves that is ended, goes with this folder.
    with tempfile.TemporaryDirectory(prefix="amqpscope-spark-", ignore_cleanup_errors=True) as folder:
        try:
            yield lambda: session(master, small=small, folder=folder, answer_s=answer_s, **settings)
        finally:
            if not _ended and SparkSession._instantiatedSession is not None:
                SparkSession._instantiatedSession.stop()
            end()


def end() -> None:
    """End the JVMs that were started here, whatever they are doing, within seconds."""
    global _ended  # noqa: PLW0603
    _ended = True
    context = SparkContext._active_spark_context
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None  # that the JVM is gone is no error
    while _started:
        process = _started.pop()
        for how, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        for other in _session(process.pid):  # workers, which see it only when they write
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
    SparkSession._instantiatedSession = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None


def _session(leader: int) -> list[int]:
    """Return the processes of a session, where the system lists them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(path.name)) == leader:
                found.append(int(path.name))
    return found


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    """Note the JVM that is started meanwhile. It is the first of a process group, so that all of it can be ended."""
    start = vars(java_gateway)["Popen"]

    def started(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        if _ended:
            raise SessionError("Spark cannot be started: interrupted")
        how.pop("preexec_fn", None)  # it would have Ctrl-C ignored, which does not come to another session
        process: subprocess.Popen[bytes] = start(command, start_new_session=True, **how)
        _started.append(process)
        return process

    vars(java_gateway)["Popen"] = started
    try:
        yield
    finally:
        vars(java_gateway)["Popen"] = start


@contextlib.contextmanager
def _answered(master: str | None, answer_s: int) -> Iterator[Callable[[], bool]]:
    """End the JVM when a master does not answer it; yield a function that returns whether that happened.

    A JVM that `spark-submit` started is left alone: its settings say how long it waits, and much may be sent before.
    """
    over, late = threading.Event(), threading.Event()

    def watch() -> None:
        while SparkContext._gateway is None and not over.wait(0.1):
            pass
        if not over.wait(answer_s):
            late.set()
            end()

    if _addresses(master) and SparkSession._instantiatedSession is None and SUBMITTED not in os.environ:
        threading.Thread(target=watch, name="amqpscope-answer", daemon=True).start()
    try:
        yield late.is_set
    finally:
        over.set()


def _check(master: str | None) -> None:
    """Check that Spark finds what it needs; Spark itself takes minutes to find out.

    Raises:
        SessionError: something is missing.
    """
    if why := versions.unsupported():
        raise SessionError(f"Spark cannot be started: {why}")
    home = os.environ.get("JAVA_HOME")
    if home and not os.access(Path(home, "bin", "java"), os.X_OK):
        raise SessionError(f"Spark cannot be started: JAVA_HOME is {home}, but there is no bin/java; {JAVA}")
    if not home and shutil.which("java") is None:
        raise SessionError(f"Spark cannot be started: there is no Java; {JAVA}")
    java = _java()
    if java.version is not None and java.version < OLDEST_JAVA:
        raise SessionError(f"Spark cannot be started: {java}; {JAVA}")
    reasons = []
    for address in _addresses(master):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
            return
        except ValueError as error:
            raise SessionError(f"not a Spark master: {master}; give spark://HOST:PORT") from error
        except OSError as error:
            reasons.append(f"{address}: {reason(error)}")
    if reasons:
        raise SessionError(f"no Spark master at {'; '.join(reasons)}")


def _addresses(master: str | None) -> list[str]:
    """Return where a standalone master should be: HOST:PORT, or several; none for other kinds of masters."""
    if master is None or not master.startswith("spark://"):
        return []
    return master.removeprefix("spark://").split(",")


def _local(small: bool) -> dict[str, str]:
    """Return settings for one machine: nothing listens to the outside, and the memory is a part of what there is."""
    cores = os.cpu_count() or 1
    megabytes = memory.of_machine() // 2**20
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": f"{min(max(megabytes // 4, 1024), 8192)}m",
        "spark.sql.shuffle.partitions": str(4 * cores),
    } | (_SMALL if small else {})


@contextlib.contextmanager
def _silenced() -> Iterator[Path]:
    """Send what the JVM prints to a file: a page of warnings that help nobody, and why it does not start."""
    with tempfile.TemporaryDirectory(prefix="amqpscope-") as folder:
        path = Path(folder, "output")
        saved = {}
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            saved[number] = os.dup(number)
        try:
            with path.open("wb") as file:
                for number in saved:
                    os.dup2(file.fileno(), number)
            yield path
        finally:
            for number, own in saved.items():
                os.dup2(own, number)
                os.close(own)


def _reason(error: Exception, log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    java = _java()
    if any("UnsupportedClassVersionError" in line for line in lines):
        return f"Spark cannot be started: {java} is too old; {JAVA}"
    thrown = next(filter(None, map(THROWN.search, str(error).splitlines() + lines)), None)
    named = [line for line in lines if "rror" in line or "xception" in line] or str(error).splitlines()
    reason = f"Spark cannot be started: {(thrown[1] if thrown else (named or [type(error).__name__])[0]).strip()}"
    return reason if java.version in NAMED_JAVA else f"{reason} ({java}; {JAVA})"


class _Java(NamedTuple):
    """The Java that Spark starts.

    Attributes:
        where: how it was found.
        version: its major version; None: not known.
    """

    where: str
    version: int | None

    def __str__(self) -> str:
        """Return what a message says of it."""
        return f"{self.where} is Java {self.version or 'of an unknown version'}"


def _java() -> _Java:
    """Return the Java that Spark starts, which describes itself in a file `release`."""
    home = os.environ.get("JAVA_HOME")
    path = Path(home or Path(shutil.which("java") or "").resolve().parents[1])
    version = None
    with contextlib.suppress(OSError):
        if found := RELEASE.search((path / "release").read_text(encoding="utf-8", errors="replace")):
            version = int(found[1])
    return _Java(f"JAVA_HOME={home}" if home else str(path), version)
