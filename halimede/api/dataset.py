"""Dataset: where data is and on which node."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from halimede.api.base import SEDNA, Spec, register
from halimede.names import check_name

PLURAL = "datasets"


def check(spec: DatasetSpec) -> None:
    """Check the node's name."""
    if spec.node_name:
        check_name("spec.nodeName", spec.node_name)


@register(SEDNA, "Dataset", PLURAL, "dataset", check=check)
class DatasetSpec(Spec, kw_only=True):
    """Samples in a file (txt, csv) or a folder."""

    url: Annotated[str, Meta(min_length=1, max_length=4096)]
    format: Annotated[str, Meta(min_length=1, max_length=64)]
    node_name: Annotated[str, Meta(max_length=253)] = ""
    credential_name: Annotated[str, Meta(max_length=253)] = ""
