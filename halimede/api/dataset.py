"""Dataset: where data is, and on which node."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from halimede.api.base import SEDNA, Spec, register
from halimede.api.schema import AGE, PHASE, OptionalName, PrinterColumn
from halimede.names import check_name

PLURAL = "datasets"
NODE = PrinterColumn("Node", ".spec.nodeName", "The node that has the data.")
SAMPLES = PrinterColumn("Samples", ".status.numberOfSamples", "The number of samples.", type="integer")


def check(spec: DatasetSpec) -> None:
    """Check the node's name."""
    if spec.node_name:
        check_name("spec.nodeName", spec.node_name)


@register(
    SEDNA, "Dataset", PLURAL, "dataset", check=check, columns=(PHASE, SAMPLES, NODE, AGE), order=1, relative_url=True
)
class DatasetSpec(Spec, kw_only=True):
    """Samples in a file or a folder of a node, which counts them."""

    url: Annotated[
        str,
        Meta(min_length=1, max_length=4096, description="The samples: a file or folder on the node, or a URL."),
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
    credential_name: Annotated[
        str, Meta(max_length=253, description="A Secret of the namespace with credentials for the URL.")
    ] = ""
