"""Who waited for whom in sessions of AMQP 0-10: plain loops over the rows of `amqp010.operations`.

Nothing is lost in these captures, and each session lives on one connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.reference.amqp010 import WITH_RESULT, Row

WRAP = 1 << 32
UNLIMITED = 0xFFFFFFFF
SOON_NS = 1_000_000
SETTLED = {"message.accept": "ack", "message.reject": "reject", "message.release": "nack"}
TABLES = ("confirms", "settlements", "rpcs", "commands", "flow_control", "heartbeats")
ANSWERS = ("execution.result", "execution.exception")
ASKED = {
    "connection.start": ("connection.start-ok",),
    "connection.secure": ("connection.secure-ok",),
    "connection.tune": ("connection.tune-ok",),
    "connection.open": ("connection.open-ok", "connection.redirect"),
    "connection.close": ("connection.close-ok",),
    "session.attach": ("session.attached", "session.detached"),
    "session.detach": ("session.detached",),
    "session.request-timeout": ("session.timeout",),
}


@dataclass
class Session:
    """What is known of a session."""

    name: str
    following: dict[bool, int] = field(default_factory=dict)
    """The id of the next command, by side."""
    outstanding: dict[bool, dict[int, Row]] = field(default_factory=lambda: {True: {}, False: {}})
    """Rows that are not answered, by side and id."""
    commands: dict[bool, dict[int, Row]] = field(default_factory=lambda: {True: {}, False: {}})
    """Rows of `commands` that are not completed, by side and id."""
    queues: dict[str, str] = field(default_factory=dict)
    transaction: bool = False
    accepted: list[tuple[int, bool]] = field(default_factory=list)
    commits: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    sent: dict[int, tuple[Window, int]] = field(default_factory=dict)
    stops: dict[int, Window] = field(default_factory=dict)
    ended: dict[bool, Row] = field(default_factory=dict)
    outlives: bool = False


@dataclass
class Window:
    """The credit of a subscription; infinity is unlimited."""

    destination: str
    window: bool = True
    balance: list[float] = field(default_factory=lambda: [0, 0])
    later: list[float] | None = None
    """What was granted since a stop that is not completed."""
    opened: bool = False
    waits: Row | None = None
    released: Row | None = None


def statistics(operations: list[Row]) -> dict[str, list[Row]]:
    """Rows of confirms, settlements, rpcs, commands, flow_control and heartbeats."""
    found: dict[str, list[Row]] = {name: [] for name in TABLES}
    for connection in dict.fromkeys(row["connection"] for row in operations):
        one = _Connection([row for row in operations if row["connection"] == connection], found)
        one.go()
    return found


class _Connection:
    def __init__(self, rows: list[Row], found: dict[str, list[Row]]) -> None:
        self.rows, self.found = rows, found
        self.sessions: dict[str, Session] = {}
        self.attached: dict[int, str] = {}
        self.asked: list[Row] = []
        self.closed: dict[bool, Row] = {}

    def go(self) -> None:
        for row in self.rows:
            if row["method"] is not None:
                self._operation(row)
        for session in self.sessions.values():
            self._over(session)
        for asked in self.asked:
            self._unanswered(asked["row"], asked["op"]["from_client"], None)
        self._silences()

    def _operation(self, op: Row) -> None:
        name = op["args"].get("name")
        if op["method"] == "session.attach" and name not in self.sessions:
            self.sessions[name] = Session(name)
        if op["method"] == "session.attached" or (
            op["method"] == "session.attach" and op["channel"] not in self.attached
        ):
            self.attached[op["channel"]] = name
        session = self.sessions.get(self.attached.get(op["channel"], ""))
        if op["kind"] == "control":
            self._pair(op)
        if op["method"] == "connection.close":
            self.closed.setdefault(op["from_client"], op)
        if session is not None and not op["method"].startswith("connection."):
            self._in_session(session, op)
        if op["method"] == "session.detached" and self.attached.get(op["channel"]) == name:
            del self.attached[op["channel"]]
            if op["args"].get("code", 0) not in (1, 2) and not session.outlives:
                self._over(self.sessions.pop(name))

    # ---- controls

    def _pair(self, op: Row) -> None:
        for asked in self.asked:
            if (
                op["method"] in ASKED[asked["op"]["method"]]
                and asked["op"]["channel"] == op["channel"]
                and asked["op"]["from_client"] != op["from_client"]
            ):
                code = op["args"].get("code") if op["method"] == "session.detached" else None
                self._answered(asked["row"], op, "error" if code else "ok", code or None)
                self.asked.remove(asked)
                break
        if op["method"] in ASKED:
            self.asked.append({"op": op, "row": self._row("rpcs", op, request=op["method"], queue=None)})

    # ---- commands

    def _in_session(self, session: Session, op: Row) -> None:
        side, args, method = op["from_client"], op["args"], op["method"]
        if op["kind"] == "command":
            number = session.following.get(side, 0)
            session.following[side] = number + 1
            self._command(session, op, number)
        elif method == "session.command-point":
            session.following[side] = args["id"]
        elif method == "session.timeout":
            session.outlives = args.get("timeout", 1) != 0
        elif method == "session.completed":
            self._completed(session, op)
        elif (method == "session.detach" and not session.outlives) or (
            method == "session.detached" and args.get("code", 0) not in (1, 2) and not session.outlives
        ):
            session.ended.setdefault(side, op)
        if method in ("session.detach", "execution.exception") or (
            method == "session.detached" and args.get("code", 0) not in (1, 2)
        ):
            for window in session.windows.values():
                self._release(window, op, certain=False)
            session.windows = {}

    def _command(self, session: Session, op: Row, number: int) -> None:
        side, args, method = op["from_client"], op["args"], op["method"]
        row = self._row("commands", op, session=session.name, command_id=number, method=method)
        session.commands[side][number] = row
        if method == "message.transfer":
            self._transfer(session, op, number)
        elif (op["sync"] and method not in ANSWERS) or method in WITH_RESULT:
            row = self._row("rpcs", op, request=method, queue=args.get("queue"))
            session.outstanding[side][number] = row
        if method in SETTLED:
            self._settle(session, op)
        elif method in ANSWERS:
            failed = method == "execution.exception"
            for each in [n for n in session.commands[not side] if failed and n % WRAP == args.get("id")]:
                self._answered(session.commands[not side].pop(each), op, "error", args["code"])
            for each in [n for n in session.outstanding[not side] if n % WRAP == args.get("id")]:
                row = session.outstanding[not side].pop(each)
                code = args["code"] if failed else None
                self._answered(row, op, ("error" if row["table"] == "rpcs" else "nack") if failed else "ok", code)
            if failed:
                session.ended.setdefault(side, op)
        elif method == "message.subscribe":
            session.queues[args.get("destination", "")] = args.get("queue")
        elif method == "tx.select":
            session.transaction = True
        elif method == "tx.commit":
            session.commits[number] = session.accepted
            session.accepted = []
        elif method == "tx.rollback":
            session.accepted = []
        self._credit(session, op, number)

    def _transfer(self, session: Session, op: Row, number: int) -> None:
        side, args = op["from_client"], op["args"]
        if side:
            row = self._row("confirms", op, publish_seq=number, exchange=args.get("destination", ""),
                            routing_key=op.get("routing_key"), message_id=op.get("message_id"))  # fmt: skip
            row["quiet"] = args.get("accept_mode", 0) == 1
        else:
            tag = args.get("destination")
            queue = session.queues.get(tag or "")
            row = self._row("settlements", op, delivery_tag=number, consumer_tag=tag, queue=queue,
                            exchange=op.get("exchange"), routing_key=op.get("routing_key"))  # fmt: skip
            row["seen"] = args.get("acquire_mode", 0) == 1
            if args.get("accept_mode", 0) == 1:
                row["outcome"] = "auto"
                return
        session.outstanding[side][number] = row

    def _completed(self, session: Session, op: Row) -> None:
        side = op["from_client"]
        for number in [n for n in session.commands[not side] if _named(n, op["args"].get("commands", ()))]:
            self._answered(session.commands[not side].pop(number), op, "ok", None)
        mine = session.outstanding[not side]
        named = [n for n in mine if _named(n, op["args"].get("commands", ()))]
        for number in [n for n in named if mine[n].get("seen")]:
            mine.pop(number)["outcome"] = "auto"
        done = [n for n in named if n in mine and mine[n]["table"] != "settlements"]
        several = sum(mine[n]["table"] == "confirms" for n in done) > 1
        for number in done:
            row = mine.pop(number)
            self._answered(row, op, "ok" if row["table"] == "rpcs" else "ack", None, several)
        for number in [n for n in session.commits if not side and _named(n, op["args"].get("commands", ()))]:
            for each, multiple in session.commits.pop(number):
                row = session.outstanding[False].pop(each, None)
                if row is not None:
                    self._answered(row, op, "ack", None, multiple)
        self._give_back(session, op)

    def _settle(self, session: Session, op: Row) -> None:
        side, args = op["from_client"], op["args"]
        mine = session.outstanding[not side]
        done = [n for n in mine if _named(n, args["transfers"]) and mine[n]["table"] != "rpcs"]
        for number in done:
            if side and op["method"] == "message.accept" and session.transaction:
                session.accepted.append((number, len(done) > 1))
            elif side:
                outcome = SETTLED[op["method"]]
                row = self._answered(mine.pop(number), op, outcome, None, len(done) > 1)
                row["requeue"] = None if outcome == "ack" else outcome == "nack"
            elif op["method"] != "message.accept":
                self._answered(mine.pop(number), op, "nack", args.get("code", 0), len(done) > 1)

    # ---- credit

    def _credit(self, session: Session, op: Row, number: int) -> None:
        side, args, method = op["from_client"], op["args"], op["method"]
        to = args.get("destination", "")
        window = session.windows.get(to)
        if method == "message.subscribe" and side:
            session.windows[to] = Window(to)
        elif window is None:
            return
        elif method == "message.transfer" and not side:
            session.sent[number] = window, op["content_size"]
            self._use(window, -1, -op["content_size"])
            self._prove(window, op)
            self._look(window, op)
        elif method == "message.cancel":
            self._release(session.windows.pop(to), op, certain=False)
        elif method == "message.set-flow-mode":
            window.window = args.get("flow_mode", 0) == 1
        elif method in ("message.stop", "message.flush"):
            session.stops[number], window.later = window, [0, 0]
        elif method == "message.flow":
            value = args.get("value", UNLIMITED)
            balance = window.balance if window.later is None else window.later
            balance[args.get("unit", 0)] += float("inf") if value == UNLIMITED else value
            self._look(window, op)

    def _give_back(self, session: Session, op: Row) -> None:
        named = op["args"].get("commands", ())
        if op["from_client"]:
            for number in [n for n in session.sent if _named(n, named)]:
                window, size = session.sent.pop(number)
                if window.window:
                    self._use(window, 1, size)
                    self._look(window, op)
        else:
            for number in [n for n in session.stops if _named(n, named)]:
                window = session.stops.pop(number)
                assert window.later is not None
                window.balance, window.later = window.later, None
                session.sent = {n: each for n, each in session.sent.items() if each[0] is not window}
                self._look(window, op)

    @staticmethod
    def _use(window: Window, messages: int, size: int) -> None:
        window.balance = [window.balance[0] + messages, window.balance[1] + size]

    def _look(self, window: Window, op: Row) -> None:
        has_credit = min(window.balance) > 0
        window.opened |= has_credit
        if has_credit and window.waits is not None:
            self._release(window, op, certain=True)
        elif window.opened and not has_credit and window.waits is None:
            window.released = None
            window.waits = self._row("flow_control", op, consumer_tag=window.destination, evidence="possible",
                                     start_frame_no=op["frame_no"], start_ts_ns=op["ts_ns"], end_frame_no=None,
                                     end_ts_ns=op["fin_ts_ns"])  # fmt: skip
            self.found["flow_control"].append(window.waits)

    @staticmethod
    def _release(window: Window, op: Row, certain: bool) -> None:
        if window.waits is not None:
            window.waits |= {"end_frame_no": op["frame_no"], "end_ts_ns": op["ts_ns"]}
            window.released = window.waits if certain else None
            window.waits = None

    @staticmethod
    def _prove(window: Window, op: Row) -> None:
        if window.released is not None:
            soon = max(SOON_NS, 2 * (op["rtt_ns"] or 0))
            if op["ts_ns"] - window.released["end_ts_ns"] <= soon:
                window.released["evidence"] = "proven"
            window.released = None

    # ---- rows

    def _row(self, table: str, op: Row, **columns: Any) -> Row:
        row = {name: op[name] for name in ("connection", "channel", "channel_epoch", "from_client")} | columns
        row |= {"table": table, "asked": op, "answer": None, "outcome": None, "reply_code": None, "multiple": None}
        row |= {"ended_by": None, "response": None, "requeue": None}
        if table != "flow_control":
            self.found[table].append(row)
        return row

    @staticmethod
    def _answered(row: Row, op: Row, outcome: str, code: int | None, multiple: bool = False) -> Row:
        row |= {"answer": op, "outcome": outcome, "reply_code": code, "multiple": multiple, "response": op["method"]}
        return row

    def _over(self, session: Session) -> None:
        """Nobody answers what is outstanding in a session."""
        for outstanding in (session.outstanding, session.commands):
            for side, rows in outstanding.items():
                for row in rows.values():
                    self._unanswered(row, side, session)
        for window in session.windows.values():
            if window.waits is not None:
                close = min(self.closed.values(), key=lambda each: each["frame_no"], default=None)
                if close is not None:
                    self._release(window, close, certain=False)

    def _unanswered(self, row: Row, side: bool, session: Session | None) -> None:
        asked = row["asked"]
        ends = [(op, "connection-close", who) for who, op in self.closed.items()]
        ends += [(op, "channel-close", who) for who, op in (session.ended if session else {}).items()]
        if row.get("quiet"):
            self.found["confirms"].remove(row)
        heard = [op for op, _, who in ends if who != side and op["frame_no"] < asked["frame_no"]]
        if heard:
            by, ts = "discarded", min(heard, key=lambda op: op["frame_no"])["ts_ns"]
        elif after := [each for each in ends if each[0] is not asked or session]:
            op, by, _ = min(after, key=lambda each: each[0]["frame_no"])
            ts = op["ts_ns"]
        else:
            by = "capture-end" if asked["fin_ts_ns"] is None else "connection-close"
            ts = asked["fin_ts_ns"] or asked["last_ts_ns"]
        row |= {"outcome": "auto"} if row.get("seen") else {"outcome": "none", "ended_by": by, "end_ts_ns": ts}

    def _silences(self) -> None:
        tuned = next((op for op in self.rows if op["method"] == "connection.tune-ok"), None)
        if tuned is None or not self.closed:
            return
        end = min(self.closed.values(), key=lambda op: op["frame_no"])["ts_ns"]
        seconds = tuned["args"].get("heartbeat", 0)
        for side in (True, False):
            times = [op["ts_ns"] for op in self.rows if op["from_client"] is side]
            times = [tuned["ts_ns"], *(ts for ts in times if tuned["ts_ns"] < ts < end), end]
            silences = [after - before for before, after in pairwise(times)]
            missed = sum(each // (seconds * 10**9) for each in silences) if seconds else 0
            self.found["heartbeats"].append(
                {"connection": tuned["connection"], "from_client": side, "negotiated_s": seconds,
                 "longest_silence_ns": max(silences), "missed": missed}
            )  # fmt: skip


def _named(number: int, ranges: list[tuple[int, int]]) -> bool:
    """Whether a set of ids, which wrap, has one."""
    return any((number - lower) % WRAP <= (upper - lower) % WRAP for lower, upper in ranges)
