"""The base of all bodies of messages, and the types of their fields with the limits that decoding checks."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from msgspec import Meta, Struct

from halimede.names import FIX, LABEL_FIX, LABEL_PATTERN, MAX_LABEL, MAX_NAME, NAME_FIX, NAME_PATTERN

#: names as Kubernetes has them: of a resource, node or worker (subdomain); of a namespace or camera (label)
Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME, extra={FIX: NAME_FIX})]
Label = Annotated[str, Meta(pattern=LABEL_PATTERN, max_length=MAX_LABEL, extra={FIX: LABEL_FIX})]
#: text of at most 256, and of at most 4096 characters
Short = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
#: the name of a file without its folder, of at most 255 characters; ``names.file_name`` cuts it to 255 bytes of UTF-8.
#: Empty: the sample is no file
FileName = Annotated[str, Meta(max_length=255)]
#: an RFC 3339 time; empty: none. The API server refuses an empty time, so the field is omitted there
Time = Annotated[str, Meta(max_length=256, extra={"crd": {"format": "date-time"}})]
#: a whole number from 0 to the largest one of 64 bits with a sign, which SQLite and most readers accept
NonNegative = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: any number but NaN and the infinities, which msgpack would accept
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
#: milliseconds
Millis = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
#: what identifies a resource for its whole life, or another thing for as long as it exists
Uid = Annotated[str, Meta(min_length=1, max_length=64)]

#: a custom resource in the API server's form; the CRD has its schema
ResourceBody = dict[str, Any]


class Message(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Base of all bodies: fields are camelCase in a message.

    Fields that have their default are left out, except in types with ``omit_defaults=False``.
    """
