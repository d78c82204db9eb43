"""The table `rpcs` of AMQP 0-9-1 and streams: synchronous requests and their answers."""
