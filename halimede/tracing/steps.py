"""The steps that a frame takes, and what is known of each: the vocabulary of traces.

A step is written down as its values alone, in the order given here: names are put to them when somebody looks.
"""

from __future__ import annotations

Value = str | int | float | bool
#: name, and the names of what is known. One named ``a.b`` is a part of the step ``a``. A plain tuple of plain values:
#: the garbage collector does not look at those, and a worker keeps thousands of them
Kind = tuple[str, tuple[str, ...]]

# --- at a camera that is ours --------------------------------------------------------------------------------------

#: published, until the broker had it
PUBLISH: Kind = ("publish", ("camera", "heard"))

# --- at the edge --------------------------------------------------------------------------------------------------

#: offered until there was room
RECEIVE: Kind = ("receive", ("camera", "bytes", "encoding"))
#: made the model's input, waiting for the decoder included
DECODE: Kind = ("decode", ())
#: waited for the model
WAIT: Kind = ("wait", ())
MODEL: Kind = ("model", ("batch",))
MINE: Kind = ("mine", ("hard", "score"))
#: asked the cloud, with its parts: each wait for a place or a credit, each attempt
OFFLOAD: Kind = ("offload", ("by", "degraded", "sent"))
WINDOW: Kind = ("offload.window", ("lacks",))
REQUEST: Kind = ("offload.request", ("to", "attempt", "answered"))
#: handed to the outbox until the broker had it
RESULT: Kind = ("result", ("by", "hard", "label"))

# --- in the cloud -------------------------------------------------------------------------------------------------

#: looked at and put into the queue
ARRIVE: Kind = ("receive", ("sender", "bytes", "encoding"))
#: waited for its batch
QUEUE: Kind = ("queue", ())
COMPUTE: Kind = ("compute", ("batch",))
#: handed to the bus until the broker had it
REPLY: Kind = ("reply", ("error", "heard"))
