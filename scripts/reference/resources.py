"""A page for each kind with all fields of its spec, and pages for what all kinds share: status and pod template."""

from __future__ import annotations

from collections.abc import Iterator

from halimede.api import Kind, kinds
from halimede.api.base import SEDNA
from halimede.api.crd.definition import structure, text
from halimede.api.crd.fields import ResourceField, resource
from halimede.api.podtemplate import Autoscaler, PodTemplate
from scripts.reference.markdown import code, document, prose, table

SOURCE = "the types of halimede/api"
COLUMNS = ("field", "type", "default", "limits", "meaning")
POD_PAGE = "pod-template"
SHARED = {PodTemplate: "pod template", Autoscaler: "autoscaler"}


def pages() -> dict[str, str]:
    """Return the pages of all kinds, their index, and the pages of the shared parts."""
    groups: dict[type, list[Kind]] = {}
    for kind in sorted(kinds(), key=lambda kind: kind.api_version != SEDNA):
        groups.setdefault(kind.spec, []).append(kind)
    made = {_name(found): _page(found) for found in groups.values()}
    made["resources"] = _index(list(groups.values()))
    made["status"] = document(
        "Status of a resource",
        "the types of halimede/messages",
        "Only GM writes the status. All kinds have the same fields, and each uses those that apply to it. "
        "[It does not work](../troubleshooting.md#by-reason) lists the phases and reasons.",
        _tables(resource(kinds()[0]).fields()[-1], stop=False),
    )
    parts = [
        f"## {name.capitalize()}\n\n{prose(text(shape))}\n\n" + _tables(ResourceField("", structure(shape)), stop=False)
        for shape, name in SHARED.items()
    ]
    about = (
        "Each worker has a `template`, the pod that runs it. Without Kubernetes the local controller uses the fields "
        "that a process can have: command, arguments, environment, working folder, node and resources. A field that is "
        "not listed here is passed on to Kubernetes."
    )
    made[POD_PAGE] = document("Pod template and autoscaler", SOURCE, about, *parts)
    return made


def _name(found: list[Kind]) -> str:
    first = found[0]
    group = first.api_version.partition(".")[0]
    return first.kind.lower() + ("" if group == "sedna" else f"-{group}")


def _index(groups: list[list[Kind]]) -> str:
    rows = [
        [f"[{found[0].kind}]({_name(found)}.md)", ", ".join(code(k.api_version) for k in found),
         ", ".join(map(code, found[0].short_names)), prose(text(found[0].spec))]
        for found in groups
    ]  # fmt: skip
    return document(
        "Resources",
        SOURCE,
        "`halimede explain KIND.FIELD` shows the same fields in a terminal, such as `halimede explain ji.spec`. "
        "Unknown fields are errors. A field without a default is absent unless you set it.",
        table(["kind", "apiVersion", "short names", "meaning"], rows),
        "All kinds share the fields of the [status](status.md), and services those of the "
        f"[pod template]({POD_PAGE}.md).",
    )


def _page(found: list[Kind]) -> str:
    kind = found[0]
    versions = " or ".join(code(each.api_version) for each in found)
    spec = next(field for field in resource(kind).fields() if field.path == "spec")
    short = f" Short names: {', '.join(map(code, kind.short_names))}." if kind.short_names else ""
    name = f" Its name has at most {kind.name_limit} characters." if kind.name_limit else ""
    title = kind.kind if _name(found) == kind.kind.lower() else f"{kind.kind} of {kind.api_version}"
    rules = [
        f"- {code(field.path)}: {prose(rule)}" for field in (spec, *_walk(spec, stop=True)) for rule in field.rules
    ]
    return document(
        title,
        SOURCE,
        f"{prose(text(kind.spec))} `apiVersion` is {versions}.{short}{name}",
        "## Fields of spec",
        _tables(spec, stop=True),
        *(["## Rules between fields", "\n".join(rules)] if rules else []),
        "## See also\n\n- [status](status.md) and [its reasons](../troubleshooting.md#by-reason)\n"
        f"- [pod template]({POD_PAGE}.md)\n- [resources](resources.md)",
    )


def _walk(field: ResourceField, *, stop: bool) -> Iterator[ResourceField]:
    """Yield all fields below; ``stop``: not those below a shared part, which has a page of its own."""
    for each in field.fields():
        yield each
        if not (stop and _shared(each)):
            yield from _walk(each, stop=stop)


def _shared(field: ResourceField) -> str:
    """Return the name of the shared part that a field is, if it is one."""
    properties = field.schema.get("properties")
    return next((name for shape, name in SHARED.items() if properties == structure(shape)["properties"]), "")


def _tables(field: ResourceField, *, stop: bool) -> str:
    """Return the table of a field's own fields, then a section for each of them that has fields itself."""
    parts = [table(COLUMNS, (_row(each, stop=stop) for each in field.fields()))]
    for each in field.fields():
        if each.fields() and not (stop and _shared(each)):
            parts += [f"### {each.path}", prose(each.meaning), _tables(each, stop=stop)]
    return "\n\n".join(filter(None, parts))


def _row(field: ResourceField, *, stop: bool) -> list[str]:
    shared = _shared(field) if stop else ""
    name = code(field.path.rpartition(".")[2])
    if field.fields() and not shared:
        name = f"[{name}](#{field.path.replace('.', '').lower()})"
    kind = f"[{shared}]({POD_PAGE}.md#{shared.replace(' ', '-')})" if shared else prose(field.type)
    default = "required" if field.default == "required" else code(field.default)
    return [name, kind, default, _limits(field), prose(field.meaning)]


def _limits(field: ResourceField) -> str:
    """Return the limits; patterns are code, the long one of names by its name."""
    shown = field.limits
    if "pattern " not in shown:
        return prose(shown)
    before, _, pattern = shown.partition("pattern ")
    named = r"(\.[a-z0-9]" in pattern
    return " ".join(filter(None, [prose(before), "a name by RFC 1123" if named else f"pattern {code(pattern)}"]))
