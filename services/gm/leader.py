"""GM on Kubernetes: a candidate that waits for the Lease, works while it leads, and is a candidate again.

While it waits it has no connection to the broker: one of the same name would take the leader's away. It is ready
nevertheless, for it is where it should be; a roll-out would never end otherwise. It is not once it could not take over
if it had to: a roll-out to a GM without its rights must not take the last good one away.
"""

from __future__ import annotations

import contextlib

import structlog

from halimede.observe import HttpServer
from halimede.observe.http import Health
from halimede.observe.metrics import registry
from services.gm.app import ManagerProcess
from services.gm.cluster.kubernetes.client import KubernetesClient, load_configuration, own_namespace
from services.gm.cluster.kubernetes.cluster import KubernetesCluster
from services.gm.cluster.kubernetes.leader_election import LeaderElection, LeadershipLostError
from services.gm.workloads.pod_settings import PodSettings

log = structlog.get_logger()

#: seconds for which a candidate may be unable to look at the Lease: an API server starts anew within that
LEASE_PATIENCE = 30.0


async def lead(manage: ManagerProcess, pods: PodSettings, *, kubeconfig: str, namespace: str, identity: str) -> None:
    """Lead whenever that is possible, until cancelled. Raises HalimedeError when there is no use in trying again."""
    configuration = await load_configuration(kubeconfig)
    async with KubernetesClient(configuration) as client:
        elector = LeaderElection(client, own_namespace(namespace), identity)
        while True:
            async with contextlib.AsyncExitStack() as waiting:
                health, registered = waiting_health(elector), registry("gm", lambda: ())
                await waiting.enter_async_context(
                    HttpServer(manage.http, health=health, registry=registered, or_any=manage.or_any)
                )

                async def work(waiting: contextlib.AsyncExitStack = waiting) -> None:
                    await waiting.aclose()  # the manager has its own, on the same port
                    async with KubernetesCluster(client, elector) as cluster:
                        await manage(cluster, pods=pods)

                try:
                    await elector.lead(work)
                except LeadershipLostError as error:
                    log.warning("leadership lost", error=str(error))


def waiting_health(elector: LeaderElection) -> Health:
    """Return what tells how a candidate fares."""
    health = Health()
    health.live("loop", lambda: "")
    health.ready("lease", lambda: elector.trouble if elector.troubled_s >= LEASE_PATIENCE else "")
    return health
