"""Dataset: where samples are, on which nodes, and which other nodes copy them.

Models use ``check_sync`` and ``is_copy`` as well: their files are copied in the same way.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar, Protocol

from msgspec import Meta

from halimede.api.base import SEDNA, Spec, register
from halimede.api.podtemplate import LabelValue
from halimede.api.schema import AGE, PHASE, OptionalName, PrinterColumn, ValidationRule
from halimede.errors import InvalidFieldError, check_all, refuse
from halimede.names import check_name

#: the kind's name in commands and topics
PLURAL = "datasets"
#: columns of ``kubectl get``
NODE = PrinterColumn("Node", ".spec.nodeName", "The node that has the data.")
SAMPLES = PrinterColumn("Samples", ".status.numberOfSamples", "The number of samples.", type="integer")


#: text of an error: what to write
SYNC_FIX = "set spec.nodeName as well: the node whose files the other nodes copy"
#: the rule of a Model and of a Dataset
SYNC_RULE = ValidationRule(
    "!has(self.syncTo) || size(self.syncTo) == 0 || (has(self.nodeName) && self.nodeName != '')", SYNC_FIX, ".syncTo"
)
SyncTo = Annotated[
    dict[str, LabelValue],
    Meta(max_length=64, description="Labels of the nodes that get a copy of the files of nodeName, over the bus."),
]


def check_sync(node_name: str, sync_to: dict[str, str]) -> None:
    """Check ``nodeName``, the node that has the files, and that it is set if ``syncTo`` has other nodes copy them.

    Raises InvalidFieldError.
    """
    errors = [] if node_name or not sync_to else [InvalidFieldError("spec.syncTo", sync_to, SYNC_FIX)]
    check_all(partial(refuse, errors), *([partial(check_name, "spec.nodeName", node_name)] if node_name else []))


class _Synced(Protocol):
    """The fields of a Model's or a Dataset's spec that say who copies the files."""

    node_name: str
    sync_to: dict[str, str]


def is_copy(spec: _Synced, node: str) -> bool:
    """Whether a node that holds a Model or Dataset copies its files: with ``syncTo``, each but ``nodeName`` does."""
    return bool(spec.sync_to) and node != spec.node_name


def check(spec: DatasetSpec) -> None:
    """Check who copies the files. Raises InvalidFieldError."""
    check_sync(spec.node_name, spec.sync_to)


@register(
    SEDNA, "Dataset", PLURAL, "dataset", check=check, columns=(PHASE, SAMPLES, NODE, AGE), order=1, relative_url=True
)
class DatasetSpec(Spec, kw_only=True):
    """Samples in a file or a folder of a node, which counts them."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (SYNC_RULE,)

    url: Annotated[
        str, Meta(min_length=1, max_length=4096, description="The samples: a file or folder on the node, or a URL.")
    ]
    format: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            description="The format: txt, csv, jsonl, images, voc (or xml), coco or parquet.",
        ),
    ]
    node_name: Annotated[OptionalName, Meta(description="The node that has the data.")] = ""
    node_selector: Annotated[
        dict[str, LabelValue],
        Meta(max_length=64, description="Labels of the nodes that each have such data, if nodeName is empty."),
    ] = {}
    sync_to: SyncTo = {}
    credential_name: Annotated[
        str, Meta(max_length=253, description="A Secret of the namespace with credentials for the URL.")
    ] = ""
