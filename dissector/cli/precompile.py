"""Compile the kernels in a process of its own, which takes the compiler's memory with it when it ends.

What it compiles goes to the cache; it runs the dissector over the beginning of the captures that are about to be
read, so that just what they need is compiled.
"""

import subprocess
import sys

from amqpscope.dissector.capture.sources import Source, total_size
from amqpscope.dissector.kernels import kernel

ENOUGH_OCTETS = 4 << 20
"""Bytes of each capture that are run over."""
CAPTURES = 8
"""Captures that are run over at most."""


def compile_kernels(sources: list[Source]) -> None:
    """Fill an empty cache, and say so, for it takes a while; without a file to run over there is nothing to do."""
    if kernel.is_cached() or not kernel.worthwhile(total_size(sources)):
        return
    paths = [source.path for source in sources[:CAPTURES] if source.size and isinstance(source.path, str)]
    if paths:
        sys.stderr.write("amqpscope: compiling the kernels, once for this installation (most of a minute)\n")
        # Whatever goes wrong in there will go wrong here again, and be told properly.
        subprocess.run([sys.executable, "-m", __name__, *paths], check=False, stderr=subprocess.DEVNULL)  # noqa: S603


def main(paths: list[str]) -> None:
    """Run over the beginnings of these captures."""
    from amqpscope.dissector.reading import Reading  # noqa: PLC0415

    for path in paths:
        taken: list[int] = []
        reading = Reading([Source(path, path, None, path)], None, taken.append, compiled=True, batch_bytes=1 << 20)
        for work in reading.work():
            work()
            if sum(taken) > ENOUGH_OCTETS:
                break
    kernel.note_run()


if __name__ == "__main__":
    main(sys.argv[1:])
