"""Packages of npm that tests run, installed once below ``build/npm``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import run_program

ROOT = Path(__file__).parents[1]


def npm_package(name: str) -> Path:
    """Return the folder ``node_modules`` with a package (``name@version``); skip the test where it cannot be had."""
    missing = [program for program in ("node", "npm") if not shutil.which(program)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} missing: apt install nodejs npm")
    folder = ROOT / "build" / "npm" / name
    complete = folder / "node_modules" / ".package-lock.json"  # npm writes it when all packages are there
    if not complete.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--omit=optional")
        try:
            done = run_program("npm", "install", "--prefix", folder, *options, name, timeout_s=120)
        except subprocess.TimeoutExpired as late:
            pytest.skip(f"npm could not install {name} within {late.timeout:g} s")
        if done.returncode:
            pytest.skip(f"npm could not install {name}: {done.stderr.strip()[-200:]}")
    return complete.parent
