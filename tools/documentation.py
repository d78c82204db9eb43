"""Pages of the documentation site that are made of other files: a hook of MkDocs (see mkdocs.yml)."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files at the top of the repository that are pages."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")
"""A link to a file, or a picture."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    made = {PAGES[name]: links((ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    made["commands.md"] = commands()
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"] = notebook(json.loads(path.read_text(encoding="utf-8")))
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def links(text: str) -> str:
    """Return a page at the top of the repository with links as the site needs them.

    Pages link to each other; a link to any other file becomes its name.

    Raises:
        FileNotFoundError: a link leads nowhere.
    """

    def link(match: re.Match[str]) -> str:
        mark, words, path, anchor = match.groups("")
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"dead link: {path}")
        page = path.replace(".ipynb", ".md")
        target = page.removeprefix("docs/") if page.startswith("docs/") else PAGES.get(path)
        return f"{mark}[{words}]({target}{anchor})" if target else words

    return LINK.sub(link, text)


def commands() -> str:
    """Return the page of the commands: their help."""
    lines = ["# Commands", "", "Made from `amqpscope --help`; `amqpscope --manual | man -l -` shows the same.", ""]
    names = re.findall(r"^    (\w+) {2,}", shown("--help"), re.MULTILINE)
    for name in ["", *names]:
        words = [name, "--help"] if name else ["--help"]
        lines += [f"## amqpscope {name}".rstrip(), "", "```text", shown(*words).rstrip(), "```", ""]
    return "\n".join(lines)


def shown(*words: str) -> str:
    """Return what the program prints."""
    command = [sys.executable, "-m", "amqpscope.dissector.cli.program", *words]
    wide = os.environ | {"COLUMNS": "80"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=wide).stdout  # noqa: S603


def notebook(document: dict[str, Any]) -> str:
    """Return a notebook as a page: its text, its code, and what that prints."""
    return "\n\n".join(cells(document)) + "\n"


def cells(document: dict[str, Any]) -> Iterator[str]:
    """Yield the cells of a notebook in Markdown."""
    for cell in document["cells"]:
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for output in cell.get("outputs", ()):
            shown = "".join(output.get("text") or output["data"].get("text/plain", ""))
            yield f"```text\n{shown.rstrip()}\n```"
