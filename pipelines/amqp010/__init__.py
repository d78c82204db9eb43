"""Statistics of AMQP 0-10: commands of sessions, what completes and accepts them, and credit."""
