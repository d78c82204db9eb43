"""A private RabbitMQ node on loopback: its own name, data, cookie and port mapper, all gone when it is closed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
PLUGINS = Path("/usr/lib/rabbitmq/bin/rabbitmq-plugins")
STREAMS = Path("/usr/lib/rabbitmq/bin/rabbitmq-streams")
PORT = 5672
OTHER_PORT = 25999  # a port nobody would take for AMQP
EPMD_PORT = 24369
DIST_PORT = 25673

CONFIG = f"""\
listeners.tcp.1 = 127.0.0.1:{PORT}
listeners.tcp.2 = ::1:{PORT}
listeners.tcp.3 = 127.0.0.1:{OTHER_PORT}
loopback_users.guest = true
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = RABBIT-CR-DEMO
vm_memory_high_watermark.relative = 0.4
disk_free_limit.absolute = 10MB
log.console = false
log.file.level = info
"""


def wait_for_port(port: int, host: str = "127.0.0.1", seconds: float = 60.0) -> None:
    """Waits until something listens on a port.

    Raises:
        TimeoutError: when nobody does in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"nothing listens on {host}:{port}")


class Broker:
    """The node as a context manager; `control` runs rabbitmqctl on it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="capture-broker-"))
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def _environment(self) -> dict[str, str]:
        folder = str(self.folder)
        return {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(EPMD_PORT),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "captures@localhost",
            "RABBITMQ_DIST_PORT": str(DIST_PORT),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            # two small schedulers are plenty and leave the machine to others
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def __enter__(self) -> Broker:
        for port in (PORT, OTHER_PORT):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as error:
                    raise SystemExit(f"port {port} is taken: stop what listens there first ({error})") from error
        (self.folder / "rabbitmq.conf").write_text(CONFIG)
        (self.folder / "enabled_plugins").write_text("[].\n")
        try:
            self._spawn("epmd", "-port", str(EPMD_PORT), "-address", "127.0.0.1")
            wait_for_port(EPMD_PORT)
            self._spawn(str(SERVER))
            self.control("await_startup", "--timeout", "90", attempts=30)
            wait_for_port(PORT)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self, *command: str) -> None:
        log = (self.folder / "console.log").open("ab")
        self._children.append(
            subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        )

    def control(self, *arguments: str, attempts: int = 1) -> str:
        """Runs rabbitmqctl.

        Returns:
            What it printed.

        Raises:
            RuntimeError: when it failed as often as `attempts` allows.
        """
        return self._tool(CONTROL, *arguments, attempts=attempts)

    def plugin(self, name: str, port: int) -> None:
        """Enables a plugin and waits until it listens."""
        self._tool(PLUGINS, "enable", name)
        wait_for_port(port)

    def plugin_off(self, name: str) -> None:
        """Disables a plugin, for scenarios that come later expect the broker without it."""
        self._tool(PLUGINS, "disable", name)

    def streams(self, *arguments: str) -> str:
        """Runs rabbitmq-streams, which makes super streams; as `control`."""
        return self._tool(STREAMS, *arguments)

    def _tool(self, program: Path, *arguments: str, attempts: int = 1) -> str:
        for _ in range(attempts):
            run = subprocess.run(
                [str(program), "--quiet", *arguments],
                env=self._environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if run.returncode == 0:
                return run.stdout
            time.sleep(0.5)
        raise RuntimeError(f"{program.name} {' '.join(arguments)}: {run.stdout}{run.stderr}")

    def pause(self, seconds: float) -> None:
        """Stops the node's process for a while, as a stalled disk or a busy host would."""
        process = int((self.folder / "pid").read_text())
        os.kill(process, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(process, signal.SIGCONT)

    def close(self) -> None:
        """Stops the node and its port mapper, and removes their folder."""
        for child in reversed(self._children):
            child.terminate()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
