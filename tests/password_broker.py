"""A broker that requires passwords, and the folder of a user who has a wrong one."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.broker import MosquittoProcess
from services.site import LocalSite, Security
from tests.ports import free_port


@dataclass(frozen=True)
class PasswordBroker:
    """Its port, and folders of credentials: of its operator, and of an operator and a node with another password."""

    port: int
    operator: Path
    wrong: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextlib.contextmanager
def password_broker(folder: Path) -> Iterator[PasswordBroker]:
    site = LocalSite(folder / "home", ["edge0"], Security.PASSWORDS)
    site.make()
    assert site.operator
    node = site.node("edge0")
    assert node
    wrong = shutil.copytree(node, folder / "wrong")  # a node's folder has one folder for each of its users
    shutil.copytree(site.operator, wrong, dirs_exist_ok=True)
    for password in wrong.rglob("password"):
        password.write_text("another one")
    broker = MosquittoProcess(folder / "home", port=free_port(), access=site.access)
    asyncio.run(broker.start())
    try:
        yield PasswordBroker(broker.port, site.operator, wrong)
    finally:
        asyncio.run(broker.stop())
