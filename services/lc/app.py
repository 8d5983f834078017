"""The local controller (LC) of a node, assembled from its components (``LocalController``).

The loop (``_Components._reconcile``) waits until a component wakes it: GM's messages change the store, files become
ready, workers start or end. Then it computes a plan from the stored resources, the ready files and the running workers,
and hands each component its part: files to prepare, workers to start and stop, states to report. The plan is pure and
level-triggered, so a lost or repeated wake-up changes nothing.

The controller starts the workers of its stored resources before any message arrives, and continues when GM or the
broker disconnects. After a clean stop its workers stop; if it is killed they continue, and it adopts them at the next
start. If workers are pods, it starts and stops none.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from filelock import FileLock, Timeout

from halimede import models, programs
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.model_formats import FORMATS, ONNX
from halimede.api.placement import SERVICES
from halimede.blobs.admin import BlobNode, ManagedCache
from halimede.blobs.copies import CopyFetcher, sources
from halimede.blobs.server import Find, SourceStats
from halimede.blobs.uris import SCHEME, bus_name_of
from halimede.bus.port import Bus
from halimede.datasets.count_process import count_in_child
from halimede.errors import HalimedeError, first_error
from halimede.models import AddressPolicy, Cache, Fetched
from halimede.models.errors import FetchError, FetchReason
from halimede.models.fetcher import Progress
from halimede.names import Key, check_name
from halimede.observe import HttpServer
from halimede.observe.http import same_host
from halimede.observe.metrics import registry
from services.lc.code_files import CodeFiles
from services.lc.credentials import NodeCredentials
from services.lc.dataset_copies import DatasetCopies, SharedFiles
from services.lc.dataset_counts import Count, Datasets, Probe
from services.lc.gm_channel import GmChannel
from services.lc.metrics import LcMetrics
from services.lc.models.cache_janitor import CACHE_BYTES, CacheChanges, CacheJanitor
from services.lc.models.lookup import ParsedResources
from services.lc.models.preparer import Install, ModelFiles, Preparer
from services.lc.paths import NodePaths
from services.lc.planning.node_kinds import WorkerPlanner
from services.lc.planning.plan import WorkerBackend, plan
from services.lc.planning.process_planner import ProcessPlanner
from services.lc.planning.resource_state import RequiredFile
from services.lc.planning.template_process import Host
from services.lc.pods.workers import PodPlanner, PodWorkers
from services.lc.published_content import PublishedContent
from services.lc.status_reporter import DueReports, NodeStatusReporter
from services.lc.store import NodeStore
from services.lc.supervisor.linux_process import LinuxLauncher
from services.lc.supervisor.process import Launcher
from services.lc.supervisor.supervisor import Supervisor
from services.lc.worker_files import Logs, PodLogs

log = structlog.get_logger()
#: seconds between two checks whether another LC uses the node's name
RIVAL_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of one LC.

    Attributes:
        node: the node's name, unique on the broker.
        home: halimede's folder; the node's files are below it.
        broker: the broker for the node's workers, as host:port or as a URL.
        labels: the node's labels.
        credentials: the node's folder of credentials; None: the broker requires none, or they are in its URL.
        http: host:port of health and metrics; ``off``: none.
        pods: whether its workers are pods, which Kubernetes runs; the LC then starts none, and receives their reports.
        host_root: with ``pods``, the folder at which the node's folders with Datasets are mounted into the LC's pod.
        cache_bytes: the limit of the model cache.
        fetch_policy: addresses that models and workers' own cameras may have, besides public ones.

    """

    node: str
    home: Path
    broker: str
    labels: Mapping[str, str] = field(default_factory=dict)
    credentials: NodeCredentials | None = None
    http: str = "off"
    pods: bool = False
    host_root: Path = Path("/host")
    cache_bytes: int = CACHE_BYTES
    fetch_policy: AddressPolicy = field(default_factory=AddressPolicy)

    @property
    def folders(self) -> NodePaths:
        """The paths of the node's files. Raises InvalidFieldError for a bad name."""
        return NodePaths(self.home, check_name("node", self.node))


