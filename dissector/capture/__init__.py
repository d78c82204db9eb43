"""From capture files and pipes, of all formats, to batches of packets."""
