"""The command as `python -m amqpscope`; this is also the file that `spark-submit` runs."""

import sys

from amqpscope.dissector.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
