"""The paths of a node's files (``NodePaths``). Names are checked again before they become part of a path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from halimede.hard_samples import pod_folder
from halimede.names import check_label, check_name

#: the folder of workers, below a node's folder; if it exists, workers have run here before
WORKERS = "workers"


@dataclass(frozen=True, order=True, slots=True)
class Worker:
    """The namespace and name of a worker of this node, which has one process at a time, or is a pod."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodePaths:
    """The paths of the files of one node below halimede's home. Each raises InvalidFieldError for a bad node name."""

    home: Path
    node: str

    @property
    def root(self) -> Path:
        """The folder with all files of this node."""
        return self.home / "nodes" / check_name("node", self.node)

    @property
    def store(self) -> Path:
        """The SQLite file with the resources that the node holds."""
        return self.root / "store.db"

    @property
    def models(self) -> Path:
        """The folder of the model cache."""
        return self.root / "models"

    @property
    def datasets(self) -> Path:
        """The folder with the counts of Datasets."""
        return self.root / "datasets"

    @property
    def copies(self) -> Path:
        """The folder with the Datasets that are copied from other nodes."""
        return self.root / "copies"

    @property
    def published(self) -> Path:
        """The file with the digests of the content that this node copies from others."""
        return self.root / "published.json"

    @property
    def lock(self) -> Path:
        """The lock file, locked by the LC that uses this folder."""
        return self.root / "lc.lock"

    @property
    def removed(self) -> Path:
        """The folder for folders of workers that are no longer needed, until they are removed."""
        return self.root / "removed"

    def worker(self, worker: Worker) -> Path:
        """Return the folder of a worker: its counters, its log and its own files. Raises InvalidFieldError."""
        namespace, name = check_label("namespace", worker.namespace), check_name("worker", worker.name)
        # one step, because each plan calls this: each `/` makes another path object
        return self.home.joinpath("nodes", check_name("node", self.node), WORKERS, namespace, name)

    def hard_samples(self, namespace: str, service: str) -> Path:
        """Return the folder of a service's hard samples where its edge worker is a pod. Raises InvalidFieldError."""
        namespace, service = check_label("namespace", namespace), check_name("service", service)
        return self.home.joinpath("nodes", *pod_folder(check_name("node", self.node), namespace, service))

    def log(self, worker: Worker) -> Path:
        """Return the log file of a worker. Raises InvalidFieldError."""
        return self.worker(worker) / "worker.log"
