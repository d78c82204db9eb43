"""What TCP remembers of what directions have sent last, and of how it was acknowledged."""

from amqpscope.dissector.kernels.state import Matrix, column


class Sending(Matrix):
    """Directions that have sent bytes: what they sent last, and how fast that is acknowledged."""

    HEAD = column("the first row in Sent; -1: none", empty=-1)
    TAIL = column("the last one; -1: none", empty=-1)
    COUNT = column("number of these")
    LEAST_NS = column("the shortest time from a segment to its acknowledgement; -1: none yet", empty=-1)
    HELD_PACKET = column("a late acknowledgement of all that was sent, after which neither side sent bytes; 0: none")
    HELD_TS = column("time of that")
    HELD_CAPTURE = column("capture of that")
    HELD_NS = column("how late it was")
    TTL = column("1 + time to live of the last segment with bytes; 0: none")
    BEYOND_TS = column("time of the first segment without bytes after bytes that have not come yet; 0: none")
    NUMBER = column("number of its last packet, by its sender (identification of IPv4); 0: none")
    NUMBER_TS = column("time of that packet")
    NUMBER_TOP = column("all that the other side had sent, where that packet acknowledged it; else -1")
    IN_ORDER = column("packets in a row whose numbers follow each other")
    PACE_TS = column("time of the last acknowledgement of bytes; 0: none")
    OWN_TRIP_NS = column("the round trip from which on the time grows for which its bytes wait before the link")
    OWN_TRIP_TS = column("time of that; 0: none yet")
    OWN_PAUSE_NS = column("the longest time between acknowledgements of its bytes since then")
    OTHER_TRIP_NS = column("the same, by round trips of the other direction")
    OTHER_TRIP_TS = column("time of that; 0: none yet")
    OTHER_PAUSE_NS = column("as OWN_PAUSE_NS, since that")
    FULL_BY = column("whose round trips show that the link is full: OWN, OTHER; 0: it is not")
    FULL_TS = column("since when")
    FULL_PACKET = column("since which packet")
    FULL_CAPTURE = column("of which capture")
    FULL_POS = column("position that was acknowledged then")
    FULL_TRIP_TS = column("time of the last long round trip since")
    FULL_TRIP_NS = column("the shortest of these")
    SLICES = column("parts of that time with the same rate")
    SLICE_TS = column("time of the end of the last of these, or FULL_TS")
    SLICE_PACKET = column("its packet")
    SLICE_CAPTURE = column("its capture")
    SLICE_POS = column("position that was acknowledged then")


class Sent(Matrix):
    """Segments with new bytes that were sent last."""

    NEXT = column("the next one of the direction; -1: none")
    BEGIN = column("position of its first new byte")
    END = column("position after its last byte")
    PACKET = column("packet")
    TS = column("its time")
    CAPTURE = column("its capture")
    REPEATED = column("1: some of it was sent again")
