"""Why a connection came up, or did not: one verdict for each.

`story` collects what a connection shows of its handshake, `machine` runs the dialogue over it, `facts` puts numbers
and names to it, and `verdict` finds the cause; the tables for all of it are in `spec/handshakes.toml`. `listing` and
`ladder` print verdicts from rows of `connections`, for which no capture is needed any more.
"""
