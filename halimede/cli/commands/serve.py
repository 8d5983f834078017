"""Serving models, as a shell sees it: serve, router. Their options are the servers' own, since images have no typer."""

from __future__ import annotations

import typer

#: options go on as they are, --help included
THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    for command in (serve, router):
        app.command(context_settings=THROUGH, add_help_option=False)(command)


def serve(ctx: typer.Context) -> None:
    """Answer requests for models by the Open Inference Protocol, over REST and gRPC, until Ctrl-C.

    \b
    Examples:
      halimede serve digits.onnx
      halimede serve small=a.onnx big=b.onnx --grpc 127.0.0.1:8081
      halimede serve --file models.json --http :8080
    """
    try:
        from halimede.serving.server import main
    except ImportError as error:
        raise _missing(error) from error

    raise typer.Exit(main(ctx.args, "halimede serve"))


def router(ctx: typer.Context) -> None:
    """Ask the model at the edge, and the one in the cloud where mining calls a sample hard, until Ctrl-C.

    \b
    Examples:
      halimede router --edge http://127.0.0.1:8501 --cloud http://gpu0:8501 --mining Margin --param threshold_margin=0.2
      halimede router --edge-service small --cloud-service big --mining IBT --camera cam0 --name helmet
    """
    try:
        from halimede.serving.router.server import main
    except ImportError as error:
        raise _missing(error) from error

    before = [f"--{name}={value}" for name, value in (ctx.default_map or {}).items()]  # as in `halimede --broker ...`
    raise typer.Exit(main([*before, *ctx.args], "halimede router"))


def _missing(error: ImportError) -> Exception:
    return typer.BadParameter(f"{error.name or error} is not installed: pip install 'halimede[serve]'")
