"""The RabbitMQ stream protocol: framing, and the fields of its commands."""
