"""What `amqpscope spec` prints and refuses, and that the reference page is fresh."""

import argparse

import pytest

from amqpscope import spec
from amqpscope.spec import describe, reference
from amqpscope.spec.command import Spec

VENDOR = """<amqp major="0" minor="9" revision="1"><constant name="too-late" value="499" class="soft-error"/>
<domain name="frob" type="frob"/>
<class name="basic" index="60">
<method name="ack" index="80"><field name="delivery-tag" type="shortstr"/><field name="multiple" type="bit"/></method>
<method name="reject" index="90"><field name="delivery-tag" type="longlong"/><field name="requeue" type="bit"/></method>
<method name="park" index="200"><field name="depth" type="long"/></method>
<method name="odd" index="201"><field name="body" type="frob"/></method>
<method name="recover-slowly" index="110"><field name="requeue" type="bit"/></method>
</class></amqp>"""


def run(*arguments):
    parser = argparse.ArgumentParser()
    command = Spec()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


@pytest.fixture
def show(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def shown(*arguments):
        assert run(*arguments) == 0
        return capsys.readouterr().out

    return shown


def test_overview_names_everything(show):
    text = show()
    for name in [*spec.names(), *spec.tables(), *(c.name for c in spec.load().classes)]:
        assert name in text
    assert "nack+" in text
    words = text[text.index("Classes and methods of rabbitmq-stream") : text.index("Tables written")].split()
    assert words.count("resolve-offset-spec") == words.count("route") == 2, "as a request and as an answer"


def test_method(show):
    text = show("queue.declare")
    assert text.startswith("queue.declare  (method 50.10)")
    assert "Answered by  queue.declare-ok" in text
    assert "auto-delete  bit       auto_delete  bool" in text
    assert "reserved-1   short     -" in text
    assert "queue.declare  (command 8.1 of amqp-0-10)" in text
    assert text.startswith(show("50.10"))
    assert "addition of RabbitMQ" in show("basic.nack")
    assert "client and server (addition of RabbitMQ)" in show("basic.ack")
    assert "content header and body" in show("basic.deliver")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("basic", ["class 60", "basic.get-empty", "Content properties", "cluster-id"]),
        ("declare", ["exchange.declare", "queue.declare"]),
        ("delivery_tag", ["(column)", "settlements", "basic.reject", "domain of type longlong"]),
        ("delivery-tag", ["(column)", "domain of type longlong"]),
        ("confirms", ["table written by analyze", "publish_seq", "deduplicated"]),
        ("amqp091_frames", ["frame_type", "routing_key", "if_unused"]),
        ("messages", ["table written by dissect", "(column)"]),
        ("406", ["precondition-failed", "closes the channel"]),
        ("not_found", ["reply code 404"]),
        ("206", ["frame-end", "constant"]),
        ("frame-cut", ["anomaly, warning"]),
        ("anomalies", ["15 columns", "tcp-gap"]),
        ("reply-code", ["320", "connection-forced"]),
        ("amqp-0-9-1", ["AMQP 0 0 9 1", "Sources", "internal-error"]),
        ("Basic.Publish", ["method 60.40"]),
        (
            "message.transfer",
            ["command 4.1 of amqp-0-10", "header (message.delivery-properties, ", "accept_mode   int32"],
        ),
        ("4.1", ["message.transfer"]),
        ("session.attach", ["control 2.1 of amqp-0-10", "session.attached or session.detached"]),
        ("exchange.query", ["execution.result with exchange.exchange-query-result"]),
        ("message-properties", ["struct 4.3 of amqp-0-10", "message.reply-to  reply_to", "vbin16"]),
        ("dtx.recover-result", ["struct 6.3", "Answers  dtx.recover"]),
        ("illegal-state", ["code 409 of execution.error-code of amqp-0-10"]),
        ("404", ["reply code 404", "code 404 of execution.error-code of amqp-0-10"]),
        ("sequence-set", ["type of amqp-0-10"]),
        ("uuid", ["type 0x48 of amqp-0-10"]),
        ("flow-mode", ["domain of type uint8 of amqp-0-10", "window"]),
        ("amqp010_frames", ["command_id_sequence_no", "value_uint32", "sync"]),
        ("amqp-0-10", ["AMQP 1 1 0 10", "min-max-frame-size", "0xa8  map"]),
    ],
)
def test_names(show, name, expected):
    text = show(name)
    for words in expected:
        assert words in text


