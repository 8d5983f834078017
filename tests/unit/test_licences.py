"""The licence of halimede, and the check of those of its packages: scripts/licences.py finds what is not allowed."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
#: of https://www.apache.org/licenses/LICENSE-2.0.txt
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("licences", ROOT / "scripts" / "licences.py")
    assert spec
    assert spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_licence_is_the_standard_text() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE


@pytest.mark.parametrize(
    "expression", ["MIT", "Apache-2.0 AND MIT", "EPL-2.0 OR BSD-3-Clause", "MIT AND (GPL-3.0-only OR ISC)"]
)
def test_a_licence_is_allowed_if_allowed_ones_meet_it(script: ModuleType, expression: str) -> None:
    assert script.allows(script.PERMISSIVE, expression)


@pytest.mark.parametrize(
    "expression", ["", "GPL-3.0-only", "MIT AND AGPL-3.0-only", "SSPL-1.0 OR GPL-2.0-only", "MIT License"]
)
def test_another_licence_is_not(script: ModuleType, expression: str) -> None:
    assert not script.allows(script.PERMISSIVE, expression)


def test_names_and_classifiers_become_identifiers(script: ModuleType) -> None:
    assert script.spdx("Apache Software License; MIT License") == "Apache-2.0 AND MIT"
    assert script.spdx("DFSG approved; MIT License") == "MIT"
    assert script.spdx("BSD-3-Clause AND Zlib") == "BSD-3-Clause AND Zlib"


def test_every_pinned_package_has_a_known_licence(script: ModuleType) -> None:
    rows = script.listed()
    assert rows.keys() == script.pinned()
    assert all(row.licence for row in rows.values())


def test_copyleft_is_for_tools_alone(script: ModuleType) -> None:
    assert {row.section for row in script.listed().values() if "GPL" in row.licence} == {script.DEVELOPMENT}


@pytest.mark.parametrize(
    ("row", "here", "found"),
    [
        (("MIT", "EXTRAS"), {"msgspec": "BSD-3-Clause"}, "msgspec is 'BSD-3-Clause' below"),
        (("BSD-3-Clause", "DEVELOPMENT"), {"msgspec": "BSD-3-Clause"}, "below 'With halimede and its extras' now"),
        (("", "EXTRAS"), {}, "msgspec has no known licence"),
        (("GPL-3.0-only", "EXTRAS"), {}, "GPL-3.0-only, which is not allowed there"),
        (("SSPL-1.0", "DEVELOPMENT"), {}, "SSPL-1.0, which is not allowed there"),
        (None, {}, "msgspec has no row"),
    ],
)
def test_what_is_wrong_with_a_row_is_found(
    script: ModuleType, row: tuple[str, str] | None, here: dict[str, str], found: str
) -> None:
    rows = {"msgspec": script.Row(row[0], getattr(script, row[1]))} if row else {}
    (problem,) = script.problems({"msgspec"}, rows, here)
    assert found in problem


def test_a_row_of_a_package_that_is_no_longer_pinned_is_found(script: ModuleType) -> None:
    (problem,) = script.problems(set(), {"gone": script.Row("MIT", script.EXTRAS)}, {})
    assert "gone is not in constraints.txt" in problem


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_wheel_and_source_archive_carry_the_licence(tmp_path: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
            (tmp_path / name).chmod((ROOT / name).stat().st_mode)
    built = subprocess.run([tmp_path / "scripts" / "package.sh"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (source,) = (tmp_path / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        assert "\nLicense-Expression: Apache-2.0\n" in archive.read(metadata).decode()
    folder = metadata.removesuffix("METADATA")
    assert {f"{folder}licenses/LICENSE", f"{folder}licenses/NOTICE"} <= set(names)
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "NOTICE", "pyproject.toml", "halimede/__init__.py"} <= inside
