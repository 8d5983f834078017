"""Files of a training worker that survive its process: files of tensors by their digest, and one state with digests.

The tensors are on disk before the state that names them replaces the earlier state. So after a kill at any instant the
next process finds either the old state or the new one, with all its files.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from halimede.system.files import sync_folder, write_atomic
from halimede.training.weights import digest_of
from halimede.worker.errors import WorkerError

S = TypeVar("S", bound=Struct)
#: name of the state's file
STATE = "state.json"


class CheckpointError(WorkerError):
    """A checkpoint cannot be read: training cannot continue from it."""

    def __init__(self, text: str) -> None:
        super().__init__("CheckpointUnreadable", text)


class Checkpoint(Generic[S]):
    """One state of type ``form``, and the files that it names, in a folder. All methods block."""

    def __init__(self, folder: Path, form: type[S]) -> None:
        self.folder = folder
        self._form = form

    def load(self) -> S | None:
        """Return the state; None: there is none yet. Raises CheckpointError."""
        path = self.folder / STATE
        try:
            return msgspec.json.decode(path.read_bytes(), type=self._form)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            text = f"{path} cannot be read: {error}. Remove the folder to train from the start"
            raise CheckpointError(text) from error

    def read(self, digest: str) -> bytes:
        """Return the content of a file. Raises CheckpointError if it is missing or has another digest."""
        path = self.folder / digest
        try:
            content = path.read_bytes()
        except OSError as error:
            text = f"{path} cannot be read: {error}. Remove its folder to train from the start"
            raise CheckpointError(text) from error
        if digest_of(content) != digest:
            raise CheckpointError(f"{path} has other content than its name states. Remove its folder to train again")
        return content

    def add(self, content: bytes) -> str:
        """Store a file; return its digest (SHA-256). The next ``save`` removes files that it is not given.

        Raises OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = digest_of(content)
        write_atomic(self.folder / digest, content, durable=True)
        return digest

    def save(self, state: S, files: Collection[str]) -> None:
        """Replace the state, then remove all files but ``files``, the digests that it names. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sync_folder(self.folder)
        write_atomic(self.folder / STATE, msgspec.json.encode(state), durable=True)
        sync_folder(self.folder)
        for path in self.folder.iterdir():
            if path.name not in files and path.name != STATE:
                path.unlink(missing_ok=True)
