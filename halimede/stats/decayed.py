"""A line fitted to recent points: least squares with exponential forgetting (Haykin, "Adaptive Filter Theory")."""

from __future__ import annotations


class DecayedLine:
    """Weighted sums over points (x, y). Each new point multiplies the weights of earlier ones by ``decay`` (0..1)."""

    __slots__ = ("_decay", "_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        """Add a point with weight 1."""
        decay = self._decay
        self._weight = self._weight * decay + 1
        self._x = self._x * decay + x
        self._y = self._y * decay + y
        self._xx = self._xx * decay + x * x
        self._xy = self._xy * decay + x * y

    def fade(self, factor: float) -> None:
        """Multiply the weights of all points so far by ``factor`` (0..1): their part of the next line is smaller."""
        self._weight *= factor
        self._x *= factor
        self._y *= factor
        self._xx *= factor
        self._xy *= factor

    def fit(self) -> tuple[float, float, float, float | None]:
        """Return the mean of x, the mean of y, the variance of x, and the line's slope.

        The slope is None if all points have the same x. Without a point the numbers are 0.
        """
        weight = self._weight
        if not weight:
            return 0.0, 0.0, 0.0, None
        x, y = self._x / weight, self._y / weight
        variance = self._xx / weight - x * x
        return x, y, variance, (self._xy / weight - x * y) / variance if variance > 0 else None
