"""What this node holds, read: each body parsed once for each uid and generation, or the reason why it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from halimede.api import Resource, parse
from halimede.api.base import SEDNA
from halimede.errors import InvalidFieldError
from halimede.names import Key
from services.lc.store.database import NodeResource

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ParsedResource:
    """A held resource with its typed form, or with what is wrong with it and the reason for a condition."""

    held: NodeResource
    resource: Resource[Any] | None
    error: str = ""
    reason: str = "InvalidResource"


class ParsedResources:
    """A cache of parsed resources that follows the store."""

    def __init__(self) -> None:
        self._items: dict[Key, ParsedResource] = {}

    def read(self, held: Mapping[Key, NodeResource]) -> Mapping[Key, ParsedResource]:
        """Return the parsed form of everything that is held now."""
        self._items = {key: self._item(one) for key, one in held.items()}
        return self._items

    def _item(self, held: NodeResource) -> ParsedResource:
        known = self._items.get(held.key)
        if known and known.held is held:
            return known
        try:
            resource = parse(held.body)
        except InvalidFieldError as error:
            return ParsedResource(held, None, str(error))
        except Exception as error:  # one resource that nobody foresaw must not end the node's other work
            log.exception("reading a resource broke", key=str(held.key))
            return ParsedResource(held, None, f"reading it broke: {type(error).__name__}", "Internal")
        if resource.kind.api_version != SEDNA:
            return ParsedResource(held, None, f"apiVersion: {resource.kind.api_version} is for GM: nodes take {SEDNA}")
        return ParsedResource(held, resource)
