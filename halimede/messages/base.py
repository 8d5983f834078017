"""Field types and the base of all bodies."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from msgspec import Meta, Struct

from halimede.names import FIX, LABEL_FIX, LABEL_PATTERN, MAX_LABEL, MAX_NAME, NAME_FIX, NAME_PATTERN

Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME, extra={FIX: NAME_FIX})]
Label = Annotated[str, Meta(pattern=LABEL_PATTERN, max_length=MAX_LABEL, extra={FIX: LABEL_FIX})]
Short = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
#: the name of a file without its folder, in at most 255 bytes of UTF-8; empty: the sample is no file
FileName = Annotated[str, Meta(max_length=255)]
#: an RFC 3339 time; empty: none. The API server refuses an empty time, so the field is omitted there
Time = Annotated[str, Meta(max_length=256, extra={"crd": {"format": "date-time"}})]
#: limit of 64-bit integers: SQLite's, and those of most readers
NonNegative = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: any number but NaN and the infinities, which msgpack would accept
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Millis = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Uid = Annotated[str, Meta(min_length=1, max_length=64)]

#: a custom resource in the API server's form; the CRD has its schema
ResourceBody = dict[str, Any]


class Message(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Base of all bodies."""
