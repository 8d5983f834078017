"""``halimede router``: a model at the edge and one in the cloud behind one address."""

from __future__ import annotations

import typer

from halimede.cli.commands.serve import PASS_THROUGH, missing

router = typer.Typer(add_completion=False, rich_markup_mode="rich")


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
