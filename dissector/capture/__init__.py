"""Capture files, pipes and their formats: input to batches of packets."""
