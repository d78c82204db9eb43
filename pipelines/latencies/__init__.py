"""Distributions of latencies: groups, buckets, and percentiles."""
