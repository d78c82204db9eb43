"""The program `amqpscope`: its commands, arguments and printers."""
