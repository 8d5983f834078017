"""Hard example mining: which samples the small model should not answer alone. One file an algorithm.

Algorithms see predictions, or the sample itself where a service asks for mining before inference. They know neither
bus nor model, and what goes wrong in one makes its sample hard: it never stops an answer.
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
from halimede.mining.registry import create, names, parameters_at, register

__all__ = [
    "ByHardness",
    "Graded",
    "Miner",
    "MiningError",
    "PreInferenceMiner",
    "Verdict",
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
