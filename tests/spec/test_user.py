"""Users' documents: bad XML is refused with one helpful line, good ones are laid over ours by class and method id."""

from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope import spec
from amqpscope.spec import columns
from tests.oracles import SPECIFICATIONS, needs

HEAD = '<amqp major="0" minor="9" revision="1">'


def load(tmp_path, text):
    path = tmp_path / "vendor.xml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return spec.load_xml(path)


def vendor(*methods, class_name="basic", class_id=60):
    """A document with one class."""
    return f'{HEAD}<class name="{class_name}" index="{class_id}">{"".join(methods)}</class></amqp>'


BAD = {
    "": "line 1: not well-formed",
    "<amqp": "line 1: not well-formed",
    "<amqp>\n<class></amqp>": "line 2: not well-formed",
    "\x00\x01": "not well-formed",
    "<html/>": "not a definition of AMQP",
    "<amqp/>": "not a definition of AMQP",
    f"{HEAD}</amqp>": "no classes",
    '<amqp major="x" minor="9"/>': "needs a number from 0 to 65535 as its major",
    '<amqp major="0" minor="-9"/>': "needs a number",
    f'{HEAD}<class name="a"/></amqp>': "<class> needs a number from 0 to 65535 as its index",
    f'{HEAD}<class name="a" index="65536"/></amqp>': "needs a number",
    f'{HEAD}<class name="a" index="{"9" * 5000}"/></amqp>': "needs a number",
    f'{HEAD}<class name="a" index="0xg"/></amqp>': "needs a number",
    f'{HEAD}<class index="1"/></amqp>': "no proper name",
    f'{HEAD}<class name="a&#27;[31m" index="1"/></amqp>': "not well-formed",
    f'{HEAD}<class name="a&#155;" index="1"/></amqp>': "no proper name",
    f'{HEAD}<class name="a" index="1"/>\n<class name="a" index="2"/></amqp>': "line 2: class a is there twice",
    f'{HEAD}<class name="a" index="1"/>\n<class name="b" index="1"/></amqp>': "line 2: class id 1 is there twice",
    vendor('<method name="m" index="1"/><method name="m" index="2"/>'): "method m is there twice",
    vendor('<method name="m" index="1"/><method name="n" index="1"/>'): "method id 1 is there twice",
    vendor('<method name="m" index="1"><field name="f" type="frob"/></method>'): "type frob is declared nowhere",
    vendor('<method name="m" index="1"><field name="f"/></method>'): "<field> has no proper type",
    vendor('<method name="m" index="1"><field name="nowait" type="bit"/><field name="no-wait" type="bit"/></method>'): (
        "field no_wait is there twice"
    ),
    f'{HEAD}<domain name="a" type="b"/><domain name="b" type="a"/>{vendor()[len(HEAD) :]}': "leads back to itself",
    f'<!DOCTYPE amqp [<!ENTITY a "b">]>{vendor()}': "entities are not allowed",
    f'<!DOCTYPE amqp [<!ENTITY % a SYSTEM "file:///etc/passwd"> %a;]>{vendor()}': "entities are not allowed",
    '<!DOCTYPE amqp SYSTEM "amqp.dtd"><amqp major="0" minor="9">&a;</amqp>': "entities are not allowed",
    f'<?xml version="1.0" encoding="frob"?>{vendor()}': "unknown character encoding",
    f'<?xml version="1.0" encoding="zlib"?>{vendor()}': "unknown character encoding",
}


@pytest.mark.parametrize("text", BAD, ids=[what[:40] for what in BAD.values()])
def test_bad_documents_are_refused_in_one_line(tmp_path, text):
    with pytest.raises(spec.SpecError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert BAD[text] in message
    assert message.startswith(str(tmp_path / "vendor.xml"))
    assert "line " in message
    assert "\n" not in message


def test_entity_bomb_is_refused_before_it_goes_off(tmp_path):
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    with pytest.raises(spec.SpecError, match="entities are not allowed"):
        load(tmp_path, f'<!DOCTYPE amqp [<!ENTITY l0 "ha">{levels}]>{HEAD}&l9;</amqp>')


def test_size_is_bounded(tmp_path):
    with pytest.raises(spec.SpecError, match="more than 4 MB"):
        load(tmp_path, vendor() + " " * (4 << 20))


def test_a_doctype_alone_is_fine_and_reads_nothing(tmp_path):
    protocol = load(tmp_path, '<!DOCTYPE amqp SYSTEM "/nowhere/amqp.dtd">' + vendor('<method name="m" index="1"/>'))
    assert protocol.method("basic.m").id == 1


def test_deep_nesting_does_no_harm(tmp_path):
    depth = 100_000
    with pytest.raises(spec.SpecError, match="nested too deep"):
        load(tmp_path, "<a>" * depth + "</a>" * depth)


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        spec.load_xml(tmp_path / "none.xml")
    with pytest.raises(IsADirectoryError):
        spec.load_xml(tmp_path)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: HEAD.encode() + b + b"</amqp>"))
