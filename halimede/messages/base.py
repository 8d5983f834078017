"""Field types and the base of all bodies."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from msgspec import Meta, Struct

from halimede.names import LABEL_PATTERN, MAX_LABEL, MAX_NAME, NAME_PATTERN

Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME)]
Label = Annotated[str, Meta(pattern=LABEL_PATTERN, max_length=MAX_LABEL)]
Short = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
#: a time as RFC 3339 writes it; empty: none. The API server takes no empty one: there it is left out
Time = Annotated[str, Meta(max_length=256, extra={"crd": {"format": "date-time"}})]
#: as far as 64-bit integers go: SQLite's, and those of most readers
NonNegative = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: any number but NaN and the infinities, which pass through msgpack
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Millis = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Uid = Annotated[str, Meta(min_length=1, max_length=64)]

#: A custom resource as the API server gives it; its schema is the CRD's.
ResourceBody = dict[str, Any]


class Message(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Base of all bodies."""
