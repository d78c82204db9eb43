"""Compile the kernels in a separate process, so that the compiler's memory is returned when it ends.

The process runs the dissector over the beginning of the captures that are about to be read, so that exactly the
kernels that they need are compiled, and stores them in the cache.
"""

import subprocess
import sys
from contextlib import suppress

from amqpscope.dissector.capture.sources import Source, total_size
from amqpscope.dissector.kernels import kernel
from amqpscope.errors import installing

ENOUGH_BYTES = 4 << 20
"""Bytes of each capture that the process reads."""
CAPTURES = 8
"""Most captures that the process reads."""


def compile_kernels(sources: list[Source]) -> None:
    """Fill an empty cache, if that pays; does nothing without a file to read. Report kernels that stay interpreted."""
    size = total_size(sources)
    if kernel.is_cached():
        return
    if not kernel.worthwhile(size):
        if (size or 0) >= kernel.COMPILE_COLD_ABOVE:
            sys.stderr.write(
                f"amqpscope: no compiled kernels, so this is slow: {installing('compile')}, or `make wheel`, "
                "which makes a wheel that carries them\n"
            )
        return
    paths = [source.path for source in sources[:CAPTURES] if source.size and isinstance(source.path, str)]
    if paths:
        subprocess.run([sys.executable, "-m", __name__, *paths], check=False)  # noqa: S603


def main(paths: list[str]) -> None:
    """Dissect the beginnings of these captures."""
    from amqpscope.dissector.reading import Reading  # noqa: PLC0415

    for path in paths:
        taken: list[int] = []
        reading = Reading([Source(path, path, None, path)], None, taken.append, compiled=True, batch_bytes=1 << 20)
        for work in reading.work():
            work()
            if sum(taken) > ENOUGH_BYTES:
                break
    kernel.note_run()


if __name__ == "__main__":
    with suppress(Exception, KeyboardInterrupt):  # what goes wrong does so again where it is reported
        main(sys.argv[1:])
