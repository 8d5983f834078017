"""An algorithm in somebody else's wheel: installed beside us, it is used by its name, and we import it from nowhere."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

from tests.programs import run_python

ROOT = Path(__file__).parents[3]

SOURCE = '''
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from halimede.mining import ByHardness, MiningError, register
from halimede.api.mining import Ratio


@register("Backlight")
@dataclass(frozen=True)
class Backlight(ByHardness):
    """Hard from a share of white pixels."""

    cut: Ratio = 0.5
    white: Annotated[int, Meta(ge=0, le=255, description="a whole number from 0 to 255")] = 250

    def hardness(self, prediction):
        if prediction.score is None:
            raise MiningError("no score")
        return 1 - prediction.score

    def foresee(self, image):
        return bool((image >= self.white).mean() >= self.cut)
'''

USE = """
import numpy as np
from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining import create, hardness_of, judge, judge_sample, names

assert "Backlight" in names(), names()
miner = create("backlight", {"cut": "0.25", "white": "200"}, mode="mining-then-inference")
assert type(miner).__module__ == "their_mining.backlight"
assert judge(miner, Prediction(score=0.75)).hard and not judge(miner, Prediction(score=0.8)).hard
assert judge(miner, Prediction()).error == "no score"
assert np.isnan(hardness_of(miner, [Prediction(), Prediction(score=1.0)])).tolist() == [True, False]
assert judge_sample(miner, np.full((2, 2), 201)).hard and not judge_sample(miner, np.zeros((2, 2))).hard
for parameters in ({"white": "256"}, {"black": "1"}):
    try:
        create("Backlight", parameters)
    except InvalidFieldError as error:
        print(error.field.rpartition(".")[2], error.fix)
"""


def build(folder: Path) -> Path:
    """Build a wheel as the specification has it (binary distribution format): a zip file with its metadata."""
    info = "their_mining-1.0.dist-info"
    files = {
        "their_mining/__init__.py": "",
        "their_mining/backlight.py": SOURCE,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: their-mining\nVersion: 1.0\nRequires-Dist: halimede\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[halimede.mining]\nBacklight = their_mining.backlight\n",
    }
    record = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    wheel = folder / "their_mining-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def test_an_installed_wheel_brings_an_algorithm_of_its_own(tmp_path: Path) -> None:
    site = tmp_path / "site"
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    run_python("-m", "pip", "install", *options, "--target", site, build(tmp_path), check=True)
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    used = run_python("-c", USE, cwd=tmp_path, env=environment)
    assert used.returncode == 0, used.stderr
    assert used.stdout.splitlines() == ["white give a whole number from 0 to 255", "black use one of cut, white"]
