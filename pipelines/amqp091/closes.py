"""What closes a channel of AMQP 0-9-1, or shows that it is open again, in its account (`model.channels`)."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model.channels import ACC, Channels
from amqpscope.pipelines.model.connection import CLIENT
from amqpscope.pipelines.model.events import EV, what

ON_OPEN_OK, ON_CLOSE, ON_CLOSE_OK = (what(FRAMES, f"channel.{name}") for name in ("open-ok", "close", "close-ok"))


@kernel
def note_close(channels: Channels, account: int, events: Array, i: int) -> None:
    """Note a channel.close; its answer shows one that was not seen."""
    accounts = channels[0]
    side = events[i, EV.FROM_CLIENT]
    if side >= 0 and events[i, EV.WHAT] == ON_CLOSE_OK:
        side = CLIENT - side
    if side >= 0 and accounts[account, ACC.SERVER_CLOSE + side] < 0:
        accounts[account, ACC.SERVER_CLOSE + side] = events[i, EV.ORDER]
        accounts[account, ACC.SERVER_CLOSE_TS + side] = events[i, EV.TS]


@kernel
def note_open_ok(channels: Channels, events: Array, i: int) -> None:
    """Note a channel.open-ok: the epoch before is over.

    So is this one where the server closed it before: the channel.open of the next one is missing. A client may close a
    channel whose channel.open is not answered yet.
    """
    accounts = channels[0]
    for back in range(2):
        account = ch.account_of(channels, events[i, EV.CHANNEL], events[i, EV.EPOCH] - back)
        if account >= 0 and accounts[account, ACC.REOPENED] < 0:
            if back == 1 or accounts[account, ACC.SERVER_CLOSE] >= 0:
                accounts[account, ACC.REOPENED] = events[i, EV.ORDER]
                accounts[account, ACC.REOPENED_TS] = events[i, EV.TS]
