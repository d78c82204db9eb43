"""Load the closed lists of values that columns of tables have (codes.toml)."""

from dataclasses import dataclass

from amqpscope.spec import documents


@dataclass(frozen=True, slots=True)
class Code:
    """One value, such as `capture-end`."""

    name: str
    doc: str


@dataclass(frozen=True, slots=True)
class Codes:
    """A list of values. `columns` are those that have them, with their table where other tables have other values."""

    columns: tuple[str, ...]
    doc: str
    values: tuple[Code, ...]

    def are_of(self, table: str, column: str) -> bool:
        """Return whether a column has these values."""
        return column in self.columns or f"{table}.{column}" in self.columns


@documents.caching
def load() -> tuple[Codes, ...]:
    """Load the document."""
    return tuple(
        Codes(tuple(entry["columns"]), entry["doc"], tuple(Code(**value) for value in entry["values"]))
        for entry in documents.read(documents.FOLDER / "codes.toml")["list"]
    )
