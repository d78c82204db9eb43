"""The base of the errors that amqpscope raises. Imports nothing, so that all packages can have it, and `spec` too."""


class Error(Exception):
    """Something is wrong that a user can act upon: a file, an option, the surroundings. The message is one line."""


class MissingError(Error, FileNotFoundError):
    """A file or folder is not there."""
