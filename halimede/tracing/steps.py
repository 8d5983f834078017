"""The kinds of steps in the trace of a frame, each with the names of its values.

A worker records a step only as its values, in the order defined here: the names are added when the trace is read.
"""

from __future__ import annotations

#: one value of a step
Value = str | int | float | bool
#: the step's name and the names of its values; a step ``a.b`` is a part of the step ``a``. A tuple of plain values,
#: because the garbage collector does not scan those, and a worker keeps thousands of them
Kind = tuple[str, tuple[str, ...]]

# --- at a camera of halimede ---------------------------------------------------------------------------------------

#: from publishing a frame until the broker accepted it; ``heard``: it had a subscriber
PUBLISH: Kind = ("publish", ("camera", "heard"))

# --- at the edge --------------------------------------------------------------------------------------------------

#: from a frame's arrival until there was a free slot for it; ``file``: its name, if it came from a folder
RECEIVE: Kind = ("receive", ("camera", "bytes", "encoding", "file"))
#: decoding and pre-processing, here with the wait for the decoder, in the cloud without; the picture was decoded at
#: 1/``scale`` of its size
DECODE: Kind = ("decode", ("scale",))
#: the wait for the model
WAIT: Kind = ("wait", ())
#: the model call; ``batch``: its number of samples
MODEL: Kind = ("model", ("batch",))
#: the decision whether the sample is hard; ``score``: of the model's answer, 0 without one
MINE: Kind = ("mine", ("hard", "score"))
#: recognition in the boxes of the detector: the crops, the hard ones, and those that the cloud answered
CROPS: Kind = ("crops", ("count", "hard", "cloud"))
#: the request to the next tier; ``by``: who answered, ``degraded``: why the edge did, ``sent``: it was uploaded
OFFLOAD: Kind = ("offload", ("by", "degraded", "sent"))
#: encoding of ``count`` regions of the frame, for the upload, as a picture of ``bytes``
REGIONS: Kind = ("offload.regions", ("count", "bytes"))
#: a wait for what the request ``lacks``: a slot or a credit
WINDOW: Kind = ("offload.window", ("lacks",))
#: one attempt: ``to`` a worker or ``any``
REQUEST: Kind = ("offload.request", ("to", "attempt", "answered"))
#: from the hand-over of the result until the broker accepted it; ``by``: who answered
RESULT: Kind = ("result", ("by", "hard", "label"))

# --- in the cloud -------------------------------------------------------------------------------------------------

#: from a request's arrival until it was checked and queued; ``sender``: the worker that sent it
ARRIVE: Kind = ("receive", ("sender", "bytes", "encoding"))
#: the wait until its decoding began or, without decoding, its model call
QUEUE: Kind = ("queue", ())
#: the model call; ``batch``: its number of samples
COMPUTE: Kind = ("compute", ("batch",))
#: from the hand-over of the reply until the broker accepted it; ``heard``: it had a subscriber
REPLY: Kind = ("reply", ("error", "heard"))
