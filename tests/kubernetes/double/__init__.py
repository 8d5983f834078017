"""A strict double of the Kubernetes API over HTTP, for tests: what a real server refuses, this one refuses, too.

It keeps resource versions, uids, generations, conflicts, the status subresource, selectors, chunked lists, watches with
bookmarks and 410, owner references, schemas (pruning, defaults, errors that name the field), RBAC and the printer
columns as the real one does. It refuses what it does not know: server-side apply, JSON patches, dry runs, foreground
deletion, CEL, `sendInitialEvents` and conversion between versions are for the real server alone.
"""

from tests.kubernetes.double.access import Rule
from tests.kubernetes.double.control import Control, Request
from tests.kubernetes.double.server import Double

__all__ = ["Control", "Double", "Request", "Rule"]
