"""Where an InferenceModel is served: the url of its status, as GM publishes it, followed while it changes."""

from __future__ import annotations

import structlog

from halimede import topics
from halimede.api import inferencemodel
from halimede.bus import Bus, Delivery
from halimede.errors import InvalidFieldError
from halimede.messages import StatusDocument
from halimede.serving.router.backend_client import Backend

log = structlog.get_logger()


async def follow(bus: Bus, namespace: str, service: str, upstream: Backend) -> None:
    """Keep an upstream where an InferenceModel is served."""

    def move(url: str) -> None:
        try:
            upstream.move(url)
        except InvalidFieldError as error:
            log.warning("url not usable", service=service, error=str(error))
        else:
            log.info("model found", service=service, url=url)

    async def changed(delivery: Delivery[StatusDocument]) -> None:
        url = delivery.body.status.url or ""
        if url or not upstream.known:
            move(url)

    filter_ = topics.STATUS.filter(ns=namespace, plural=inferencemodel.PLURAL, name=service)
    await bus.subscribe(filter_, changed)
