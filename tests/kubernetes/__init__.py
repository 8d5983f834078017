"""Tests against the Kubernetes API: a strict double by default, a real API server where there is one."""
