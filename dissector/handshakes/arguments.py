"""What peers say in their methods: one object for all connections that say the same."""

from collections import defaultdict
from typing import Any

from amqpscope.dissector.handshakes.cache import BoundedCache
from amqpscope.dissector.kernels import limits


class PeerArguments(dict[str, Any]):
    """The arguments of a method. Equal ones are mostly one object; by that they are compared, for it is quick."""

    detail = ""
    """What to say of it in a few words."""
    __hash__ = object.__hash__  # type: ignore[assignment]

    @classmethod
    def of(cls, values: dict[str, Any], detail: str) -> "PeerArguments":
        """These values, of which that is to be said."""
        made = cls(values)
        made.detail = detail
        return made

    def __eq__(self, other: object) -> bool:
        return self is other


NOTHING = PeerArguments()
"""Arguments of a method that did not come."""


class ArgumentsCache:
    """What was said before, by whom it does not matter."""

    def __init__(self) -> None:
        self.known: BoundedCache[tuple[Any, ...], PeerArguments] = BoundedCache()

    def of(self, role: str, names: tuple[str, ...], values: tuple[Any, ...]) -> PeerArguments:
        """The arguments of a method by its role: see `Story.told`."""
        said = self.known.get((role, values))
        if said is None:
            said = PeerArguments(zip(names, map(_shortened, values), strict=True))
            said.detail = _detail(role, said)
            self.known.keep((role, values), said, sum(len(value) for value in values if isinstance(value, str)))
        return said


def _shortened(value: Any) -> Any:
    return value[: limits.TEXT] if isinstance(value, str) else value


def _detail(role: str, said: PeerArguments) -> str:
    """A few words; what was not captured, or a user's document does not have, is a question mark."""
    told = defaultdict(lambda: "?", {name: value for name, value in said.items() if value is not None})
    if role == "start":
        return f"offers {told['mechanisms']}"
    if role == "start-ok":
        return str(told["mechanism"])
    if role in ("tune", "tune-ok"):
        limits = [f"channel-max {told['channel_max']}"] if "channel_max" in said else []
        return ", ".join([*limits, f"frame-max {told['frame_max']}", f"heartbeat {told['heartbeat']} s"])
    if role == "open":
        return f"vhost {told['virtual_host']}"
    if role == "close":
        return f"{told['reply_code']} {told['reply_text']}"
    if role == "refusal":
        return f"{told['code']} {told['words']}"
    if role == "blocked":
        return said.get("reason") or ""
    return ""
