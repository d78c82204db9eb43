"""What closes a channel of AMQP 0-9-1, or shows that its next epoch is open, in its account (`model.channels`)."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model.channels import ACC, Channels
from amqpscope.pipelines.model.connection import CLIENT
from amqpscope.pipelines.model.events import EV, what

ON_OPEN_OK, ON_CLOSE, ON_CLOSE_OK = (what(FRAMES, f"channel.{name}") for name in ("open-ok", "close", "close-ok"))


@kernel
def note_close(channels: Channels, account: int, events: Array, i: int) -> None:
    """Note a channel.close (its answer shows one that was not seen), or the channel.open-ok of the next epoch."""
    accounts = channels[0]
    if events[i, EV.WHAT] == ON_OPEN_OK:
        if accounts[account, ACC.REOPENED] < 0:
            accounts[account, ACC.REOPENED] = events[i, EV.ORDER]
            accounts[account, ACC.REOPENED_TS] = events[i, EV.TS]
    else:
        side = events[i, EV.FROM_CLIENT]
        if side >= 0 and events[i, EV.WHAT] == ON_CLOSE_OK:
            side = CLIENT - side
        if side >= 0 and accounts[account, ACC.SERVER_CLOSE + side] < 0:
            accounts[account, ACC.SERVER_CLOSE + side] = events[i, EV.ORDER]
            accounts[account, ACC.SERVER_CLOSE_TS + side] = events[i, EV.TS]
