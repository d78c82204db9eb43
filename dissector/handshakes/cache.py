"""Cache results, so that the thousandth connection of an application costs little."""

from typing import Generic, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")

ROOM = 1 << 20
"""Most characters of text stored, roughly: captures are hostile input and must not exhaust memory."""
ENTRY = 256
"""Size of an entry besides its texts."""


class BoundedCache(Generic[Key, Item]):
    """Items by key. The cache is emptied when it has grown too large; any thread may use it."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.items: dict[Key, Item] = {}
        self.taken = 0

    def get(self, key: Key) -> Item | None:
        """Return the item of a key; None where there is none."""
        return self.items.get(key)

    def keep(self, key: Key, item: Item, characters: int) -> None:
        """Store an item; `characters` is the length of the texts that come with it."""
        if self.taken > self.room:
            self.items, self.taken = {}, 0
        if characters < self.room // 16:
            self.items[key] = item
            self.taken += characters + ENTRY
