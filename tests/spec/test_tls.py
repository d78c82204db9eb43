"""TLS as data: numbers and names, and what the names of suites tell."""

import pytest

from amqpscope.spec import tls

KNOWN = tls.load()


@pytest.mark.parametrize("kind", ["records", "messages", "alerts", "extensions", "suites"])
def test_names_occur_once(kind):
    entries = getattr(KNOWN, kind)
    assert len({entry.name for entry in entries.values()}) == len(entries)
    assert all(number == entry.number for number, entry in entries.items())


def test_whatever_is_shown_is_explained():
    for entry in [*KNOWN.alerts.values(), *KNOWN.messages.values(), *KNOWN.records.values()]:
        assert entry.doc.endswith(".") and entry.doc[0].isupper()


@pytest.mark.parametrize(
    ("number", "mode", "key", "tag", "digest", "mac"),
    [
        (0x1301, "gcm", 16, 16, "sha256", ""), (0x1302, "gcm", 32, 16, "sha384", ""),
        (0x1303, "chacha", 32, 16, "sha256", ""), (0x1305, "ccm", 16, 8, "sha256", ""),
        (0x002F, "cbc", 16, 20, "sha256", "sha1"), (0x003D, "cbc", 32, 32, "sha256", "sha256"),
        (0xC024, "cbc", 32, 48, "sha384", "sha384"), (0xC02F, "gcm", 16, 16, "sha256", ""),
        (0xC0AE, "ccm", 16, 8, "sha256", ""), (0xC0AC, "ccm", 16, 16, "sha256", ""),
        (0xCCA9, "chacha", 32, 16, "sha256", ""), (0x0005, "", 0, 0, "sha256", ""), (0x000A, "", 0, 0, "sha256", ""),
    ],
)  # fmt: skip
def test_a_suite_is_what_its_name_says(number, mode, key, tag, digest, mac):
    suite = KNOWN.suites[number]
    assert (suite.mode, suite.key, suite.tag, suite.hash, suite.mac) == (mode, key, tag, digest, mac)


def test_every_suite_with_aes_or_chacha_can_be_decrypted():
    for suite in KNOWN.suites.values():
        assert bool(suite.mode) == ("AES" in suite.name or "CHACHA" in suite.name), suite.name


def test_numbers_by_name():
    assert KNOWN.number("messages", "finished") == 20 and KNOWN.number("extensions", "supported_versions") == 43
    with pytest.raises(KeyError):
        KNOWN.number("alerts", "nothing")
