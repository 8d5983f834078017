"""``halimede upload``: sends files of this machine to a store (S3, HTTP or a folder). It needs no broker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from halimede.cli.runner import run
from halimede.models.errors import redact
from halimede.models.upload import upload as send


def upload(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file, or a folder with all files in it.")],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="s3://bucket/key, http(s)://, file:// or an absolute path.")
    ],
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to retry failures that may be temporary.")
    ] = 120.0,
) -> None:
    """Send files to a store, and print the SHA-256 and address of each file that arrived.

    A file becomes URL itself, or a name below it if that ends with a slash; the files of a folder keep their paths.
    S3 takes ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3_ENDPOINT_URL, S3_REGION from the environment, HTTP is asked by PUT.

    \b
    Examples:
      halimede upload big.onnx s3://models/big/3/model.onnx
      halimede upload recordings/monday https://store.example/monday/
    """

    async def command() -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(redact(url), total=None)
            done = await send(
                path,
                url,
                progress=lambda sent, whole: bar.update(task, completed=sent, total=whole),
                patience_s=timeout,
            )
        for one in done:
            print(f"{one.sha256}  {one.url}")

    run(command)
