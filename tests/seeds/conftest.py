"""The API server for the facts of Kubernetes mode: the double, or a real one (``tests.kubernetes.apiserver``)."""

from tests.kubernetes.conftest import real_server  # noqa: F401 - a fixture