class LocalController:
    """The LC of one node: construct it with a bus that is not entered yet, then call ``run``.

    ``files``: a second connection, for files over the bus; None: files are not served, nor fetched over it. The other
    arguments have the side effects outside of the LC, and a simulation replaces them: ``launcher`` starts processes,
    ``install`` brings models, ``count`` counts Datasets, ``probe`` requests URLs.
    """

    def __init__(
        self,
        config: Config,
        bus: Bus,
        *,
        launcher: Launcher | None = None,
        install: Install | None = None,
        count: Count = count_in_child,
        probe: Probe | None = None,
        files: Bus | None = None,
    ) -> None:
        self.config = config
        self.bus = bus
        self.launcher = launcher or LinuxLauncher(config.folders)
        self.content = PublishedContent(bus, config.folders.published)
        self.shared = SharedFiles()
        self._blobs = NodeBlobs(config.node, files, Cache(config.folders.models), self.shared.find) if files else None
        openers = {SCHEME: self._blobs.opener} if self._blobs else {}
        formats = {ONNX.name} if config.pods else FORMATS  # pods have their own packages
        self.install = install or ModelFiles(
            policy=config.fetch_policy, openers=openers, copy=self.fetch_copy, formats=formats
        )
        self.count = count
        self.probe = probe or functools.partial(models.probe, policy=config.fetch_policy, openers=openers)
        for connection in filter(None, (bus, files)):
            connection.node = config.node

    @property
    def sent(self) -> SourceStats:
        """Numbers of what this node has sent of its files over the bus."""
        return self._blobs.source.stats if self._blobs else SourceStats()

    async def fetch_copy(
        self, required: RequiredFile, digest: str, cache: Cache, progress: Progress | None = None
    ) -> Fetched:
        """Fetch a file of a Model or Dataset of another node into ``cache``, by its SHA-256. Raises FetchError.

        ``progress`` is called with the bytes so far and the bytes in all (None: unknown).
        """
        if self._blobs is None:
            raise FetchError(FetchReason.UNREACHABLE, "this controller has no connection for files", temporary=True)
        peers = self.content.peers(required.key)
        return await self._blobs.copies.fetch(digest, required.source, peers, cache, progress)

    def copy_depth(self, required: RequiredFile, digest: str) -> int:
        """Return the number of nodes through which a file of another node comes: a node may copy from a copy."""
        return len(sources(digest, self.config.node, self.content.peers(required.key), required.source))

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until ``stopping`` is set, then stop all workers. If cancelled, leave the workers running.

        Raises HalimedeError if another LC uses this node's folder, or if its folder or store cannot be used.
        """
        folders = self.config.folders
        with _only_one(folders), NodeStore(folders.store) as store, first_error():
            await self._run(stopping, store)
        log.info("local controller stopped", node=self.config.node)

    async def _run(self, stopping: asyncio.Event, store: NodeStore) -> None:
        """Run all components on an open store, until ``stopping`` is set; then stop all workers."""
        async with asyncio.TaskGroup() as tasks:
            components = _Components(self, store, tasks)
            metrics = components.metrics
            http = HttpServer(self.config.http, health=metrics.health(), registry=registry("lc", metrics.collect))
            components.workers.adopt()
            self.bus.announce = components.channel.announce
            async with http, self.bus:
                components.channel.presence.http = http.url
                running = await components.start()
                if self._blobs:
                    components.channel.presence.connections.append(self._blobs.bus)
                    running["blobs"] = _once_alone(self._blobs, components.channel)
                work = [tasks.create_task(run, name=name) for name, run in running.items()]
                metrics.work = work
                log.info("local controller started", node=self.config.node, http=http.url)
                await stopping.wait()
                # the stop of a worker is not reported from now on: the node goes offline as a whole
                metrics.work = ()
                for task in work:
                    task.cancel()
                components.preparer.set_required({})
                components.datasets.set_required({})
                await components.workers.stop_all()


class _Components:
    """The components of a running LC, and the loop that plans and acts after each change."""

    def __init__(self, controller: LocalController, store: NodeStore, tasks: asyncio.TaskGroup) -> None:
        config, bus = controller.config, controller.bus
        folders, cache = config.folders, Cache(config.folders.models)
        self.store = store
        self.pods = config.pods
        self.items = ParsedResources()
        self.wake = asyncio.Event()
        self.due_reports = DueReports()
        changes = CacheChanges(cache)
        preparer = self.preparer = Preparer(cache, tasks, lambda _: self.wake.set(), controller.install, changes)
        self.content = controller.content
        self.content.load()
        datasets = self.datasets = Datasets(
            tasks,
            lambda _: self.wake.set(),
            folders.datasets,
            controller.count,
            controller.probe,
            root=config.host_root if config.pods else None,
            copies=DatasetCopies(folders.copies, controller.fetch_copy, controller.copy_depth, controller.shared),
        )
        self.code = CodeFiles()
        self.planner: WorkerPlanner
        self.logs: Logs
        workers: WorkerBackend
        if config.pods:
            self.planner = PodPlanner(config.node, config.labels, folders)
            workers = PodWorkers(folders, bus, store, self._worker_changed)
            self.logs = PodLogs(folders, bus)
        else:
            host = Host(python=sys.executable, library=str(programs.CHECKOUT or ""))
            http = same_host(config.http)
            self.planner = ProcessPlanner(
                config.node,
                config.labels,
                folders,
                config.broker,
                host,
                config.credentials,
                http,
                str(config.fetch_policy),
                self.code.digests,
                self.code.missing,
            )
            workers = Supervisor(
                folders,
                controller.launcher,
                store,
                tasks,
                changed=self._worker_changed,
                missing=preparer.missing,
                connected=lambda: bus.connected,
                adopted=self.code.adopt,
            )
            self.logs = Logs(folders, bus)
        self.workers = workers
        self.janitor = CacheJanitor(
            cache, changes, preparer.paths, lambda: workers.models, preparer.missing, max_bytes=config.cache_bytes
        )
        self.reporter = NodeStatusReporter(config.node, bus, store, workers, self.due_reports)
        self.channel = GmChannel(
            config.node,
            bus,
            labels=config.labels,
            store=store,
            workers=workers,
            reporter=self.reporter,
            changed=self.wake.set,
            repeated=self._recheck,
        )
        self.metrics = LcMetrics(bus, store, workers, preparer, datasets, self.reporter, self.channel, controller.sent)

    async def start(self) -> dict[str, Coroutine[None, None, None]]:
        """Subscribe; return the coroutines to run from now on, by name."""
        await self.channel.start()
        await self.logs.start()
        await self.reporter.start()
        return {
            "reconcile": self._reconcile(),
            "cache": self.janitor.run(),
            "content": self.content.run(self.wake.set),
            "code": self.code.run(self.wake.set),
            "sync": self.channel.run(),
            "store": self.channel.watch_store(),
            "reports": self.reporter.run(),
            **self.logs.tasks(),
            **self.workers.tasks(),
        }

    def _recheck(self, key: Key) -> None:
        """Have it checked now whether the files that a resource names have changed."""
        self.preparer.recheck(key)
        if key.plural in SERVICES:
            self.code.recheck()

    def _worker_changed(self, service: Key) -> None:
        """Process a change of a worker of a service: report it, and plan again."""
        self.due_reports.add(service)
        self.wake.set()

    async def _reconcile(self) -> None:
        """Plan and act, after each wake-up, until cancelled."""
        while True:
            self.wake.clear()
            items = self.items.read(self.store.resources)
            if not self.pods:  # pods have code of their own
                await self.code.set_required(items)
            next_plan = plan(
                items,
                {**self.preparer.preparations, **self.datasets.preparations},
                self.workers.running,
                self.planner,
                complete=self.store.complete,
                is_deleted=self.store.has_tombstone,
                content=self.content.files,
            )
            self.content.set_required(next_plan.copied)
            self.preparer.set_required({key: file for key, file in next_plan.prepare.items() if key.plural != DATASETS})
            self.datasets.set_required({key: file for key, file in next_plan.prepare.items() if key.plural == DATASETS})
            self.workers.carry_out(next_plan)
            self.reporter.update(next_plan.states)
            self.channel.set_lacking(lacking=next_plan.lacking)
            await self.wake.wait()


async def _once_alone(blobs: NodeBlobs, channel: GmChannel) -> None:
    """Serve files once no other LC uses the node's name: two would disconnect each other. Runs until cancelled."""
    blobs.bus.obstacle = lambda: "" if channel.presence.alone else "another local controller may use this node's name"
    while not channel.presence.alone:  # noqa: ASYNC110  # it depends only on time, without an event to wait for
        await asyncio.sleep(RIVAL_CHECK_S)
    await blobs.run()


