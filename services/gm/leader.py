"""GM on Kubernetes (``lead``): waits for the Lease, works while it holds the Lease, and then waits again.

The Lease is an object of the API server: the GM that holds it leads. A waiting GM has no connection to the broker: a
connection with the same client id would end the leader's. Its health check says that it is ready, or a rollout of GM
would never end. It is not ready when it cannot read the Lease and thus could not take over: a rollout to a GM without
the needed rights must not replace the last working GM.
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

#: seconds for which a waiting GM that cannot read the Lease counts as ready: an API server restarts within that time
LEASE_PATIENCE = 30.0


async def lead(manage: ManagerProcess, pods: PodSettings, *, kubeconfig: str, namespace: str, identity: str) -> None:
    """Run GM whenever it holds the Lease, until cancelled.

    ``kubeconfig``: path of the file for the API server; empty: that of the pod or of the environment. ``namespace``: of
    the Lease; empty: the pod's. ``identity``: GM's name in the Lease, which no other GM may have.

    Raises HalimedeError when another attempt cannot succeed, such as for an unusable kubeconfig.
    """
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
                    await waiting.aclose()  # the manager serves its own health checks on the same port
                    async with KubernetesCluster(client, elector) as cluster:
                        await manage(cluster, pods=pods)

                try:
                    await elector.lead(work)
                except LeadershipLostError as error:
                    log.warning("leadership lost", error=str(error))


def waiting_health(elector: LeaderElection) -> Health:
    """Return the health checks of a GM that waits for the Lease: it is live, and ready if it can read the Lease."""
    health = Health()
    health.live("loop", lambda: "")
    health.ready("lease", lambda: elector.trouble if elector.troubled_s >= LEASE_PATIENCE else "")
    return health
