"""The licence of halimede, and the check of those of its packages: scripts/licences.py finds what is not allowed."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import licences
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
#: of https://www.apache.org/licenses/LICENSE-2.0.txt
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_licence_is_the_standard_text() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE


ALLOWED = ["MIT", "Apache-2.0 AND MIT", "EPL-2.0 OR BSD-3-Clause", "MIT AND (GPL-3.0-only OR ISC)"]
REFUSED = ["", "GPL-3.0-only", "MIT AND AGPL-3.0-only", "SSPL-1.0 OR GPL-2.0-only", "MIT License"]


@pytest.mark.parametrize("expression", [*ALLOWED, *REFUSED])
def test_a_licence_is_allowed_if_allowed_ones_meet_it(expression: str) -> None:
    assert licences.allows(licences.PERMISSIVE, expression) is (expression in ALLOWED)


def test_names_and_classifiers_become_identifiers() -> None:
    assert licences.spdx("Apache Software License; MIT License") == "Apache-2.0 AND MIT"
    assert licences.spdx("DFSG approved; MIT License") == "MIT"
    assert licences.spdx("BSD-3-Clause AND Zlib") == "BSD-3-Clause AND Zlib"


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
def test_what_is_wrong_with_a_row_is_found(row: tuple[str, str] | None, here: dict[str, str], found: str) -> None:
    rows = {"msgspec": licences.Row(row[0], getattr(licences, row[1]))} if row else {}
    (problem,) = licences.problems({"msgspec"}, rows, here)
    assert found in problem


def test_a_row_of_a_package_that_is_no_longer_pinned_is_found() -> None:
    (problem,) = licences.problems(set(), {"gone": licences.Row("MIT", licences.EXTRAS)}, {})
    assert "gone is not in constraints.txt" in problem


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_wheel_and_source_archive_carry_the_licence(tmp_path: Path) -> None:
    listed = run_program("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
            (tmp_path / name).chmod((ROOT / name).stat().st_mode)
    built = run_program(tmp_path / "scripts" / "package.sh", timeout_s=240)
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
