"""Make a release: `make release VERSION=0.2.0`.

The working tree must be clean, on main, and the changelog must begin with a section `## 0.2.0 (unreleased)` that has
entries. This sets the version and dates the section; `--finish` commits that, and what was made of it, and tags it.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
BRANCH = "main"
NUMBERS = re.compile(r"\d+\.\d+\.\d+")


class ReleaseError(Exception):
    """A release cannot be made; one line."""


def dated(changelog: str, version: str, day: str) -> str:
    """Return the changelog with the section of this version dated.

    Raises:
        ReleaseError: there is no section that is unreleased, or it has no entries, or it is not the first.
    """
    sections = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    heading = f"{version} (unreleased)"
    if heading not in sections[:1]:
        raise ReleaseError(f"CHANGELOG.md does not begin with the section '## {heading}'")
    section = changelog.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    if not re.search(r"^- ", section, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no entries for {version}")
    return changelog.replace(f"## {heading}\n", f"## {version} ({day})\n", 1)


def numbered(project: str, version: str, released: Sequence[str]) -> str:
    """Return pyproject.toml with this version; `released` are the versions so far.

    Raises:
        ReleaseError: it is no version, or not above those that are released.
    """
    if not NUMBERS.fullmatch(version):
        raise ReleaseError(f"not a version: {version!r}; give 0.2.0")
    last = max(map(_parts, released), default=[])
    if _parts(version) <= last:
        raise ReleaseError(f"{version} is not above {'.'.join(map(str, last))}, which is released")
    return re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', project, count=1)


def _parts(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def git(*words: str) -> str:
    """Run git and return what it prints."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603, S607


def begin(version: str) -> None:
    """Check that a release can be made, and write its version.

    Raises:
        ReleaseError: it cannot be made.
    """
    if git("status", "--porcelain"):
        raise ReleaseError("the working tree has changes; commit them first")
    if (branch := git("branch", "--show-current").strip()) != BRANCH:
        raise ReleaseError(f"on branch {branch}; releases are made on {BRANCH}")
    released = [tag[1:] for tag in git("tag", "--list", "v*").split() if NUMBERS.fullmatch(tag[1:])]
    project, changelog = ROOT / "pyproject.toml", ROOT / "CHANGELOG.md"
    texts = {
        project: numbered(project.read_text(encoding="utf-8"), version, released),
        changelog: dated(changelog.read_text(encoding="utf-8"), version, f"{datetime.now(UTC):%Y-%m-%d}"),
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def finish(version: str) -> None:
    """Commit and tag what was written."""
    git("commit", "--all", "--message", f"Release {version}")
    git("tag", "--annotate", f"v{version}", "--message", f"amqpscope {version}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Begin or finish a release.

    Returns:
        0; 1 when it cannot be made.
    """
    parser = argparse.ArgumentParser(description="Make a release.")
    parser.add_argument("version", metavar="VERSION")
    parser.add_argument("--finish", action="store_true", help="commit and tag; without it, check and write the version")
    given = parser.parse_args(arguments)
    try:
        (finish if given.finish else begin)(given.version)
    except ReleaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