def test_several_names_at_once(show):
    text = show("tx.commit", "404")
    assert text.index("tx.commit  (method") < text.index("not-found  (reply code 404")


def test_every_name_is_shown_and_fits_the_width(show, monkeypatch):
    for name in sorted(describe.names(spec.load())):
        for line in show(name).splitlines():
            assert len(line) <= 100, (name, line)
            assert line == line.rstrip()
    monkeypatch.setenv("COLUMNS", "20")
    assert show("basic.publish")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("basic.publsh", "basic.publish"),
        ("delivery_tg", "delivery_tag"),
        ("conf", "confirms"),
        ("tcp-gaps", "tcp-gap"),
    ],
)
def test_unknown_names_get_near_ones(name, near):
    with pytest.raises(spec.SpecError, match=f"unknown name: .*; did you mean .*{near}"):
        run(name)


@pytest.mark.parametrize("name", ["zzzzzz", "", "999", "\x1b[31m", "é"])
def test_names_far_from_all(name):
    with pytest.raises(spec.SpecError, match="unknown name") as caught:
        run(name)
    assert str(caught.value).isprintable()


def test_a_users_document(show, tmp_path):
    path = tmp_path / "vendor.xml"
    path.write_text(VENDOR)
    text = " ".join(show("--spec", str(path)).split())
    assert "replaces basic.ack (60.80)" in text
    assert "delivery-tag shortstr in column delivery_tag_shortstr for delivery-tag longlong" in text
    assert "adds basic.park (60.200)" in text
    assert "renames basic.recover-slowly (60.110) ours: basic.recover" in text
    assert "leaves out basic.odd (60.201)" in text
    assert "same fields 1 methods" in text
    assert "only ours 63 methods" in text
    assert "too-late 499" in text
    assert "delivery_tag_shortstr string, depth int64" in text
    assert "delivery_tag_shortstr" in show("--spec", str(path), "basic.ack")
    assert "reply code 499" in show("--spec", str(path), "too-late")
    assert "basic.publish  (method" in show("--spec", str(path), "basic.publish")


def test_a_users_document_of_another_framing(show, tmp_path):
    path = tmp_path / "other.xml"
    path.write_text(
        '<amqp major="0" minor="10"><type name="str8" code="0x85" variable-width="1"/><class name="c" code="1">'
        '<control name="k" code="2"><field name="f" type="str8"/></control></class></amqp>'
    )
    assert show("--spec", str(path)).startswith("amqp-0-10  (protocol)")
    assert show("--spec", str(path), "c.k").startswith("c.k  (control 1.2)")


def test_a_bad_document(tmp_path):
    with pytest.raises(spec.SpecError, match="not well-formed"):
        run("--spec", __file__)
    with pytest.raises(OSError):
        run("--spec", str(tmp_path / "none.xml"))


# ------------------------------------------------------------------------------------------------------ reference page


def test_reference_page_is_fresh():
    assert reference.main(["--check"]) == 0, "run python -m amqpscope.spec.reference"


def test_reference_page_has_everything():
    text = reference.page()
    for method in spec.load().methods:
        assert f"#### {method.full_name}" in text
    for code in spec.anomalies():
        assert f"| `{code}` |" in text
    for table in spec.tables().values():
        for column in table.columns:
            assert f"| `{column.name}` | {column.type} |" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") in (4, 5)


def test_a_stale_page_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "PAGE", tmp_path / "docs" / "reference.md")
    assert reference.main(["--check"]) == 1
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    reference.PAGE.write_text(reference.PAGE.read_text().replace("basic.publish", "basic.pubish"))
    capsys.readouterr()
    assert reference.main(["--check"]) == 1
    reported = capsys.readouterr().err
    assert "+#### basic.publish" in reported
    assert reported.endswith("is stale: run python -m amqpscope.spec.reference\n")


def test_312_closes_nothing(show):
    text = " ".join(show("312").split())
    assert "comes with basic.return, closes nothing" in text and "the channel stays open" in text
    assert "closes the channel" in show("404")
