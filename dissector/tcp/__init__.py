"""TCP: segments to pieces of streams, octets and holes in order."""
