"""Help, manual page and completion: made from the same declarations, and complete."""

import re
import subprocess
from pathlib import Path

import pytest

from amqpscope.dissector.cli import options
from amqpscope.dissector.cli.command import STATUSES
from amqpscope.dissector.cli.program import commands, main, parser
from tests.oracles import needs

KNOWN = commands()
WHOLE = parser(KNOWN)
BELOW = options.below(WHOLE)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as status:
        main(words)
    assert status.value.code in (0, None)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", KNOWN)
def test_help_has_examples_that_parse_and_statuses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, name, "--help")
    for line, meaning in KNOWN[name].examples:
        assert f"  amqpscope {line}\n      {meaning}\n" in text
        words = subprocess.run(
            ["bash", "-c", f"printf '%s\\n' {line.partition(' | ')[0]}"], capture_output=True, text=True, check=True
        )
        WHOLE.parse_args(words.stdout.splitlines())
    assert all(f"\n  {status:<4} {meaning}" in text for status, meaning in STATUSES.items())
    assert max(map(len, text.splitlines())) <= 100


def test_the_manual_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--manual").replace("\\", "")
    for name, own in BELOW.items():
        assert f".SS amqpscope {name}\n" in text
        assert all(option in text for action in options.shown(own) for option in action.option_strings)
    assert all(line.replace("'", "(aq") in text for command in KNOWN.values() for line, _ in command.examples)


def test_the_synopsis_tells_what_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.sub(r"\\f[BIR]|\\", "", printed(capsys, "--manual")).splitlines()
    given = {name: lines[lines.index(f".B amqpscope {name}") + 1] for name in ("frames", "dissect", "spec")}
    assert given == {
        "frames": "[option]... CAPTURE...",
        "dissect": "-o DIR [option]... CAPTURE...",
        "spec": "[option]... [NAME]...",
    }


@needs("groff")
def test_the_manual_is_set_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "--manual")
    done = subprocess.run(["groff", "-ww", "-man", "-Tutf8"], input=page.encode(), capture_output=True, check=True)
    assert not done.stderr and b"--fail-on" in done.stdout.replace(b"\x1b[1m", b"")


COMPLETED = {
    "amqpscope fr": ["frames"],
    "amqpscope handshakes --fail": ["--fail-on"],
    "amqpscope frames --format js": ["json"],
    "amqpscope --completion z": ["zsh"],
    "amqpscope frames --method basic.pub": ["basic.publish"],
    "amqpscope summary --fail-on cap-e": ["cap-encrypted"],
}
DIVIDED = {
    "handshakes --fail-on ending : er": ["error"],
    "handshakes --fail-on ending :": ["note", "warning", "error"],
    "frames --port 5672 = amqp-0-9-": ["amqp-0-9-1"],
}
"""Words as bash divides them, and what it puts for the last part."""


@pytest.mark.parametrize("line", [*COMPLETED, *(f"amqpscope {line}" for line in DIVIDED)])
def test_bash_completes(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "completion"
    path.write_text(printed(capsys, "--completion", "bash"))
    code = f". {path}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _amqpscope; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    wanted = COMPLETED.get(line) or DIVIDED[line.removeprefix("amqpscope ")]
    assert done.stdout.split() == wanted and not done.stderr


@needs("fish")
@pytest.mark.parametrize("line", COMPLETED)
def test_fish_completes(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "completion"
    path.write_text(printed(capsys, "--completion", "fish"))
    done = subprocess.run(
        ["fish", "-c", f"source {path}; complete -C '{line}'"], capture_output=True, text=True, check=True
    )
    assert [found.split("\t")[0] for found in done.stdout.splitlines()] == COMPLETED[line]


@needs("zsh")
def test_zsh_reads_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "_amqpscope"
    path.write_text(printed(capsys, "--completion", "zsh"))
    code = f"autoload -Uz compinit; compinit -u -D; source {path}; print $_comps[amqpscope]"
    done = subprocess.run(["zsh", "-fc", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("_amqpscope", "")
