"""The hardness of many samples at once: what calibration and evaluation draw their curves by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from halimede.messages import Prediction
from halimede.mining.miner import Miner, judge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def hardness_of(miner: Miner, predictions: Sequence[Prediction] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the hardness of each prediction, NaN where the miner cannot tell: such a sample goes up whatever the cut.

    ``predictions`` may be an array ``[samples, classes]`` of class probabilities. Of a miner that compares no numbers
    hard is 1 and easy 0. Every number is the one that ``judge`` gives, to the last bit; a miner that draws lots is
    asked once for each sample, in order.
    """
    import numpy as np  # noqa: PLC0415 (the algorithms do without it)

    if isinstance(predictions, np.ndarray):
        if predictions.ndim != 2:
            raise ValueError(f"predictions are {list(predictions.shape)}, which is no [samples, classes]")
        predictions = [Prediction(probabilities=row) for row in predictions.tolist()]
    verdicts = [judge(miner, prediction) for prediction in predictions]
    numbers = [float(verdict.hard) if verdict.hardness is None else verdict.hardness for verdict in verdicts]
    broken = [verdict.error is not None for verdict in verdicts]
    return np.where(broken, np.nan, np.array(numbers, np.float64))
