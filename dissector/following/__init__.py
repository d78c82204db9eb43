"""A directory of captures that rotates, followed: which are complete, and their dissection in batches, each once."""
