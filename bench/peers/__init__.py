"""Ways to send a sample and get a small answer: one file a way, each with a ``server`` and a ``client``.

``python -m bench.peers <way> server|client`` is one of the two processes; ``bench.offload`` starts them. What a way has
to do, and how its rounds are timed, is in ``peer.py``.
"""

from __future__ import annotations

#: in the order of the table: the floors, what others use, and ours
WAYS = (
    "tcp_blocking",
    "tcp",
    "libmosquitto",
    "paho",
    "aiomqtt",
    "grpc_aio",
    "aiohttp",
    "sedna_http",
    "mlserver_grpc",
    "grpc_aio_model",
    "aiohttp_model",
    "halimede_paho",
    "halimede",
)
#: these are reached through a broker, the others by a port of their own
OVER_BROKER = {"libmosquitto", "paho", "aiomqtt", "halimede_paho", "halimede"}
#: height, width, channels of a sample by its bytes
SHAPES = {256: (16, 16, 1), 60_000: (100, 200, 3), 150_528: (224, 224, 3), 921_600: (480, 640, 3)}
