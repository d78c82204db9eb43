"""What walks over errors share."""

FINE = (0, 200)
"""Reply codes that are no error; php-amqplib closes with 0."""
REACH = 1 << 17
"""Frames of a connection: an error whose request lies further back has no queue and no exchange."""
