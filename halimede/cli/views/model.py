"""What is known of a model, drawn: its content, the versions that were served, where an InferenceModel answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from halimede.cli.output import age, clean, table
from halimede.cli.views.dataset import size
from halimede.cli.views.tables import dig, text

#: characters of a digest that are shown: as many as `halimede rollback --to` is usually given
SHORT = 12


def parts(body: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield titles and contents of what a status says of models; nothing where it says nothing."""
    status = body.get("status") or {}
    if url := status.get("url"):
        lines = [str(url), f"version {text(status.get('servingVersion'))}"]
        yield "Served", Text(clean("\n".join(lines)))
    if facts := status.get("model"):
        yield "Content", Text(clean("\n".join(_content(facts))))
        rows = [
            [way, text(tensor.get("name")), text(tensor.get("datatype")), _shape(tensor.get("shape") or [])]
            for way in ("inputs", "outputs")
            for tensor in facts.get(way) or []
        ]
        if rows:
            yield "Signature", table(["WAY", "NAME", "TYPE", "SHAPE"], rows)
    if versions := status.get("versions"):
        rows = [
            [
                text(each.get("version")),
                text((each.get("digest") or "")[:SHORT]),
                age(each.get("since")),
                text(each.get("url")),
            ]
            for each in versions
        ]
        yield "Versions that were served, the latest first", table(["VERSION", "DIGEST", "SINCE", "URL"], rows)
    if chosen := status.get("chosen"):
        rows = [[text(each.get("worker")), text(each.get("model"))] for each in chosen if each.get("model")]
        if rows:
            yield "Chosen models", table(["WORKER", "MODEL"], rows)


def choice(model: Any) -> str:
    """Return which Model a worker asks for, in words: its name, or what selects it."""
    if name := dig(model, "name"):
        return str(name)
    selector = dig(model, "selector") or {}
    wanted = [f"task {selector['task']}"] if selector.get("task") else []
    wanted += [f"labels {', '.join(map(str, selector['labels']))}"] if selector.get("labels") else []
    return f"the best by {selector.get('metric') or 'accuracy'} with {' and '.join(wanted)}" if wanted else "-"


def _content(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"sha256 {text(facts.get('digest'))}"
    if facts.get("size"):
        yield size(facts["size"])
    if facts.get("since"):
        yield f"there since {facts['since']}"


def _shape(extents: list[int]) -> str:
    """Return a shape as people write it, open axes as a question mark."""
    return " x ".join("?" if extent < 0 else str(extent) for extent in extents) or "scalar"
