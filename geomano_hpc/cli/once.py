"""A command whose options stand once: given twice, one of them would be dropped without a word."""

from typing import Any

import typer
from typer.core import TyperCommand


class Once(TyperCommand):
    """Options that are lists may be repeated; any other one is an error the second time."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        seen = set()
        for parameter in order:
            if parameter.param_type_name != "option" or parameter.multiple or getattr(parameter, "count", False):
                continue
            if parameter.name in seen:
                raise typer.BadParameter("is given twice; once is meant", ctx=ctx, param_hint=parameter.opts[0])
            seen.add(parameter.name)
        return super().parse_args(ctx, args)
