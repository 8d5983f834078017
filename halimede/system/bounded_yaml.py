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
#: levels of brackets and indentation together
MAX_DEPTH = 100
#: fields that the merges in all documents of one reader may copy
MAX_MERGED = 100_000


class BoundedScanner(Scanner):
    """ruamel's scanner, which refuses text nested more than MAX_DEPTH levels deep. ruamel calls its methods."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 (ruamel's own name)
        """Begin a list or map in brackets. Raises MarkedYAMLError if it is nested too deeply."""
        super().fetch_flow_collection_start(TokenClass, to_push)
        self._check_depth()

    def add_indent(self, column: int) -> bool:
        """Begin a block if ``column`` is deeper than the present one; return whether it is.

        Raises MarkedYAMLError if the block is nested too deeply.
        """
        is_deeper = super().add_indent(column)
        self._check_depth()
        return is_deeper

    def _check_depth(self) -> None:
        """Raise MarkedYAMLError if more than MAX_DEPTH blocks and brackets are open."""
        if len(self.flow_context) + len(self.indents) > MAX_DEPTH:
            problem = f"it is nested more than {MAX_DEPTH} levels deep: flatten it"
            raise MarkedYAMLError(problem=problem, problem_mark=self.reader.get_mark())


class BoundedConstructor(SafeConstructor):
    """ruamel's constructor, whose only errors are ruamel's. ruamel calls its methods.

    Merges (``<<``) copy at most MAX_MERGED fields.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._merged = self._nesting = 0

    def flatten_mapping(self, node: Any) -> None:
        """Replace the merges in a mapping by the fields that they stand for.

        Raises MarkedYAMLError if the merges so far have copied too many fields.
        """
        self._nesting += 1
        super().flatten_mapping(node)
        self._nesting -= 1
        if self._nesting:  # the mapping is merged into another one: empty ones cost time, too
            self._merged += 1 + len(node.value)
        if self._merged > MAX_MERGED:
            problem = f"its merges (<<) copy more than {MAX_MERGED} fields: write them out, or merge fewer"
            raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark)

    def construct_non_recursive_object(self, node: Any, tag: str | None = None) -> Any:
        """Return the value of a node. Raises MarkedYAMLError for a scalar that does not fit its type: ``!!bool x``."""
        try:
            return super().construct_non_recursive_object(node, tag)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            kind = str(node.tag).rpartition(":")[2]
            problem = f"{str(node.value)[:100]!r} is no {kind}: correct it, or quote it as a text"
            raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error


def yaml_problem(error: MarkedYAMLError) -> tuple[int | None, str]:
    """Return the number of the line with an error, from 1 (None: unknown), and the problem in one line."""
    position = error.problem_mark or error.context_mark
    problem = str(error.problem or error.context or "cannot be read").splitlines()[0]
    return position.line + 1 if position else None, problem


def decode_text(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 that begins with its byte order mark. Raises UnicodeDecodeError.

    Byte order marks are removed at the beginning of each line, because each of several joined files may have one.
    """
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return _order_mark.sub("", data.decode("utf-16" if is_utf16 else "utf-8"))


def bounded_yaml() -> YAML:
    """Return a new reader. Its ``load`` and ``load_all`` return maps, lists and scalars.

    They raise ruamel's YAMLError for text that is not YAML, or beyond the bounds, and for a scalar that does not fit
    its type, such as the date 2024-13-45.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner, yaml.Constructor = BoundedScanner, BoundedConstructor
    return yaml
