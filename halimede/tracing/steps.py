"""The steps of a frame, and the values of each: the vocabulary of traces.

A step is recorded only as its values, in the order defined here: names are added when it is read.
"""

from __future__ import annotations

Value = str | int | float | bool
#: name, and the names of the values. One named ``a.b`` is a part of the step ``a``. A plain tuple of plain values: the
#: garbage collector does not scan those, and a worker keeps thousands of them
Kind = tuple[str, tuple[str, ...]]

# --- at a camera of halimede ---------------------------------------------------------------------------------------

#: from publishing until the broker accepted it
PUBLISH: Kind = ("publish", ("camera", "heard"))

# --- at the edge --------------------------------------------------------------------------------------------------

#: from the offer until there was a free slot
RECEIVE: Kind = ("receive", ("camera", "bytes", "encoding", "file"))
#: until it was the model's input, waiting for the decoder included; its picture was decoded at 1/scale
DECODE: Kind = ("decode", ("scale",))
#: wait for the model
WAIT: Kind = ("wait", ())
MODEL: Kind = ("model", ("batch",))
MINE: Kind = ("mine", ("hard", "score"))
#: recognition of what the detector found: crops, hard ones among them, and those that the cloud answered
CROPS: Kind = ("crops", ("count", "hard", "cloud"))
#: request to the cloud, with its parts: each wait for a slot or a credit, each attempt
OFFLOAD: Kind = ("offload", ("by", "degraded", "sent"))
#: until the regions of the frame were a picture of so many bytes
REGIONS: Kind = ("offload.regions", ("count", "bytes"))
WINDOW: Kind = ("offload.window", ("lacks",))
REQUEST: Kind = ("offload.request", ("to", "attempt", "answered"))
#: from the outbox until the broker accepted it
RESULT: Kind = ("result", ("by", "hard", "label"))

# --- in the cloud -------------------------------------------------------------------------------------------------

#: checked and queued
ARRIVE: Kind = ("receive", ("sender", "bytes", "encoding"))
#: wait for its batch
QUEUE: Kind = ("queue", ())
COMPUTE: Kind = ("compute", ("batch",))
#: from the bus until the broker accepted it
REPLY: Kind = ("reply", ("error", "heard"))
