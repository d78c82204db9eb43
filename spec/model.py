"""The model of a protocol: classes, methods and fields as frozen records, whatever document they came from.

Terms are those of AMQP 0-9-1. What AMQP 0-10 calls controls and commands are methods here (`Method.kind` says which),
its structs and wire types have records of their own that stay empty for the older protocols. Of the stream protocol
each layout of a command is a method: class 0 has the requests, class 1 the responses, as the key's highest bit says.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from amqpscope.errors import Error, MissingError, near

ColumnType = Literal["bool", "int32", "int64", "string", "binary", "timestamp", "double"]
"""Types of table columns; `timestamp` is microseconds since the epoch, UTC."""

Severity = Literal["note", "warning", "error"]


COMMAND_HEADER = "session.header"
"""Name of the struct before the arguments of every command of AMQP 0-10."""


class SpecError(Error):
    """A specification cannot be read or used; the message is one line that says where, what, and what to do."""


class MissingNameError(SpecError, KeyError):
    """A protocol has nothing of this name."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no {what} {name!r}{near(name, known)}")

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> Any:
        return _missing, (self.args[0],)


def _missing(text: str) -> MissingNameError:
    error = MissingNameError("", "", ())
    error.args = (text,)
    return error


class MissingDocumentError(SpecError, MissingError):
    """A user's document is not there."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A named number: frame type, frame-end, frame-min-size or reply code."""

    name: str
    value: int
    kind: Literal["soft", "hard", "response"] | None
    """Of a reply code: `soft` closes the channel, `hard` the connection, `response` is one of streams; else None."""
    doc: str
    extension: str | None = None
    """Whose addition to the published protocol it is: `rabbitmq` or None."""
    returned: bool = False
    """Whether it is a reason of basic.return, which closes nothing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A named value of an enumeration."""

    name: str
    value: int
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    """A named use of a type."""

    name: str
    """Within a class of AMQP 0-10: `class.domain`."""
    type: str
    """The base wire type."""
    doc: str = ""
    choices: tuple[Choice, ...] = ()
    """The named values of an enumeration (AMQP 0-10)."""


@dataclass(frozen=True, slots=True)
class Header:
    """One spelling of the protocol header: the eight bytes with which a connection begins."""

    data: bytes
    version: str
    """The protocol that this spelling asks for, such as `0-9-1`."""
    doc: str


@dataclass(frozen=True, slots=True)
class Field:
    """An argument of a method, a content property, or a member of a struct, in wire order."""

    name: str
    """With underscores: `delivery_tag`."""
    wire_name: str
    """As the document writes it: `delivery-tag`."""
    domain: str
    type: str
    """The base wire type: bit, octet, short, long, longlong, shortstr, longstr, timestamp, table; AMQP 0-10's types by
    their own names, its structs as `struct`."""
    reserved: bool = False
    """On the wire, without meaning and without a column."""
    secret: bool = False
    """Holds credentials: redacted wherever it would be shown or stored."""
    column: str | None = None
    """Name of the column that holds it; None when reserved."""
    column_type: ColumnType = "string"
    property_column: str | None = None
    """Name of its column where the table of messages has another name for it than the protocol."""
    extension: str | None = None
    """Whose addition to the published protocol it is: `rabbitmq` or None."""
    doc: str = ""
    optional: bool = False
    """The record may end before it (streams)."""
    when: int | None = None
    """It is there only where the nearest field before it that has no `when` has this value (streams)."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method, or a control or command of AMQP 0-10."""

    class_name: str
    class_id: int
    name: str
    id: int
    full_name: str
    """`basic.publish`"""
    fields: tuple[Field, ...]
    synchronous: bool
    """Asks for an answer, or is one."""
    responses: tuple[str, ...]
    """Full names of the methods that answer it."""
    content: bool
    """A content header and body follow."""
    from_client: bool
    from_server: bool
    extension: str | None = None
    """Whose addition to the published protocol it is: `rabbitmq` or None."""
    doc: str = ""
    extension_senders: tuple[str, ...] = ()
    """Of `client` and `server`, the senders that only an extension allows (`server` for basic.ack)."""
    kind: Literal["method", "control", "command"] = "method"
    result: str | None = None
    """Name of the struct that execution.result carries in answer to it (AMQP 0-10)."""
    entries: tuple[str, ...] = ()
    """Names of the structs that its header segment may hold (AMQP 0-10)."""
    version: int = 1
    """Of the layout (streams)."""
    variant: str | None = None
    """What differs in it from other layouts of the same ids and version; the first that fits is right (streams)."""
    since: str | None = None
    """First release that speaks it, where that is known."""


