"""Who speaks what, who is the client, and what connections tell of themselves."""

import pytest

from dissector.connections import user_name


def amqplain(*entries: tuple[str, bytes]) -> str:
    """A login table as the plan hands it over: octets that are no UTF-8 replaced."""
    octets = b"".join(
        bytes([len(name)]) + name.encode() + b"S" + len(value).to_bytes(4, "big") + value for name, value in entries
    )
    return octets.decode(errors="replace")


@pytest.mark.parametrize("name", ["guest", "grün", "é" * 60, "x" * 127])
def test_the_name_in_amqplain_never_runs_into_the_password(name: str) -> None:
    login, password = ("LOGIN", name.encode()), ("PASSWORD", b"s3cret")
    assert user_name("AMQPLAIN", amqplain(login, password)) == name
    assert user_name("AMQPLAIN", amqplain(password, login)) == name


def test_a_name_whose_length_is_no_text_is_not_guessed() -> None:
    assert user_name("AMQPLAIN", amqplain(("LOGIN", b"x" * 200), ("PASSWORD", b"s3cret"))) is None


def test_names_of_other_mechanisms() -> None:
    assert user_name("PLAIN", "\0me\0s3cret") == "me"
    assert user_name("PLAIN", "me s3cret") is None
    assert user_name("PLAIN", "\0me\0s3\0cret") is None
    assert user_name("RABBIT-CR-DEMO", "me") == "me"
    assert user_name("EXTERNAL", "whatever") is None
    assert user_name(None, "whatever") is None
