"""The table `settlements` of AMQP 0-9-1: deliveries, what settles them, and prefetch windows."""
