"""Hold the arguments of handshake messages: one object for all connections that send the same."""

from collections import defaultdict
from typing import Any

from amqpscope.dissector.handshakes.cache import BoundedCache
from amqpscope.dissector.kernels import limits


class PeerArguments(dict[str, Any]):
    """The arguments of a method. Equal arguments usually share one object, so identity is compared, which is fast."""

    detail = ""
    """The arguments in short, as text."""
    __hash__ = object.__hash__  # type: ignore[assignment]

    @classmethod
    def of(cls, values: dict[str, Any], detail: str) -> "PeerArguments":
        """Return these values with the detail that the ladder shows of them."""
        made = cls(values)
        made.detail = detail
        return made

    def __eq__(self, other: object) -> bool:
        return self is other


NOTHING = PeerArguments()
"""The arguments of a method that did not come."""


class ArgumentsCache:
    """Arguments seen before, on any connection."""

    def __init__(self) -> None:
        self.known: BoundedCache[tuple[Any, ...], PeerArguments] = BoundedCache()

    def of(self, role: str, names: tuple[str, ...], values: tuple[Any, ...]) -> PeerArguments:
        """Return the arguments of a method by its role: see `ConnectionRecord.arguments`."""
        arguments = self.known.get((role, values))
        if arguments is None:
            arguments = PeerArguments(zip(names, map(_shortened, values), strict=True))
            arguments.detail = _detail(role, arguments)
            self.known.keep((role, values), arguments, sum(len(value) for value in values if isinstance(value, str)))
        return arguments


def _shortened(value: Any) -> Any:
    return value[: limits.TEXT] if isinstance(value, str) else value


def _detail(role: str, arguments: PeerArguments) -> str:
    """Return arguments in short; those not captured, or not in a user's document, are question marks."""
    shown = defaultdict(lambda: "?", {name: value for name, value in arguments.items() if value is not None})
    if role == "start":
        return f"offers {shown['mechanisms']}"
    if role == "start-ok":
        return str(shown["mechanism"])
    if role in ("tune", "tune-ok"):
        limits = [f"channel-max {shown['channel_max']}"] if "channel_max" in arguments else []
        return ", ".join([*limits, f"frame-max {shown['frame_max']}", f"heartbeat {shown['heartbeat']} s"])
    if role == "open":
        return f"vhost {shown['virtual_host']}"
    if role == "close":
        return f"{shown['reply_code']} {shown['reply_text']}"
    if role == "refusal":
        return f"{shown['code']} {shown['words']}"
    if role == "blocked":
        return arguments.get("reason") or ""
    return ""
