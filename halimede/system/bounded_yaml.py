"""Reads YAML 1.2 within bounds: a few kilobytes of hostile text must not cost seconds.

The reader of ruamel.yaml takes quadratic time for nested brackets, and copies a mapping for each merge (``<<``) of it:
both are bounded while the text is read. Aliases cost nothing here: they are references to one object.
"""

from __future__ import annotations

import codecs
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.scanner import Scanner

_order_mark = re.compile("^\ufeff", re.MULTILINE)
MAX_DEPTH = 100
#: fields that all merges of a document may copy
MAX_MERGED = 100_000


class BoundedScanner(Scanner):
    """A scanner that refuses text nested too deeply, in brackets or by indentation."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 (ruamel's own name)
        """Begin a bracket. Raises MarkedYAMLError."""
        super().fetch_flow_collection_start(TokenClass, to_push)
        self._check_depth()

    def add_indent(self, column: int) -> bool:
        """Begin a block. Raises MarkedYAMLError."""
        deeper = super().add_indent(column)
        self._check_depth()
        return deeper

    def _check_depth(self) -> None:
        if len(self.flow_context) + len(self.indents) > MAX_DEPTH:
            problem = f"it is nested more than {MAX_DEPTH} levels deep: flatten it"
            raise MarkedYAMLError(problem=problem, problem_mark=self.reader.get_mark())


class BoundedConstructor(SafeConstructor):
    """A constructor that counts the fields that merges copy."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._merged = self._nesting = 0

    def flatten_mapping(self, node: Any) -> None:
        """Replace the merges of a mapping by the fields that they stand for. Raises MarkedYAMLError."""
        self._nesting += 1
        super().flatten_mapping(node)
        self._nesting -= 1
        if self._nesting:  # the mapping is merged into another one: empty ones cost time, too
            self._merged += 1 + len(node.value)
        if self._merged > MAX_MERGED:
            problem = f"its merges (<<) copy more than {MAX_MERGED} fields: write them out, or merge fewer"
            raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def decode_text(data: bytes) -> str:
    """Return UTF-8, or UTF-16 with a byte order mark, without marks. Raises UnicodeDecodeError.

    Several files that were joined have a mark each, at the begin of a document.
    """
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return _order_mark.sub("", data.decode("utf-16" if is_utf16 else "utf-8"))


def bounded_yaml() -> YAML:
    """Return a reader of plain data."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner, yaml.Constructor = BoundedScanner, BoundedConstructor
    return yaml
