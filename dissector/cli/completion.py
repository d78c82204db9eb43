"""Make scripts that complete commands, options and their values in a shell, from the declarations of the commands."""

import argparse
from collections.abc import Callable, Iterator

from amqpscope.dissector.cli import options
from amqpscope.dissector.cli.command import PROGRAM

BASH = """\
_{program}() {{
    local word command= at=$COMP_CWORD cur="${{COMP_WORDS[COMP_CWORD]}}"
    local last=$cur
    # bash divides words at = and :, also those in a value
    while ((at > 1)) && [[ ${{COMP_WORDS[at]}} == [:=]* || ${{COMP_WORDS[at-1]}} == [:=] ]]; do
        cur="${{COMP_WORDS[--at]}}$cur"
    done
    [[ $last == [:=] ]] && last=
    local before="${{cur%"$last"}}"
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in
            {commands}) command=$word; break ;;
        esac
    done
    case "$command ${{COMP_WORDS[at-1]}}" in
{values}
    esac
    case "$command $cur" in
{names}
    esac
}}
complete -o default -F _{program} {program}
"""
REST = 'COMPREPLY=("${COMPREPLY[@]#"$before"}")'
"""What bash replaces is what follows the last = or :."""
ZSH = """\
#compdef {program}

_{program}() {{
    local line state
    _arguments -C \\
        {options} \\
        '1:command:->command' '*::argument:->arguments'
    case $state in
        command)
            local -a commands=(
{commands}
            )
            _describe command commands ;;
        arguments)
            case $line[1] in
{arguments}
            esac ;;
    esac
}}

if [[ $funcstack[1] == _{program} ]]; then _{program} "$@"; else compdef _{program} {program}; fi
"""


def bash(parser: argparse.ArgumentParser) -> str:
    """Return a script for bash; where nothing else is known, it completes files."""
    commands = options.below(parser)
    values, names = [], []
    for name, own in [*commands.items(), ("", parser)]:
        for action in options.shown(own):
            if options.choices(action):
                patterns = "|".join(f'"{name} {option}"' for option in action.option_strings)
                values.append(f"        {patterns}) {_words(options.choices(action))}; {REST}; return ;;")
        names.append(f'        "{name} -"*) {_words(_names(own))} ;;')
    return BASH.format(
        program=PROGRAM,
        commands="|".join(commands),
        values="\n".join(values),
        names="\n".join([*names, f'        " "*) {_words(list(commands))} ;;']),
    )


def zsh(parser: argparse.ArgumentParser) -> str:
    """Return a script for zsh, to be sourced, or as the file _amqpscope in $fpath."""
    return ZSH.format(
        program=PROGRAM,
        options=" \\\n        ".join(_zsh(parser)),
        commands="\n".join(
            f"                {_quoted(f'{name}:{text}')}" for name, text in options.summaries(parser).items()
        ),
        arguments="\n".join(
            "                " + " \\\n                    ".join([f"{name}) _arguments", *_zsh(own)]) + " ;;"
            for name, own in options.below(parser).items()
        ),
    )


def fish(parser: argparse.ArgumentParser) -> str:
    """Return a script for fish."""
    lines = []
    for name, text in options.summaries(parser).items():
        lines.append(f"complete -c {PROGRAM} -f -n __fish_use_subcommand -a {name} -d {_quoted(text)}")
    commands = options.below(parser).items()
    conditions = [
        (parser, "__fish_use_subcommand"),
        *((own, f"__fish_seen_subcommand_from {n}") for n, own in commands),
    ]
    for own, condition in conditions:
        for action in (action for action in options.shown(own) if action.option_strings):
            names = " ".join(f"-{'l' if o.startswith('--') else 's'} {o.lstrip('-')}" for o in action.option_strings)
            values = options.choices(action)
            value = f"-x -a {_quoted(' '.join(values))} " if values else "-r " if options.is_file(action) else "-x "
            value = value if options.takes_value(action) else ""
            text = _quoted(options.help_of(action))
            lines.append(f"complete -c {PROGRAM} -n '{condition}' {names} {value}-d {text}")
    return "\n".join([*lines, ""])


SCRIPTS: dict[str, Callable[[argparse.ArgumentParser], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _zsh(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield what `_arguments` of zsh takes for each option and argument."""
    for action in options.shown(parser):
        values = options.choices(action)
        kind = f"({_escaped(' '.join(values))})" if values else "_files" if options.is_file(action) else " "
        value = f":{_escaped(options.value(action))}:{kind}" if options.takes_value(action) else ""
        text = _escaped(options.help_of(action))
        for name in action.option_strings:
            repeat = "*" if isinstance(action, argparse._AppendAction) else ""
            yield _quoted(f"{repeat}{name}[{text}]{value}")
        if not action.option_strings:
            yield _quoted(f"*:{_escaped(str(action.metavar))}:{kind}")


def _names(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in options.shown(parser) for name in action.option_strings]


def _words(words: list[str]) -> str:
    return f"""COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$cur"))"""


def _escaped(text: str) -> str:
    """Return text without what separates the parts of a specification of zsh."""
    return text.replace("\\", "\\\\").replace(":", "\\:").replace("[", "\\[").replace("]", "\\]")


def _quoted(text: str) -> str:
    """Return text in single quotes, as all three shells read it."""
    return "'" + text.replace("'", "'\\''") + "'"
