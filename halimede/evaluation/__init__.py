"""Measures a service's models and rules on labelled data, offline: for `halimede evaluate` and `calibrate`."""
