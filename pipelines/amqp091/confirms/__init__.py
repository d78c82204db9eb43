"""The table `confirms` of AMQP 0-9-1: publishes, their numbers, and the answers and returns that they get."""
