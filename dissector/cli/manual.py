"""Make the manual page (man 7 man) from the declarations of the commands."""

import argparse
from collections.abc import Iterator, Mapping
from importlib.metadata import metadata, version

from amqpscope.dissector.cli import options
from amqpscope.dissector.cli.command import PROGRAM, STATUSES, Command


def page(parser: argparse.ArgumentParser, known: Mapping[str, Command]) -> str:
    """Return the page of the program and its commands."""
    lines = [f'.TH {PROGRAM.upper()} 1 "" "{PROGRAM} {version(PROGRAM)}" "User Commands"', ".SH NAME"]
    lines += [rf"{PROGRAM} \- {_text(metadata(PROGRAM)['Summary'])}", ".SH SYNOPSIS"]
    for name in known:
        lines += [rf".B {PROGRAM} {name}", _synopsis(options.below(parser)[name]), ".br"]
    lines += [".SH DESCRIPTION", _text(parser.description or ""), ".SH OPTIONS", *_options(parser), ".SH COMMANDS"]
    for name, own in options.below(parser).items():
        lines += [f".SS {PROGRAM} {name}", _text(" ".join((own.description or "").split())), *_options(own)]
    lines += [".SH EXIT STATUS"]
    for status, meaning in STATUSES.items():
        lines += [".TP", f".B {status}", _text(meaning)]
    lines += [".SH ENVIRONMENT", ".TP", ".B NO_COLOR", "Print no colours, also on a terminal.", ".TP"]
    lines += [".B FORCE_COLOR, CLICOLOR_FORCE", r"Print colours, also to files and pipes. \-\-color has precedence."]
    lines += [".SH EXAMPLES"]
    for command in known.values():
        for line, meaning in command.examples:
            lines += [".TP", f".B {PROGRAM} {_text(line)}", _text(meaning)]
    return "\n".join(lines) + "\n"


def _synopsis(parser: argparse.ArgumentParser) -> str:
    """Return what a command must be given, options before arguments, and what it may be given in brackets."""
    actions = options.shown(parser)
    required = [rf"\fB{_text(a.option_strings[0])}\fR {_value(a)}" for a in actions if a.option_strings and a.required]
    arguments = [
        (f"[{_value(action)}]" if action.nargs == "*" else _value(action)) + ("..." if action.nargs else "")
        for action in actions
        if not action.option_strings
    ]
    return " ".join([*required, r"[\fIoption\fR]...", *arguments])


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in options.shown(parser):
        names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
        yield from (".TP", " ".join(filter(None, (names, _value(action)))), _text(options.help_of(action)))


def _value(action: argparse.Action) -> str:
    return rf"\fI{_text(options.value(action))}\fR" if options.takes_value(action) else ""


def _text(text: str) -> str:
    """Return text that roff prints as it is."""
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    return rf"\&{plain}" if plain.startswith((".", r"\(aq")) else plain