def test_any_bytes_load_or_are_refused(tmp_path_factory, data):
    path = Path(tmp_path_factory.getbasetemp()) / "any.xml"
    path.write_bytes(data)
    try:
        spec.load_xml(path)
    except spec.SpecError as error:
        assert "\n" not in str(error)


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_any_names_load_or_are_refused(tmp_path_factory, name, kind, number):
    path = Path(tmp_path_factory.getbasetemp()) / "names.xml"
    text = vendor(f"<method name={quoteattr(name)} index={quoteattr(number)}/>")
    path.write_text(text.replace("basic", f"x{kind}" if kind.isidentifier() else "basic"), "utf-8", "surrogatepass")
    try:
        protocol = spec.load_xml(path)
    except spec.SpecError as error:
        assert "\n" not in str(error)
    else:
        assert all(m.full_name.isprintable() for m in protocol.methods)


# ------------------------------------------------------------------------------------------------------------ loading

OF_0_8 = """<amqp major="8" minor="0">
 <constant name="frame end" value="206"/><constant name="not found" value="404" class="soft error"/>
 <domain name="queue name" type="shortstr"/>
 <class name="queue" index="50">
  <field name="content type" type="shortstr"/>
  <method name="hold" synchronous="1" index="90" label="holds a queue">
   <chassis name="server" implement="MUST"/><response name="hold-ok"/>
   <field name="queue" domain="queue name"/><field name="nowait" type="bit"/>
   <field name="ticket" type="short" reserved="1"/>
  </method>
  <method name="hold-ok" synchronous="1" index="91" content="1"><chassis name="client" implement="MUST"/></method>
 </class></amqp>"""


def test_the_old_format(tmp_path):
    protocol = load(tmp_path, OF_0_8)
    assert (protocol.name, protocol.version) == ("amqp-0-8", (0, 8, 0))
    assert protocol.constant("not-found") == spec.Constant("not-found", 404, "soft", "")
    hold, hold_ok = protocol.methods
    assert (hold.full_name, hold.class_id, hold.id, hold.doc) == ("queue.hold", 50, 90, "holds a queue")
    assert hold.responses == ("queue.hold-ok",)
    assert (hold.from_client, hold.from_server, hold.content) == (True, False, False)
    assert (hold_ok.from_client, hold_ok.from_server, hold_ok.content) == (False, True, True)
    assert [(f.name, f.wire_name, f.domain, f.type, f.column, f.column_type) for f in hold.fields] == [
        ("queue", "queue", "queue-name", "shortstr", "queue", "string"),
        ("no_wait", "nowait", "bit", "bit", "no_wait", "bool"),
        ("ticket", "ticket", "short", "short", None, "int32"),
    ]
    assert protocol.classes[0].fields[0].column == "content_type"


OF_0_10 = """<amqp major="0" minor="10" xmlns="http://www.amqp.org/schema/amqp.xsd">
 <type name="bit" code="0xf1" fixed-width="0"/><type name="uint8" code="0x02" fixed-width="1"/>
 <type name="str8" code="0x85" variable-width="1"/>
 <class name="connection" code="0x1">
  <control name="start-ok" code="0x2"><implement role="server" handle="MUST"/>
   <field name="response" type="str8"/>
  </control>
 </class>
 <class name="message" code="0x4">
  <domain name="mode" type="uint8"><enum><choice name="one" value="1"/></enum></domain>
  <struct name="properties" code="0x3" size="4" pack="2"><field name="mode" type="mode"/></struct>
  <command name="transfer" code="0x1">
   <implement role="server" handle="MUST"/><implement role="client" handle="MUST"/>
   <field name="mode" type="message.mode"/><field name="extra" type="properties"/>
   <result><struct name="outcome" code="0x4" size="4" pack="2"><field name="done" type="bit"/></struct></result>
   <segments><header><entry type="properties"/></header><body/></segments>
  </command>
 </class></amqp>"""


def test_the_new_format(tmp_path):
    protocol = load(tmp_path, OF_0_10)
    transfer = protocol.method("message.transfer")
    assert (transfer.kind, transfer.content, transfer.from_client, transfer.from_server) == (
        "command",
        True,
        True,
        True,
    )
    assert [(f.domain, f.type, f.column_type) for f in transfer.fields] == [
        ("message.mode", "uint8", "int32"),
        ("message.properties", "struct", "string"),
    ]
    assert protocol.method("connection.start-ok").fields[0].secret
    assert protocol.structs[0].name == "message.properties"
    assert (protocol.structs[0].class_id, protocol.structs[0].code) == (4, 3)
    assert protocol.domains[0].choices == (spec.Choice("one", 1),)
    assert (transfer.result, transfer.entries) == ("message.outcome", ("message.properties",))
    assert [f.column for f in protocol.struct("message.outcome").fields] == [None], "only headers have columns"
    assert protocol.property_columns() == {"mode": "int32"}
    assert protocol.types[2] == spec.WireType("str8", 0x85, None, 1)
    with pytest.raises(spec.SpecError, match="amqp-0-10 cannot be laid over amqp-0-9-1"):
        spec.overlay(spec.load(), protocol)


