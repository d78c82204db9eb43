"""Tables of a protocol that joined as a plug-in."""

from pathlib import Path
from typing import TYPE_CHECKING

from amqpscope import pipelines
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.protocols import registry
from tests.dissector.builders import pcap
from tests.dissector.plugin import protocol
from tests.dissector.plugin.wire import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_its_tables_are_read_back(tmp_path: Path, spark: "SparkSession") -> None:
    path = tmp_path / "gizmo.pcap"
    path.write_bytes(pcap(session().packets, ns=True))
    registry.add(protocol.PROTOCOL, Path(protocol.__file__).with_name("gizmo.toml"))
    try:
        assert main(["dissect", str(path), "-o", str(tmp_path / "tables")]) == 0
        frames = pipelines.read(spark, tmp_path / "tables", "gizmo_frames")
        parts = [row.part for row in frames.orderBy("frame_no").select("part").collect()]
    finally:
        registry.remove("gizmo")
    assert parts == [None, None, *["wheel"] * 5]
