"""A broker whose retained messages outlive it."""

from __future__ import annotations

from services.broker import MosquittoProcess


class BrokerWithDisk(MosquittoProcess):
    """Mosquitto whose retained messages outlive it, as those of most brokers."""

    def _configuration(self, port: int) -> list[str]:
        disk = ["persistence true", f"persistence_location {self._folder}/", "autosave_on_changes true"]
        return [*super()._configuration(port), *disk, "autosave_interval 1"]
