"""Statistics of whole connections: flow control, heartbeats, failures, and errors of channels."""
