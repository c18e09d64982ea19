"""From results to tables and figures. A run's file names builders of `BUILDERS`; every run also
gets the summary of all methods, the losslessness table and the acceptance by depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from eyespan.bench.builders import costs, distributions, fovea, gains, main
from eyespan.bench.builders.shared import Report, depth_figure, lossless, summary
from eyespan.bench.tables import Results
from eyespan.errors import ConfigError, unknown_name

Kind: TypeAlias = Literal["answers", "stress"]


class Builder(NamedTuple):
    """How a table is made.

    Attributes:
        kind: what must have been run: methods over inputs, or a memory without a model.
        build: makes it.
    """

    kind: Kind
    build: Callable[[Report], Results]


BUILDERS: Mapping[str, Builder] = {
    "by_category": Builder("answers", main.by_category),
    "fovea_table1": Builder("answers", fovea.table1),
    "fovea_table2": Builder("answers", fovea.table2),
    "fovea_table3": Builder("answers", fovea.table3),
    "fovea_table7": Builder("answers", fovea.table7),
    "fovea_figure4": Builder("answers", fovea.figure4),
    "fovea_figure6": Builder("answers", fovea.figure6),
    "overview": Builder("answers", main.overview),
    "recap_figure3": Builder("answers", gains.figure3),
    "recap_table1": Builder("answers", main.table1),
    "recap_table2": Builder("answers", main.table2),
    "recap_table3": Builder("answers", main.table3),
    "recap_table4": Builder("answers", gains.table4),
    "recap_table7": Builder("answers", gains.table7),
    "recap_table8": Builder("answers", gains.table8),
    "recap_table9": Builder("answers", costs.table9),
    "recap_table10": Builder("answers", costs.table10),
    "recap_table11": Builder("stress", costs.table11),
    "recap_table12": Builder("answers", gains.table12),
    "recap_table13": Builder("answers", gains.table13),
    "recap_table15": Builder("answers", distributions.table15),
    "recap_table18": Builder("answers", distributions.table18),
}
"""Tables whose numbers also make a figure bring it along: 8 brings figure 4, 15 figure 6, 18 figure
8."""


def kind_of(tables: tuple[str, ...]) -> Kind:
    """What a run with these tables does.

    Raises:
        ConfigError: an unknown table, or tables of different kinds.
    """
    for name in tables:
        if name not in BUILDERS:
            raise unknown_name("table of a run", name, BUILDERS)
    kinds: list[Kind] = list(dict.fromkeys(BUILDERS[name].kind for name in tables))
    if len(kinds) > 1:
        raise ConfigError(
            f"tables {', '.join(tables)}",
            found=f"they come from different runs ({', '.join(kinds)})",
            needed="tables of one run are made of the same results",
            todo="Split them into two files.",
        )
    return kinds[0] if kinds else "answers"


def build(report: Report) -> Results:
    """All tables and figures of a run."""
    made = [BUILDERS[name].build(report) for name in report.settings.tables]
    if report.runs:
        figure = depth_figure(report)
        made.append(
            Results((summary(report), lossless(report)), (figure,) if figure.series else ())
        )
    return Results(
        tuple(table for one in made for table in one.tables),
        tuple(figure for one in made for figure in one.figures),
    )


__all__ = ["BUILDERS", "Report", "build", "kind_of"]
