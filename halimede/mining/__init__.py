"""Hard example mining: which samples the small model should not answer alone. One file an algorithm.

Algorithms see predictions only. They know neither bus nor model, and what goes wrong in one makes its sample hard: it
never stops an answer.
"""

from halimede.mining.miner import Graded, Miner, MiningError, Verdict, judge
from halimede.mining.registry import create, names, register

__all__ = ["Graded", "Miner", "MiningError", "Verdict", "create", "judge", "names", "register"]
