"""What gizmo brings for statistics; its walk lies in another module, which may import all of `pipelines`."""

from amqpscope.pipelines.model.protocols import Frames, Statistics

STATISTICS = Statistics(
    Frames("gizmo_frames", closes=("gizmo.bye",), begins=("gizmo.bye",)), walks=f"{__package__}.members:MEMBERS"
)