# ------------------------------------------------------------------------------------------------------------ overlay


def test_overlay_adds_and_replaces_by_id(tmp_path):
    user = load(
        tmp_path,
        vendor(
            '<method name="ack" index="80"><field name="delivery-tag" type="shortstr"/></method>',
            '<method name="park" index="200"><field name="queue" type="shortstr"/>'
            '<field name="depth" type="long"/></method>',
        ),
    )
    both = spec.overlay(spec.load(), user)
    assert len(both.methods) == len(spec.load().methods) + 1
    assert both.by_id(60, 80).fields[0].column == "delivery_tag_shortstr"
    assert both.method("basic.deliver").fields[1].column == "delivery_tag"
    assert [f.column for f in both.method("basic.park").fields] == ["queue", "depth"]
    added = {k: v for k, v in both.method_columns().items() if k not in spec.load().method_columns()}
    assert added == {"delivery_tag_shortstr": "string", "depth": "int64"}
    assert both.method("basic.ack").from_server, "left unsaid there, as in ours"
    assert both.name == "amqp-0-9-1"
    assert next(f.name for c in both.classes if c.name == "basic" for f in c.fields) == "content_type"


def test_overlay_avoids_columns_that_mean_something_else(tmp_path):
    user = load(tmp_path, vendor('<method name="m" index="200"><field name="size" type="long"/></method>'))
    assert spec.overlay(spec.load(), user).method("basic.m").fields[0].column == "size_long"


def test_overlay_cannot_uncover_secrets(tmp_path):
    fields = '<field name="a" type="table"/><field name="b" type="shortstr"/><field name="c" type="longstr"/>'
    text = vendor(f'<method name="other" index="11">{fields}</method>', class_name="conn", class_id=10)
    merged = spec.overlay(spec.load(), load(tmp_path, text))
    assert [f.secret for f in merged.by_id(10, 11).fields] == [False, False, True]


def test_overlay_renames_a_whole_class(tmp_path):
    merged = spec.overlay(spec.load(), load(tmp_path, vendor('<method name="m" index="200"/>', class_name="simple")))
    assert merged.by_id(60, 70).responses == ("simple.get-ok", "simple.get-empty")
    assert merged.by_id(60, 71).full_name == "simple.get-ok"


def test_overlay_leaves_out_what_it_cannot_decode(tmp_path):
    """A type that a document declares as itself is known to it alone."""
    own = '<domain name="frob" type="frob"/>'
    methods = '<method name="m" index="200"><field name="f" type="frob"/></method>', '<method name="n" index="201"/>'
    user = load(tmp_path, vendor(*methods).replace(HEAD, HEAD + own))
    assert [m.name for m in spec.left_out(user)] == ["m"]
    merged = spec.overlay(spec.load(), user)
    assert merged.method("basic.n")
    with pytest.raises(KeyError):
        merged.method("basic.m")


EXTENDED = SPECIFICATIONS / "0-9-1-rabbit/amqp0-9-1.stripped.extended.xml"


@needs(EXTENDED)
def test_overlay_of_a_published_document_changes_no_columns():
    ours = spec.load()
    merged = spec.overlay(ours, spec.load_xml(EXTENDED))
    assert merged.method_columns() == ours.method_columns()
    for mine, theirs in zip(ours.methods, merged.methods, strict=True):
        assert mine == theirs or mine.full_name == "confirm.select", mine.full_name


FIELDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "delivery-tag", "size", "nowait"]), st.sampled_from(sorted(columns.BASE_TYPES))
    ),
    max_size=4,
    unique_by=lambda f: f[0],
)


@given(st.lists(FIELDS, min_size=1, max_size=5))
def test_columns_have_one_type_each_and_fields_of_a_method_never_share(tmp_path_factory, methods):
    path = Path(tmp_path_factory.getbasetemp()) / "columns.xml"
    bodies = ["".join(f'<field name="{name}" type="{kind}"/>' for name, kind in fields) for fields in methods]
    path.write_text(vendor(*(f'<method name="m{n}" index="{200 + n}">{b}</method>' for n, b in enumerate(bodies))))
    merged = spec.overlay(spec.load(), spec.load_xml(path))
    types = merged.method_columns()
    assert types | spec.load().method_columns() == types
    for method in merged.methods:
        used = [f.column for f in method.fields if not f.reserved]
        assert len(set(used)) == len(used)
        assert all(types[f.column] == f.column_type for f in method.fields if not f.reserved)
