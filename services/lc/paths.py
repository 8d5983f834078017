"""The paths of a node's files. Names are checked again before they become part of a path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from halimede.hard_samples import pod_folder
from halimede.names import check_label, check_name

#: below a node's folder; if it exists, workers have run here before
WORKERS = "workers"


@dataclass(frozen=True, order=True, slots=True)
class Worker:
    """A worker of this node: one process at a time."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodePaths:
    """The files of one node below halimede's home."""

    home: Path
    node: str

    @property
    def root(self) -> Path:
        """The folder with all files of this node."""
        return self.home / "nodes" / check_name("node", self.node)

    @property
    def store(self) -> Path:
        """The store of held resources."""
        return self.root / "store.db"

    @property
    def models(self) -> Path:
        """The model cache."""
        return self.root / "models"

    @property
    def datasets(self) -> Path:
        """The counts of datasets."""
        return self.root / "datasets"

    @property
    def copies(self) -> Path:
        """The files of datasets that are copied from other nodes."""
        return self.root / "copies"

    @property
    def published(self) -> Path:
        """The digests of the content that this node copies."""
        return self.root / "published.json"

    @property
    def lock(self) -> Path:
        """Held by the LC that owns this folder."""
        return self.root / "lc.lock"

    @property
    def removed(self) -> Path:
        """Folders of workers that are no longer needed, until they are removed."""
        return self.root / "removed"

    def worker(self, worker: Worker) -> Path:
        """Return the folder of a worker: its ledger and its log. Raises InvalidFieldError on a bad name."""
        namespace, name = check_label("namespace", worker.namespace), check_name("worker", worker.name)
        # one step, because each plan calls this: each `/` makes another path object
        return self.home.joinpath("nodes", check_name("node", self.node), WORKERS, namespace, name)

    def hard_samples(self, namespace: str, service: str) -> Path:
        """Return the folder of a service's hard samples where its edge worker is a pod. Raises InvalidFieldError."""
        namespace, service = check_label("namespace", namespace), check_name("service", service)
        return self.home.joinpath("nodes", *pod_folder(check_name("node", self.node), namespace, service))

    def log(self, worker: Worker) -> Path:
        """Return the log of a worker."""
        return self.worker(worker) / "worker.log"
