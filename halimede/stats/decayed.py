"""A line fitted to recent points: least squares with exponential forgetting (Haykin, "Adaptive Filter Theory")."""

from __future__ import annotations


class DecayedLine:
    """Weighted sums over points (x, y). Each new point multiplies the weights of earlier ones by ``keeps``. Pure."""

    __slots__ = ("_keeps", "_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self, keeps: float) -> None:
        self._keeps = keeps
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        keeps = self._keeps
        self._weight = self._weight * keeps + 1
        self._x = self._x * keeps + x
        self._y = self._y * keeps + y
        self._xx = self._xx * keeps + x * x
        self._xy = self._xy * keeps + x * y

    def fade(self, factor: float) -> None:
        """Multiply the weights of all points so far by ``factor``."""
        self._weight *= factor
        self._x *= factor
        self._y *= factor
        self._xx *= factor
        self._xy *= factor

    def fit(self) -> tuple[float, float, float, float | None]:
        """Return the means of x and y, the variance of x, and the slope; None: there is only one x, or no point."""
        weight = self._weight
        if not weight:
            return 0.0, 0.0, 0.0, None
        x, y = self._x / weight, self._y / weight
        variance = self._xx / weight - x * x
        return x, y, variance, (self._xy / weight - x * y) / variance if variance > 0 else None
