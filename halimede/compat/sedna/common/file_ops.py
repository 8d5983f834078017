"""Sedna's helpers for files and folders, which never delete more than a script can mean, and never open a pickle.

Downloads are not theirs here: models and data sets come as Models and Datasets, through the one fetcher that checks
where they are from and what they are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from halimede.compat.sedna.unsupported import NotThereError
from halimede.errors import InvalidFieldError

__all__ = ("FileOps",)

LOCAL = "file://"
#: parts of a path, the root among them, that are not enough to delete what is there: /tmp itself is not a script's
LEAST_DEPTH = 2
PICKLE = "halimede reads and writes no pickles, for opening one runs what is in it: use numpy.save or JSON"
FETCH = "name it in the service as a Model or a Dataset, which are downloaded and checked before the script runs"


class FileOps:
    """Files and folders of a script."""

    @classmethod
    def join_path(cls, *args: str) -> str:
        """Join parts; none of the later ones begins anew, even with a slash."""
        first, *rest = map(str, args)
        return os.path.join(first, *(part.lstrip(os.path.sep) for part in rest))  # noqa: PTH118  # may be an address

    @classmethod
    def make_dir(cls, *args: str) -> None:
        """Make a folder, and those that it is in."""
        Path(cls.join_path(*args)).mkdir(parents=True, exist_ok=True)

    @classmethod
    def make_base_dir(cls, *args: str) -> None:
        """Make the folder that a file is in."""
        Path(cls.join_path(*args)).parent.mkdir(parents=True, exist_ok=True)

    @classmethod
    def clean_folder(cls, target: str | Iterable[str | None], clean: bool = True) -> Any:  # noqa: FBT001, FBT002
        """Make folders, and empty those that are there if ``clean``; return ``target``.

        Nothing is followed that is a link, and nothing empty or None is meant. Raises InvalidFieldError for a folder
        whose content cannot be a script's to delete: one that the script runs in, a home, or one right below the root.
        """
        for name in [target] if isinstance(target, str) else target:
            if not name:
                continue
            path = Path(name)
            if clean and path.is_dir():
                for entry in _to_be_emptied(path).iterdir():
                    _remove(entry)
            elif clean and path.is_file():
                path.unlink()
            (path.parent if path.is_file() else path).mkdir(parents=True, exist_ok=True)
        return target

    @classmethod
    def exists(cls, folder: str | Path) -> bool:
        """Whether there is a file or folder."""
        return Path(folder).exists()

    @classmethod
    def is_local(cls, src: str) -> bool:
        """Whether something is on this machine."""
        return src.startswith(LOCAL) or cls.exists(src)

    @classmethod
    def remove_path_prefix(cls, org_str: str, prefix: str) -> str:
        """Return a path without its beginning, if it is that."""
        return org_str.removeprefix(prefix.removesuffix(os.path.sep))

    @classmethod
    def get_file_hash(cls, filepath: str) -> str:
        """Return the MD5 of a file, to tell versions apart; empty where there is none."""
        path = Path(filepath or "")
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

    @classmethod
    def copy_folder(cls, src: str, dst: str | None) -> None:
        """Copy a folder into another; links stay links. What is not there, or nowhere to go, is left."""
        if not dst or not Path(src).is_dir() or (Path(dst).exists() and Path(src).samefile(dst)):
            return
        shutil.copytree(src, dst, symlinks=True, dirs_exist_ok=True)

    @classmethod
    def copy_file(cls, src: str, dst: str | None) -> None:
        """Copy a file to a path or into a folder, or a folder into another."""
        if not dst:
            return
        source, aim = Path(src.removeprefix(LOCAL)), Path(dst)
        if source.is_dir():
            cls.copy_folder(str(source), dst)
        elif source.is_file() and not (aim.exists() and source.samefile(aim)):
            aim.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, aim)

    @classmethod
    def download(cls, src: str, dst: str | None, unzip: bool = False) -> str:  # noqa: FBT001, FBT002
        """Copy what is on this machine. Raises NotThereError for all else."""
        if not cls.is_local(src) or dst is None or unzip:
            raise NotThereError(f"FileOps.download: {FETCH}")
        cls.copy_file(src, dst)
        return dst

    @classmethod
    def upload(cls, src: str, dst: str | None, tar: bool = False) -> str:  # noqa: FBT001, FBT002
        """Copy to another place on this machine. Raises NotThereError for all else."""
        if not cls.is_local(src) or not dst or "://" in dst or tar:
            raise NotThereError("FileOps.upload: copy to a folder of this machine, or publish what others shall have")
        cls.copy_file(src, dst)
        return dst

    @classmethod
    def dump_pickle(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise NotThereError."""
        raise NotThereError(f"FileOps.dump_pickle: {PICKLE}")

    @classmethod
    def load_pickle(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise NotThereError."""
        raise NotThereError(f"FileOps.load_pickle: {PICKLE}")


def _to_be_emptied(path: Path) -> Path:
    """Return the folder itself if its content may go. Raises InvalidFieldError."""
    real = path.resolve()
    home, here = Path.home().resolve(), Path.cwd().resolve()
    if len(real.parts) <= LEAST_DEPTH or real in {home, *home.parents, here, *here.parents}:
        raise InvalidFieldError("clean_folder", str(path), "name a folder of the script's own, deeper in the tree")
    return real


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
