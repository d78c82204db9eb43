"""Frames of streams as events."""

from amqpscope.pipelines.model.events import SPOKEN, source_of

STREAM_FRAMES = source_of("stream_frames")
PROTOCOL = SPOKEN[STREAM_FRAMES]
