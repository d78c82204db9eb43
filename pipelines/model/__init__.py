"""What all statistics share, whatever the protocol: what a walk is, what it reads, and what it remembers.

A walk is a pure function from batches of events to rows of its tables. It knows no engine: `pipelines.run` (in this
process) and `pipelines.spark` group rows by connection, sort them and feed them.
"""
