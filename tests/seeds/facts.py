"""The table of facts, and how one of them is checked in the documents of a world."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FACTS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "facts.toml").read_text())["fact"]
#: one machine; an API server
WORLDS = ("machine", "kubernetes")
#: the definitions of resources, by the names that the table uses: file and path of the parts
MANIFESTS = {
    "manifest": "neptune.io_jointinferenceservices",
    "served-manifest": "sedna.io_inferencemodels",
    "kubeedge-manifest": "ai.kubeedge.io_inferencemodels",
    "model-manifest": "sedna.io_models",
    "dataset-manifest": "sedna.io_datasets",
    "several-manifest": "sedna.io_multiedgeinferenceservices",
}
CHECKS = {"type", "value", "schema", "same_as"}
KEYS = {"seed", "section", "document", "path", "required", "format", "minimum", "note", "kubernetes", "only"} | CHECKS
#: types of JSON, and a time as text
TYPES = {"string": str, "integer": int, "number": (int, float), "array": list, "object": dict, "null": type(None)}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def facts(world: str) -> list[dict[str, Any]]:
    """Return the facts that hold in a world, with its values."""
    found = [fact for fact in FACTS if fact.get("only", world) == world]
    return [{**fact, "value": fact["kubernetes"]} if world in fact else fact for fact in found]


def parts(path: str) -> list[str | int]:
    """Split a path; a part in quotes is one key."""
    found = re.findall(r"'([^']+)'|([^.\[\]]+)|\[(-?\d*)\]", path)
    return [quoted or name or (int(index) if index else "[]") for quoted, name, index in found]


def at(document: Any, path: str) -> Any:
    """Return what is at a path. Raises LookupError."""
    for part in parts(path):
        document = document[part]
    return document


def schema_at(manifest: Any, path: str) -> tuple[Any, bool]:
    """Return the schema of a field of the resource, and whether it is required. Raises LookupError."""
    schema, required = manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"], False
    for part in parts(path):
        required = part in schema.get("required", ())
        schema = schema["items"] if part == "[]" else schema["properties"][part]
    return schema, required


def with_columns(documents: dict[str, Any]) -> dict[str, Any]:
    """Add the printer columns of the definition of seed 001, by their paths."""
    shown = documents["manifest"]["spec"]["versions"][0]["additionalPrinterColumns"]
    return {**documents, "columns": {each["jsonPath"]: each["type"] for each in shown}}


def check(fact: Mapping[str, Any], documents: Mapping[str, Any]) -> None:
    """Check one fact. Raises AssertionError or LookupError where it does not hold."""
    document, path = documents[fact["document"]], fact["path"]
    if "schema" in fact:
        schema, required = schema_at(document, path)
        assert schema["type"] == fact["schema"]
        assert "format" not in fact or schema["format"] == fact["format"]
        assert schema.get("minimum") == fact.get("minimum", schema.get("minimum"))
        assert required is fact.get("required", required)
        return
    found = at(document, path)
    if "same_as" in fact:
        assert found == at(documents[fact["same_as"]], path)
    elif "value" in fact:
        assert found == fact["value"]
        assert type(found) is type(fact["value"])
    elif fact["type"] == "time":
        assert TIME.fullmatch(found)
    else:
        assert isinstance(found, TYPES[fact["type"]])  # type: ignore[arg-type]


def holds(fact: Mapping[str, Any], documents: Mapping[str, Any]) -> bool:
    try:
        check(fact, documents)
    except (AssertionError, LookupError, TypeError):
        return False
    return True
