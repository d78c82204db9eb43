"""TCP: segments to stream chunks and gaps, in order."""
