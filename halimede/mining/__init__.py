"""Hard example mining: selects samples that the small model should not answer alone.

An algorithm receives the small model's prediction, or the sample itself if a service mines before inference. It uses
neither bus nor model. An error in an algorithm makes its sample hard, and never prevents an answer.
"""

from halimede.mining.miner import (
    ByHardness,
    Graded,
    Miner,
    MiningError,
    Verdict,
    hardness_of,
    is_graded,
    is_ours,
    judge,
)
from halimede.mining.pre_inference import PreInferenceMiner, check_mode, judge_sample
from halimede.mining.registry import canonical, create, names, parameters_at, register

__all__ = [
    "ByHardness",
    "Graded",
    "Miner",
    "MiningError",
    "PreInferenceMiner",
    "Verdict",
    "canonical",
    "check_mode",
    "create",
    "hardness_of",
    "is_graded",
    "is_ours",
    "judge",
    "judge_sample",
    "names",
    "parameters_at",
    "register",
]
