"""``halimede serve``: models over REST and gRPC. Its options are the server's own, since images have no typer."""

from __future__ import annotations

import typer

#: options go on as they are, --help included
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


serve = typer.Typer(add_completion=False, rich_markup_mode="rich")


@serve.command(context_settings=PASS_THROUGH, add_help_option=False)
def _serve(ctx: typer.Context) -> None:
    """Serve models over the Open Inference Protocol, REST and gRPC, until Ctrl-C.

    \b
    Examples:
      halimede serve digits.onnx
      halimede serve small=a.onnx big=b.onnx --grpc 127.0.0.1:8081
      halimede serve --file models.json --http :8080
    """
    try:
        from halimede.serving.server import main
    except ImportError as error:
        raise missing(error) from error

    raise typer.Exit(main(ctx.args, "halimede serve"))


def missing(error: ImportError) -> Exception:
    """Return the error that names the package to install."""
    return typer.BadParameter(f"{error.name or error} is not installed: pip install 'halimede[serve]'")
