"""The applications: global manager, local controller, worker, and all of them on one machine."""
