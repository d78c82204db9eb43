"""The walk of gizmo: when a part that was put was stored, and why not."""

from collections.abc import Iterator

from amqpscope.pipelines.model.connection import SERVER
from amqpscope.pipelines.model.members import Members, OverConnections
from amqpscope.pipelines.model.plain import Plain, Row


class Puts(Plain):
    SOURCE, NAMES = "gizmo_frames", ("gizmo.put", "gizmo.took", "gizmo.stored")
    COLUMNS, tables = ("connection_id", "frame_no", "ts_ns", "method", "count"), ("gizmo_puts",)

    def fresh(self) -> list[Row]:
        return []

    def frame(self, frame: Row) -> Iterator[Row]:
        if frame["method"] == "gizmo.put":
            self.state.append(frame)
            return
        while self.state and self.lacks(SERVER, self.state[0]["frame_no"]):  # it may have been answered there
            yield self.unanswered(self.state.pop(0))
        if self.state and frame["method"] == "gizmo.took":
            self.state[0]["took"] = True
        elif self.state and "took" in self.state[0]:
            put = self.state.pop(0)
            latency = frame["ts_ns"] - put["ts_ns"]
            yield self.row(put) | {"stored_frame_no": frame["frame_no"], "latency_ns": latency}

    def over(self) -> Iterator[Row]:
        yield from map(self.unanswered, self.state)

    def row(self, put: Row) -> Row:
        return {"connection_id": put["connection_id"], "count": put["count"], "put_frame_no": put["frame_no"]}

    def unanswered(self, put: Row) -> Row:
        return self.row(put) | self.why(SERVER, put["frame_no"], put["ts_ns"])


MEMBERS = Members((OverConnections(Puts),))
