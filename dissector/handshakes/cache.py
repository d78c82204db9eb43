"""What was worked out before, so that the thousandth connection of an application costs little."""

from typing import Generic, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")

ROOM = 1 << 20
"""Characters of text that are kept, roughly; what others do is not to be trusted with our memory."""
ENTRY = 256
"""What an entry takes besides its texts."""


class BoundedCache(Generic[Key, Item]):
    """Items by key. All of it is forgotten when it has grown too large; any thread may use it."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.items: dict[Key, Item] = {}
        self.taken = 0

    def get(self, key: Key) -> Item | None:
        """What is known by this key."""
        return self.items.get(key)

    def keep(self, key: Key, item: Item, characters: int) -> None:
        """Keep an item; `characters` is the length of the texts that come with it."""
        if self.taken > self.room:
            self.items, self.taken = {}, 0
        if characters < self.room // 16:
            self.items[key] = item
            self.taken += characters + ENTRY
