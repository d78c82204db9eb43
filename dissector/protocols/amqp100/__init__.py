"""AMQP 1.0: the sections of messages, which records of streams mostly are."""
