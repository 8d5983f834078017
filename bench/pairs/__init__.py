"""Scripts of the models that bench.calibration_live compares, and the boxes of its faces."""
