"""Publishes a picture as camera `cam0` with paho-mqtt: python camera.py mqtt://user:password@host:1883 picture.png."""

import sys
import threading
from pathlib import Path
from urllib.parse import urlparse

import paho.mqtt.client as mqtt


def main(broker: str, picture: str, topic: str = "default/sedna/frames/cam0") -> None:
    """Publish the file as it is, and wait for the broker's acknowledgement (QoS 1)."""
    url, connected = urlparse(broker), threading.Event()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.username_pw_set(url.username, url.password)
    client.on_connect = lambda _client, _data, _flags, code, _properties: print(f"connected: {code}") or connected.set()
    client.connect(url.hostname or "127.0.0.1", url.port or 1883)
    client.loop_start()
    if not connected.wait(10):
        sys.exit("the broker did not answer within 10 s")
    sent = client.publish(topic, Path(picture).read_bytes(), qos=1)
    sent.wait_for_publish(10)
    client.disconnect()
    client.loop_stop()
    print(f"published {picture} on {topic}" if sent.is_published() else "the broker did not acknowledge the picture")


if __name__ == "__main__":
    main(*sys.argv[1:])
