"""``halimede serve`` and ``halimede router``: models over REST and gRPC.

Their options are defined by the server itself, because its images do not contain typer.
"""

from __future__ import annotations

import typer

#: options are passed on, including --help
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
serve = typer.Typer(add_completion=False, rich_markup_mode="rich")
router = typer.Typer(add_completion=False, rich_markup_mode="rich")


@serve.command(context_settings=PASS_THROUGH, add_help_option=False)
def _serve(ctx: typer.Context) -> None:
    """Serve models over the Open Inference Protocol, REST and gRPC, until Ctrl-C.

    \b
    Examples:
      halimede serve digits.onnx
      halimede serve small=a.onnx big=b.onnx --grpc 127.0.0.1:8081
      halimede serve emotion.tflite
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


@router.command(context_settings=PASS_THROUGH, add_help_option=False)
def _router(ctx: typer.Context) -> None:
    """Forward requests to the model at the edge, and hard ones to the cloud, until Ctrl-C.

    \b
    Examples:
      halimede router --edge http://127.0.0.1:8501 --cloud http://gpu0:8501 --mining Margin --param threshold_margin=0.2
      halimede router --edge-service small --cloud-service big --mining IBT --camera cam0 --name helmet
    """
    try:
        from halimede.serving.router.server import main
    except ImportError as error:
        raise missing(error) from error

    before = [f"--{name}={value}" for name, value in (ctx.default_map or {}).items()]  # as in `halimede --broker ...`
    raise typer.Exit(main([*before, *ctx.args], "halimede router"))
