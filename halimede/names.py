"""Checks names that become part of a topic, a path or a client id, and has the key of a resource.

The rules are those of Kubernetes (RFC 1123 labels and subdomains), so that Kubernetes accepts the same names. They
exclude ``/``, ``+``, ``#``, NUL, ``..`` and anything outside ASCII.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from halimede.errors import InvalidFieldError

#: regular expressions of a label and of a name (a subdomain: labels of any length with dots between). The lookahead at
#: the end is there because ``$`` alone also matches before a final newline
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$(?!\n)"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$(?!\n)"
#: most characters of a label and of a name, and most bytes of a file's name
MAX_LABEL = 63
MAX_NAME = 253
MAX_FILE_NAME = 255
#: what to do about an invalid label or name: the end of an error's text
LABEL_FIX = f"use 1 to {MAX_LABEL} lower-case letters, digits and '-', with a letter or digit at both ends"
NAME_FIX = f"use 1 to {MAX_NAME} lower-case letters, digits, '-' and single '.', with a letter or digit at both ends"
#: the key in msgspec's ``Meta(pattern=..., extra={FIX: "use ..."})`` of what to do about a value that does not match
FIX = "fix"

_label = re.compile(LABEL_PATTERN, re.ASCII)
_name = re.compile(NAME_PATTERN, re.ASCII)


def check_label(field: str, value: object) -> str:
    """Return ``value`` if it is an RFC 1123 label (namespaces, cameras); raise InvalidFieldError otherwise."""
    if isinstance(value, str) and len(value) <= MAX_LABEL and _label.fullmatch(value):
        return value
    raise InvalidFieldError(field, value, LABEL_FIX)


def check_name(field: str, value: object) -> str:
    """Return ``value`` if it is an RFC 1123 subdomain (nodes, resources, workers), else raise InvalidFieldError."""
    if isinstance(value, str) and len(value) <= MAX_NAME and _name.fullmatch(value):
        return value
    raise InvalidFieldError(field, value, NAME_FIX)


def file_name(path: str) -> str:
    r"""Return the last part of a path, after ``/`` or ``\``, cut to 255 bytes of UTF-8; empty for ``.`` and ``..``.

    Characters that UTF-8 cannot encode become question marks.
    """
    name = path.replace("\\", "/").rpartition("/")[2].encode(errors="replace")
    return "" if name in {b".", b".."} else name[:MAX_FILE_NAME].decode(errors="ignore")


class Key(NamedTuple):
    """The key by which GM looks up a resource: ``plural`` is its kind in the plural, such as ``models``.

    A resource that is deleted and created again has the same key. It is a tuple because hashing a dataclass takes three
    times as long.
    """

    plural: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.plural}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Key:
        """Return the key of a text ``<namespace>/<plural>/<name>``; raise InvalidFieldError for any other text."""
        parts = text.split("/")
        if len(parts) != 3:
            raise InvalidFieldError("key", text, "write <namespace>/<plural>/<name>")
        namespace, plural, name = parts
        return cls(check_label("plural", plural), check_label("namespace", namespace), check_name("name", name))
