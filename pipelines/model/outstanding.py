"""Outstanding numbers: publishes until their confirm, deliveries until their acknowledgement.

An account (one channel epoch) has pages in the order of their numbers, each of PAGE consecutive numbers; an index of
hashes finds the page of a number. So an answer to one number, or to all up to one, costs no more than what it answers,
and an outstanding number takes some 30 bytes. Its slot has the id of a row (`rows.Waiting`), the frame at which it
began, and a number for the walk's own use.

`ledger` is a tuple: `pages` (PG), `slots` (SL; PAGE rows for each page), `index` (`lookup`), `book` (BK).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.lookup import enter, enter_all, leave, row_of
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.store import grown

BITS = 4
PAGE = 1 << BITS
FAR = 64
"""Pages that a number may lie before the last one; numbers further back are refused, for peers count upward."""


class PG(Matrix):
    """Columns of `pages`."""

    ACCOUNT = column("whose it is; -1: the page is free")
    BASE = column("its numbers, shifted by BITS")
    PREVIOUS = column("the previous page; -1: none")
    NEXT = column("the next page; of free pages the next free one")
    COUNT = column("outstanding numbers")


class SL(Matrix):
    """Columns of `slots`."""

    ROW = column("-1: nothing is outstanding")
    FRAME = column("the frame at which it began")
    EXTRA = column("used by the walk")


class BK(Matrix):
    """Columns of `book`."""

    FREE = column("first free page; -1: none")
    COUNT = column("outstanding numbers")


class AC(Matrix):
    """The first columns of an account, which the ledger needs."""

    HEAD = column("its first page; -1: none")
    TAIL = column("its last")
    LAST = column("largest number so far; -1: none")
    COUNT = column("outstanding numbers")


Ledger = tuple[Array, Array, Array, Array]


def fresh(pages: int = 64) -> Ledger:
    """Return a ledger with room for this many pages (a power of two)."""
    made, slots, index, book = _empty(pages)
    return made.copy(), slots.copy(), index.copy(), book.copy()


@cache
def _empty(pages: int) -> Ledger:
    """Return what `fresh` copies: entering free pages one by one takes longer."""
    book = np.array([-1, 0], np.int64)
    empty = np.empty((0, PG.WIDTH), np.int64), np.empty((0, SL.WIDTH), np.int64), np.zeros(1, np.int64), book
    return roomy(empty, pages)


def roomy(ledger: Ledger, pages: int, compiled: bool = False) -> Ledger:
    """Return the ledger with room for at least this many pages."""
    old, slots, index, book = ledger
    made = grown(old, pages)
    slots = grown(slots, PAGE * len(made), -1)
    size = len(index)
    while size < 2 * len(made):
        size *= 2
    table = grown(np.zeros(0, np.int64), size)
    call(enter_all, compiled, table, made, PG.ACCOUNT, PG.BASE, index)
    if len(made) > len(old):  # new pages are free
        made[len(old) :, PG.NEXT] = np.arange(len(old) + 1, len(made) + 1)
        made[-1, PG.NEXT], book[BK.FREE] = book[BK.FREE], len(old)
    return made, slots, table, book


@kernel
def slot_of(ledger: Ledger, account: int, number: int) -> int:
    """Return the slot of an outstanding number of an account; -1: none."""
    if number < 0:
        return -1
    page = row_of(ledger[2], ledger[0], PG.ACCOUNT, account, PG.BASE, number >> BITS)
    if page < 0:
        return -1
    slot = page * PAGE + (number & (PAGE - 1))
    return slot if ledger[1][slot, SL.ROW] >= 0 else -1


@kernel
def add(ledger: Ledger, accounts: Array, account: int, number: int) -> int:
    """Return a slot for a number that is now outstanding; the caller fills it.

    Returns:
        The slot; -1: there is no free page (nothing has happened); -2: the number lies too far back.
    """
    pages, slots, index, book = ledger
    base = number >> BITS
    tail = accounts[account, AC.TAIL]
    page = tail
    if tail < 0 or pages[tail, PG.BASE] != base:
        page = row_of(index, pages, PG.ACCOUNT, account, PG.BASE, base)
    if page < 0:
        before = tail
        far = 0
        while before >= 0 and pages[before, PG.BASE] > base:
            before = pages[before, PG.PREVIOUS]
            far += 1
            if far > FAR:
                return -2
        page = book[BK.FREE]
        if page < 0:
            return -1
        book[BK.FREE] = pages[page, PG.NEXT]
        pages[page, PG.ACCOUNT] = account
        pages[page, PG.BASE] = base
        pages[page, PG.PREVIOUS] = before
        pages[page, PG.COUNT] = 0
        after = pages[before, PG.NEXT] if before >= 0 else accounts[account, AC.HEAD]
        pages[page, PG.NEXT] = after
        if before >= 0:
            pages[before, PG.NEXT] = page
        else:
            accounts[account, AC.HEAD] = page
        if after >= 0:
            pages[after, PG.PREVIOUS] = page
        else:
            accounts[account, AC.TAIL] = page
        for slot in range(page * PAGE, page * PAGE + PAGE):
            slots[slot, SL.ROW] = -1
        enter(index, pages, PG.ACCOUNT, PG.BASE, page)
    slot = page * PAGE + (number & (PAGE - 1))
    if slots[slot, SL.ROW] < 0:
        pages[page, PG.COUNT] += 1
        accounts[account, AC.COUNT] += 1
        book[BK.COUNT] += 1
    accounts[account, AC.LAST] = max(accounts[account, AC.LAST], number)
    return slot


@kernel
def remove(ledger: Ledger, accounts: Array, slot: int) -> None:
    """Empty a slot; a page without outstanding numbers is free, and leaves the chain of its account."""
    pages, slots, index, book = ledger
    page = slot >> BITS
    account = pages[page, PG.ACCOUNT]
    slots[slot, SL.ROW] = -1
    pages[page, PG.COUNT] -= 1
    accounts[account, AC.COUNT] -= 1
    book[BK.COUNT] -= 1
    if pages[page, PG.COUNT] == 0:
        leave(index, pages, PG.ACCOUNT, PG.BASE, page)
        before = pages[page, PG.PREVIOUS]
        after = pages[page, PG.NEXT]
        if before >= 0:
            pages[before, PG.NEXT] = after
        else:
            accounts[account, AC.HEAD] = after
        if after >= 0:
            pages[after, PG.PREVIOUS] = before
        else:
            accounts[account, AC.TAIL] = before
        pages[page, PG.NEXT] = book[BK.FREE]
        book[BK.FREE] = page


@kernel
def first_above(ledger: Ledger, accounts: Array, account: int, number: int) -> int:
    """Return the slot of an account's smallest number above this one; -1: none. The search goes backward."""
    pages, slots, _, _ = ledger
    page = accounts[account, AC.HEAD]
    if number >= 0 and page >= 0:
        found = row_of(ledger[2], ledger[0], PG.ACCOUNT, account, PG.BASE, number >> BITS)
        if found >= 0:
            page = found
        elif pages[page, PG.BASE] < number >> BITS:
            page = accounts[account, AC.TAIL]
            while page >= 0 and pages[page, PG.BASE] > number >> BITS:
                page = pages[page, PG.PREVIOUS]
            page = pages[page, PG.NEXT]
    while page >= 0:
        base = pages[page, PG.BASE] << BITS
        for place in range(PAGE):
            if slots[page * PAGE + place, SL.ROW] >= 0 and base + place > number:
                return page * PAGE + place
        page = pages[page, PG.NEXT]
    return -1


@kernel
def following(ledger: Ledger, slot: int) -> int:
    """Return the slot of the next larger outstanding number on the account of a slot; -1: none."""
    pages, slots, _, _ = ledger
    page = slot >> BITS
    each = slot + 1
    while page >= 0:
        while each < page * PAGE + PAGE:
            if slots[each, SL.ROW] >= 0:
                return each
            each += 1
        page = pages[page, PG.NEXT]
        each = page * PAGE
    return -1


@kernel
def below(ledger: Ledger, slot: int, number: int) -> int:
    """Return the number, or a smaller one with nothing outstanding between them: that of a page which is found at once.

    Args:
        ledger: see the module.
        slot: the smallest outstanding number above the number.
        number: any.
    """
    pages = ledger[0]
    page = slot >> BITS
    if number < 0 or pages[page, PG.BASE] <= number >> BITS:
        return number
    before = pages[page, PG.PREVIOUS]
    return min(number, (pages[before, PG.BASE] << BITS) + PAGE - 1) if before >= 0 else -1


@kernel
def number_of(ledger: Ledger, slot: int) -> int:
    """Return the outstanding number in a slot."""
    return (ledger[0][slot >> BITS, PG.BASE] << BITS) + (slot & (PAGE - 1))
