"""`--help` with the options that most people use, `--help-all` with all of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pflbench.cli.options import ALL

COMMON = {"methods", "datasets", "model", "settings", "seeds", "partition", "clients", "beta", "classes_per_client"}
COMMON |= {"rounds", "lr", "join_ratio", "device"}
RARE = (ALL.keys() - COMMON) | {"data_dir", "download", "keep_going", "quiet"}


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta["all options"] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, expose_value=False, callback=_show_all, help="Show all options and exit.")
]


class LongCommand(TyperCommand):
    """A command with many options, one of which is HelpAll."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        rare = [] if ctx.meta.get("all options") else [one for one in self.params if one.name in RARE]
        for option in rare:
            option.hidden = True  # type: ignore[attr-defined]
        try:
            super().format_help(ctx, formatter)
        finally:
            for option in rare:
                option.hidden = False  # type: ignore[attr-defined]
