"""Worlds that many tests of faults begin with."""

from tests.faults.control import plane  # noqa: F401 - a fixture
from tests.requester import s  # noqa: F401 - a fixture
