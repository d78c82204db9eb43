"""TCP: from segments to stream chunks and gaps, in order."""