@contextlib.contextmanager
def _only_one(folders: NodePaths) -> Iterator[None]:
    """Lock the node's folder inside the block. Raises HalimedeError if that fails, such as if another LC runs.

    Workers do not inherit the lock, so those that survive their LC do not hold it.
    """
    lock = FileLock(folders.lock)
    try:
        # make the cache too: otherwise kubelet makes it for the first pod that mounts it, owned by root
        folders.models.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        text = f"another local controller uses {folders.root}: stop it, or use another --node or --home"
        raise HalimedeError(text) from None
    except OSError as error:
        text = f"{folders.root} cannot be used: {error.strerror}: set --home to a writable folder"
        raise HalimedeError(text) from error
    try:
        yield
    finally:
        lock.release()


def client_id(node: str) -> str:
    """Return the MQTT client id of the connection for files, in addition to the LC's own."""
    return f"lc.{node}-blobs"


class NodeBlobs(BlobNode):
    """A node's ``BlobNode``: serves its model cache and what ``find`` finds over the bus, and fetches others' files.

    ``run`` it in addition to the LC; ``opener`` opens URLs with the scheme ``bus``. ``bus`` is a separate connection
    (``client_id``) that is not entered yet.
    """

    def __init__(self, node: str, bus: Bus, cache: Cache, find: Find | None = None) -> None:
        super().__init__(bus, bus_name_of(check_name("node", node)), ManagedCache(cache), find)
        self.copies = CopyFetcher(self.client, node)
