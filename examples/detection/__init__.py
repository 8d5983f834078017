"""Two detectors of handwritten digits in scenes, a small and a big one, with pictures that neither has learnt from."""
