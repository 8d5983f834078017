"""A broker of any kind as a child process, in place of the embedded Mosquitto."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from halimede.access.mosquitto import ENVIRONMENT
from halimede.access.site import Site
from halimede.system.child_process import spawn
from services.broker import HOST, MosquittoProcess
from tests.brokers.installation import KINDS, Installation, configuration_of

#: seconds until a broker accepts connections: EMQX on a busy machine
START_S = 300.0


class BrokerProcess(MosquittoProcess):
    """A broker on loopback that is started, killed and started again on its port; its data are what it keeps itself.

    ``configuration``: writes the text of its configuration file for ``(folder, port)``.

    Attributes:
        ready_at: when it last began to accept connections, by the monotonic clock.

    """

    def __init__(
        self, installation: Installation, folder: Path, configuration: Callable[[Path, int], str], *, port: int,
        secure: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(folder, port=port, secure=secure)
        self.port = port
        self.ready_at = 0.0
        self._installation = installation
        self._text_of = configuration

    def _can_use(self, port: int) -> bool:  # a test's port is nobody else's
        # after its kill, the port of a broker with SO_REUSEPORT (FlashMQ) is open to such a broker alone for a minute
        return True

    def _spawn(self, binary: str, port: int) -> None:
        file = self._folder / f"{self._installation.kind}.conf"
        file.write_text(self._text_of(self._folder, port))
        self._process = spawn([*self._installation.command, str(file)], self.log, ENVIRONMENT)

    async def _came_up(self, port: int) -> str:
        process = self._process
        assert process is not None
        try:
            async with asyncio.timeout(START_S):
                while process.poll() is None:
                    try:
                        _, writer = await asyncio.open_connection(HOST, port)
                    except OSError:
                        await asyncio.sleep(0.02)
                        continue
                    writer.close()
                    self.ready_at = time.monotonic()
                    return ""
        except TimeoutError:
            return f"no answer on port {port} within {START_S:g} s"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:]) or f"exit code {process.returncode}"


def without_users(installation: Installation, folder: Path, port: int) -> BrokerProcess:
    """Return a broker on which everybody may do everything."""
    return BrokerProcess(installation, folder, KINDS[installation.kind].open, port=port)


def of_site(
    installation: Installation, site: Site, site_folder: Path, folder: Path, *, member: int = 0
) -> BrokerProcess:
    """Return the broker of a site; ``member`` as in ``configuration_of``."""

    def text(run: Path, _: int) -> str:
        return configuration_of(installation, site, site_folder, run, member)

    return BrokerProcess(installation, folder, text, port=site.port, secure=not site.passwords)
