"""The base of the errors that amqpscope raises, and how they are put in words. Imports nothing of the project."""

import json
import os
import shlex
import sys
from collections.abc import Iterable


class Error(Exception):
    """Something is wrong that a user can act upon: a file, an option, the surroundings. The message is one line."""


class MissingError(Error, FileNotFoundError):
    """A file or folder is not there."""


def reason(error: BaseException) -> str:
    """Return what is wrong in words, on one line; of a failed system call, its reason without number and file."""
    number = getattr(error, "errno", None) or 0
    words = os.strerror(number) if number > 0 else getattr(error, "strerror", None)
    return words.lower() if words else " ".join(str(error).split()) or type(error).__name__


def near(wanted: str, known: Iterable[str]) -> str:
    """Return a question that names what a user may have meant, to follow an error; empty where nothing is near."""
    import difflib  # noqa: PLC0415 - rarely needed

    names = sorted({*known})
    found = difflib.get_close_matches(wanted.lower(), names, 3, 0.6)
    found += [name for name in names if len(wanted) > 2 and wanted.lower() in name and name not in found]
    return f"; did you mean {' or '.join(found[:3])}?" if found else ""


def installing(extra: str) -> str:
    """Return the command that installs an extra of amqpscope where this one is: as a checkout, a wheel or a release."""
    from importlib.metadata import distribution  # noqa: PLC0415 - it imports much
    from urllib.parse import unquote  # noqa: PLC0415 - rarely needed

    what, source = f"amqpscope[{extra}]", json.loads(distribution("amqpscope").read_text("direct_url.json") or "{}")
    is_editable = source.get("dir_info", {}).get("editable", False)
    if is_editable:
        what = f"{unquote(source['url'].removeprefix('file://'))}[{extra}]"
    elif source:
        kind = source["vcs_info"]["vcs"] + "+" if "vcs_info" in source else ""
        what = f"{what} @ {kind}{source['url']}"
    return f"{shlex.quote(sys.executable)} -m pip install {'-e ' if is_editable else ''}'{what}'"
