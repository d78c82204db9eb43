"""Inputs that fuzzing found worth keeping: a file for each target, a line of hexadecimal digits for each input."""

from pathlib import Path

FOLDER = Path(__file__).parent


def read(target: str) -> list[bytes]:
    """The inputs of a target; `#` begins a comment."""
    path = FOLDER / f"{target}.hex"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [bytes.fromhex(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]


def write(target: str, cases: list[bytes]) -> None:
    """Add inputs to those of a target."""
    known = set(read(target))
    with (FOLDER / f"{target}.hex").open("a", encoding="ascii") as file:
        file.writelines(f"{case.hex()}\n" for case in cases if case not in known)