@dataclass(frozen=True, slots=True)
class Class:
    """A class of methods; `fields` are the content properties, in the order of their flags."""

    name: str
    id: int
    methods: tuple[Method, ...]
    fields: tuple[Field, ...] = ()
    extension: str | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct of AMQP 0-10."""

    name: str
    """`class.struct`; without a class, `struct`."""
    class_id: int
    code: int | None
    """Within its class; None for a struct that never stands on its own."""
    size: int
    """Bytes of the size before it where it is a field; as struct32 it has four."""
    pack: int
    """Bytes of packing flags."""
    fields: tuple[Field, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class WireType:
    """A primitive type of AMQP 0-10."""

    name: str
    code: int | None = None
    fixed_width: int | None = None
    """Bytes of a value; None when a length precedes it."""
    variable_width: int | None = None
    """Bytes of that length."""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """How people see columns of frames in lines of text."""

    names: tuple[tuple[str, str], ...] = ()
    """Columns of numbers that have names, some with their method, and what constants these are: of this kind, or with
    names that begin so; or the domain whose choices they are."""
    milliseconds: tuple[str, ...] = ()
    """Columns that are times, in milliseconds since 1970."""
    left_out: tuple[str, ...] = ()
    """Columns that lines of text leave out."""
    same: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names of columns in other protocols, with the columns that hold the same here."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """All that is known of one protocol."""

    name: str
    """`amqp-0-9-1`"""
    title: str
    version: tuple[int, int, int]
    """Major, minor, revision."""
    provenance: tuple[str, ...]
    """One line for each document or release that says so."""
    headers: tuple[Header, ...]
    constants: tuple[Constant, ...]
    domains: tuple[Domain, ...]
    classes: tuple[Class, ...]
    structs: tuple[Struct, ...] = ()
    types: tuple[WireType, ...] = ()
    shown: Shown = Shown()
    _methods: tuple[Method, ...] = field(init=False, repr=False, compare=False)
    _by_name: dict[str, Method] = field(init=False, repr=False, compare=False)
    _by_id: dict[tuple[int, int], Method] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        methods = sorted((m for c in self.classes for m in c.methods), key=lambda m: (m.class_id, m.id))
        object.__setattr__(self, "_methods", tuple(methods))
        object.__setattr__(self, "_by_name", {m.full_name: m for m in reversed(methods)})
        object.__setattr__(self, "_by_id", {(m.class_id, m.id): m for m in reversed(methods)})

    def __hash__(self) -> int:
        """Return a hash of what tells protocols apart, not of all their fields: caches look protocols up."""
        return hash((self.name, self.version, self.provenance))

    @property
    def methods(self) -> tuple[Method, ...]:
        """Return all methods, ordered by class id and method id."""
        return self._methods

    @property
    def command_header(self) -> tuple[Field, ...]:
        """Return the fields before the arguments of every command (AMQP 0-10)."""
        return next((struct.fields for struct in self.structs if struct.name == COMMAND_HEADER), ())

    def arguments(self) -> list[Field]:
        """Return all fields that have columns in the table of frames, in their order."""
        fields = [*self.command_header, *(f for m in self._methods for f in m.fields)]
        return [f for f in fields if f.column is not None]

    def method(self, full_name: str) -> Method:
        """Return the method of this name, such as `basic.publish`; of two with one name, that with the lower id.

        Raises:
            MissingNameError: there is none.
        """
        if full_name not in self._by_name:
            raise MissingNameError("method", full_name, self._by_name)
        return self._by_name[full_name]

    def by_id(self, class_id: int, method_id: int) -> Method:
        """Return the method with these ids; of several layouts the first.

        Raises:
            KeyError: there is none.
        """
        return self._by_id[class_id, method_id]

    def constant(self, name: str) -> Constant:
        """Return the constant of this name.

        Raises:
            MissingNameError: there is none.
        """
        for constant in self.constants:
            if constant.name == name:
                return constant
        raise MissingNameError("constant", name, (constant.name for constant in self.constants))

    def names_of(self, column: str) -> dict[int, str]:
        """Return the names of the numbers in a column; none where they have none."""
        what = dict(self.shown.names).get(column)
        if what is None:
            return {}
        named = {
            c.value: c.name.removeprefix(what) for c in self.constants if c.kind == what or c.name.startswith(what)
        }
        return named | {c.value: c.name for domain in self.domains if domain.name == what for c in domain.choices}

    def struct(self, name: str) -> Struct:
        """Return the struct of this name, such as `message.reply-to`.

        Raises:
            MissingNameError: there is none.
        """
        for struct in self.structs:
            if struct.name == name:
                return struct
        raise MissingNameError("struct", name, (struct.name for struct in self.structs))

    def method_columns(self) -> dict[str, ColumnType]:
        """Return the columns of the method arguments and their types, in order of first appearance over `methods`."""
        return {f.column: f.column_type for f in self.arguments() if f.column}

    def property_columns(self) -> dict[str, ColumnType]:
        """Return the columns of the content properties and their types, in order of first appearance over `classes`.

        Of AMQP 0-10, of the structs that headers hold.
        """
        held = {name for method in self._methods for name in method.entries}
        fields = [f for c in self.classes for f in c.fields]
        fields += [f for s in self.structs if s.name in held for f in s.fields]
        return {f.column: f.column_type for f in fields if f.column is not None}


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One code of the closed list of faults of a capture or of the traffic in it."""

    code: str
    severity: Severity
    doc: str
    detail: str = "in {records}"
    """Text of the column `detail`, with placeholders for the number that each anomaly carries: see `describe`."""
    detail_none: str | None = None
    """Text that replaces `detail` where the number is 0."""

    def describe(self, value: int) -> str:
        """Return the detail of an anomaly that carries this number."""
        if not value and self.detail_none is not None:
            return self.detail_none
        counted = {unit: f"{value} {unit[: len(unit) - (value == 1)]}" for unit in ("bytes", "records", "packets")}
        return self.detail.format(value=value, high=value >> 16, low=value & 0xFFFF, **counted)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    type: ColumnType
    doc: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table that some command writes.

    `columns` are those that no protocol changes. Where `methods_of` names a protocol, the columns of its methods
    follow, less those that are among them: `with_methods` appends them.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    written_by: str
    """The command that writes it: `dissect` or `analyze`."""
    methods_of: str | None = None
    when_read: tuple[Column, ...] = ()
    """What it has besides where it is read in Python or on Spark: times of `timestamp`, addresses of connections."""

    def with_methods(self, protocol: Protocol) -> "Table":
        """Return the table with one column for each method argument of the protocol after its own."""
        fields: dict[str, list[Field]] = {}
        for item in protocol.arguments():
            fields.setdefault(item.column or "", []).append(item)
        domains = {d.name: d.doc for d in protocol.domains if d.name != d.type}
        known = {column.name for column in self.columns}
        more = tuple(
            Column(name, kind, _shared_doc(fields[name], domains))
            for name, kind in protocol.method_columns().items()
            if name not in known
        )
        return Table(self.name, self.doc, self.columns + more, self.written_by)


def _shared_doc(fields: list[Field], domains: dict[str, str]) -> str:
    """Return the description of a column: of its fields, or of their domain where the fields differ."""
    docs = {item.doc for item in fields}
    return fields[0].doc if len(docs) == 1 else domains.get(fields[0].domain) or fields[0].doc
