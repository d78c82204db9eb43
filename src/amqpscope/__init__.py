"""Packet captures of message brokers to typed tables, and the tables into answers: one name for its four packages.

The folders `dissector`, `pipelines`, `spec` and `dashboards` beside this one are links to those at the top of the
repository; installed, they are what these names say.
"""
