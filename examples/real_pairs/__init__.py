"""Two demos with pairs of models that others have trained: `make demo-faces` and `make demo-text`."""
