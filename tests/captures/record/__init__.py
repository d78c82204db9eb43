"""Records the captures of this folder from a private RabbitMQ node and from scripted peers.

One module per theme holds the scenarios; `scenario.py` says what a scenario is, `broker.py` runs the node, `sniff.py`
runs tcpdump, `peer.py` is a client (or a server) that can be as impolite as a test needs, and `ledger.py` is the book
the clients keep, from which the goldens are written.
"""
