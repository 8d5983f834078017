"""Ours on the stock client: the same path as ``halimede``, with paho below the bus."""

from __future__ import annotations

import os

from bench.peers import halimede

NAME = "halimede_paho"


def server(broker: str) -> None:
    """Be the cloud worker."""
    os.environ["HALIMEDE_MQTT_CLIENT"] = "paho"
    halimede.server(broker, NAME)


def client(broker: str) -> None:
    """Be the edge worker."""
    os.environ["HALIMEDE_MQTT_CLIENT"] = "paho"
    halimede.client(broker, NAME)
