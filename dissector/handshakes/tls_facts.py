"""Facts about TLS that the rules of `spec/handshakes.toml` ask for, and columns of `connections`.

tls                bool: there is TLS
tls_begun          bool: the client's hello was captured; None without TLS
tls_alert          name of the alert that ended it, as far as that can be read
tls_alert_by       side that sent it
tls_hidden         side that ended a TLS 1.3 handshake with an encrypted alert, judged by the record's length
tls_accepted       bool: encrypted records show that both sides continued after the TLS handshake
tls_client_certificate   `none` when the server asked and the client sent none, `sent`, or None
tls_offered        versions that the client offers, as text; tls_ciphers: number of cipher suites
tls_version, tls_cipher, tls_sni, tls_alpn   as negotiated; tls_name: the server name asked for, or "no name"
tls_server, tls_client   the certificates of both sides, as text
tls_words, tls_meaning   the alert as text, and its meaning
"""

from typing import Any

from amqpscope.dissector.handshakes.record import PacketRef, Step
from amqpscope.dissector.tls.messages import suite_name, version_name
from amqpscope.dissector.tls.shown import Shown, choice, offers, owner
from amqpscope.spec import tls

LATEST_S = (1 << 63) // 1_000_000_000
"""Times from here on do not fit in nanoseconds. A certificate without an end has the year 9999 (RFC 5280, 4.1.2.5)."""
ROLES = ("client", "server")
NAMES = (
    "tls", "tls_begun", "tls_alert", "tls_alert_by", "tls_hidden", "tls_accepted", "tls_client_certificate",
    "tls_offered", "tls_ciphers", "tls_version", "tls_cipher", "tls_sni", "tls_alpn", "tls_name", "tls_server",
    "tls_client", "tls_words", "tls_meaning",
)  # fmt: skip
NOTHING: dict[str, Any] = dict.fromkeys(NAMES) | {"tls": False}


def facts(shown: Shown | None, client: int) -> dict[str, Any]:
    """Return the facts; `client` is the client's side number."""
    if shown is None:
        return NOTHING
    alert, hello, chosen = shown.fatal, shown.hello, shown.chosen
    known = tls.load().alerts.get(alert.number) if alert else None
    name = (known.name if known else str(alert.number)) if alert else None
    sent = shown.certificates[client] is not None or (shown.asked and not shown.bare[client])
    hidden = None if shown.hidden is None or alert else ROLES[shown.hidden != client]
    words, meaning = f"the alert {name}", known.doc if known else "No specification defines this alert."
    if hidden:
        words = "an encrypted alert"
        meaning = f"The last record of the {hidden} has the length of an alert, but its content is encrypted."
    return {
        "tls": True,
        "tls_begun": is_begun(shown),
        "tls_alert": name,
        "tls_alert_by": ROLES[alert.side != client] if alert else None,
        "tls_hidden": hidden,
        "tls_accepted": shown.accepted and not alert and not hidden,
        "tls_client_certificate": "none" if shown.bare[client] else "sent" if sent else None,
        "tls_offered": ", ".join(version_name(number) for number in hello.versions) if hello else None,
        "tls_ciphers": len(hello.suites) if hello else None,
        "tls_version": version_name(chosen.version) if chosen else None,
        "tls_cipher": suite_name(chosen.suite) if chosen else None,
        "tls_sni": hello.server_name if hello else None,
        "tls_alpn": shown.protocol,
        "tls_name": hello.server_name if hello and hello.server_name else "no name",
        "tls_server": owner(shown.certificates[1 - client]),
        "tls_client": owner(shown.certificates[client]),
        "tls_words": words if alert or hidden else None,
        "tls_meaning": meaning if alert or hidden else None,
    }


def is_begun(shown: Shown | None) -> bool:
    """Return whether the client's hello, with which TLS begins, was captured."""
    return shown is not None and shown.hello is not None


def opening(event: str, shown: Shown, side: int) -> tuple[str | None, str]:
    """Return the step that the first bytes of a side make and its detail; None where another step covers it."""
    if event == "tls.alert":
        return None, ""
    if shown.client == side:
        return event, offers(shown.hello) if shown.hello else ""
    return event, choice(shown.chosen) if shown.chosen else ""


def steps(shown: Shown) -> list[Step]:
    """Return the steps of both sides after their first bytes, in their order."""
    return [
        Step(event, side, PacketRef(ts_ns, packet, capture), detail)
        for event, side, (packet, ts_ns, capture), detail in shown.steps
    ]


def columns(shown: Shown | None, client: int) -> dict[str, Any]:
    """Return the columns of `connections` on TLS."""
    if shown is None:
        return {}
    known = facts(shown, client)
    sent = shown.certificates[1 - client]
    return {
        "tls_version": known["tls_version"],
        "tls_cipher": known["tls_cipher"],
        "tls_sni": known["tls_sni"],
        "tls_alpn": known["tls_alpn"],
        "tls_resumed": shown.resumed,
        "tls_certificate": known["tls_server"] if sent else None,
        "tls_certificate_ends_ns": _ns(sent.certificate.ends_s) if sent else None,
        "tls_client_certificate": known["tls_client"] if shown.certificates[client] else None,
        "tls_alert": known["tls_alert"],
        "tls_decrypted": shown.decrypted,
    }


def _ns(seconds: int) -> int | None:
    return seconds * 1_000_000_000 if abs(seconds) < LATEST_S else None
