"""Statistics as walks: one pass over the ordered rows of each connection, with explicit state.

A walk is a pure function from batches of events to rows of its tables. It knows no engine: `amqpscope.pipelines.here` (this
process) and `pipelines.on_spark` group rows by connection, sort them and feed them. Modules:

- `events`: what a walk is fed with; `walk`: what a walk is.
- `rows`: Arrow rows that wait; `ledger`: numbers that wait for an answer; `connection`: what all walks know of a
  connection; `store`: arrays that grow and spill, state as bytes.
- a module for each statistic.
"""
