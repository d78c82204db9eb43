"""Statistics as walks: one pass over the ordered rows of each connection, with explicit state.

A walk is a pure function from batches of events to rows of its tables. It knows no engine: `pipelines.here` (this
process) and `pipelines.on_spark` group rows by connection, sort them and feed them. Modules:

- `events`: what a walk reads; `walk`: what a walk is.
- `rows`: Arrow rows of outstanding events; `ledger`: outstanding publishes and deliveries by number; `connection`: what
  all walks know of a connection; `store`: arrays that grow and spill to disk, state as bytes.
- a module for each statistic.
"""
