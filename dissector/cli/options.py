"""Read the declarations of an argument parser: its commands, its options, and what these take."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakKeyDictionary

FILES = ("FILE", "DIR", "CAPTURE", "STATS")
"""Names in the help of values that are files or folders."""


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands, by name."""
    return {name: own for action in _commands(parser) for name, own in action.choices.items()}


def summaries(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return one sentence about each command."""
    return {each.dest: each.help or "" for action in _commands(parser) for each in action._get_subactions()}


def shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments that the help has, without commands."""
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return [action for action in actions if not isinstance(action, argparse._SubParsersAction)]


def takes_value(action: argparse.Action) -> bool:
    """Return whether an option is followed by a value."""
    return action.nargs != 0


def value(action: argparse.Action) -> str:
    """Return what an option takes, as the help names it."""
    return str(action.metavar or "{" + ",".join(map(str, action.choices or ())) + "}") if takes_value(action) else ""


def suggest(action: argparse.Action, values: Callable[[], Iterable[str]]) -> None:
    """Declare values that completion offers for an option that may have others, too."""
    _suggested[action] = values


_suggested: WeakKeyDictionary[argparse.Action, Callable[[], Iterable[str]]] = WeakKeyDictionary()


def choices(action: argparse.Action) -> list[str]:
    """Return the values that an option may have, or often has; none where it may have any."""
    suggested = _suggested.get(action)
    return list(map(str, action.choices or (suggested() if suggested else ())))


def is_file(action: argparse.Action) -> bool:
    """Return whether a value is a file or folder."""
    return any(name in str(action.metavar) for name in FILES)


def help_of(action: argparse.Action) -> str:
    """Return what the help says of an option."""
    return (action.help or "") % {"default": action.default}


def _commands(parser: argparse.ArgumentParser) -> Iterator["argparse._SubParsersAction[argparse.ArgumentParser]"]:
    yield from (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
