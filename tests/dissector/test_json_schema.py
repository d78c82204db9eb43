"""Whether what commands print as JSON is what the published schemas say, and nothing else."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from amqpscope.dissector.cli import published
from amqpscope.dissector.cli.json_schema import SCHEMAS
from amqpscope.dissector.cli.program import main
from tests.dissector.runs import FOLDER

RECORDED = sorted(path for path in FOLDER.glob("*.pcap*") if path.stem != "demo" and path.stat().st_size < 200_000)


def strict(schema: Any) -> Any:
    """The same, with no keys but those that are declared."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: strict(v) for k, v in schema.items()} | (
        {"additionalProperties": False} if "properties" in schema and "required" in schema else {}
    )


VALIDATORS = {name: jsonschema.Draft202012Validator(strict(make())) for name, make in SCHEMAS.items()}


def keyed(path: Path) -> list[str]:
    keylog = path.with_suffix(".keylog")
    return ["--keylog", str(keylog)] if keylog.exists() else []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recordings_are_as_the_schemas_say(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", str(path), "--format", "json", *keyed(path)]) == 0
    for line in capsys.readouterr().out.splitlines():
        VALIDATORS["frames"].validate(json.loads(line))
    assert main(["handshakes", str(path), "--format", "json", "--tz", "Asia/Kolkata", *keyed(path)]) == 0
    VALIDATORS["handshakes"].validate(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_printed_and_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--json-schema"])
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:amqpscope:{name}:1"


def test_published_files_are_fresh() -> None:
    assert published.main(["--check"]) == 0, f"run {published.COMMAND}"


@pytest.mark.parametrize("wrong", [{"connection_id": 5}, {"ts": "noon"}, {"more": 1}, {"is_partial": "yes"}])
def test_what_is_wrong_is_found(wrong: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", str(FOLDER / "orders_pika.pcap"), "--format", "json", "-c", "1"]) == 0
    frame = json.loads(capsys.readouterr().out)
    VALIDATORS["frames"].validate(frame)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATORS["frames"].validate(frame | wrong)
