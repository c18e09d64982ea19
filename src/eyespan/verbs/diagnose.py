"""`eyespan diagnose`: experiments on a model that say why drafting works where it does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyespan.errors import InputError
from eyespan.verbs import console, options
from eyespan.verbs.files import folder_for

app = typer.Typer(
    name="diagnose",
    help="Experiments that say why drafting works where it does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

EPILOG = """
Example:

eyespan diagnose counterfactual --model demo --max-inputs 24 --out counterfactual
"""


@app.callback()
def group() -> None:
    """Experiments that say why drafting works where it does."""


@app.command(epilog=EPILOG)
def counterfactual(
    model: options.ModelOption = "demo",
    dataset: options.DatasetOption = None,
    max_inputs: Annotated[
        int, typer.Option("--max-inputs", metavar="N", min=2, help="Inputs of each set.")
    ] = 60,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where tables and figures go.")
    ] = Path("counterfactual"),
    max_new_tokens: options.TokensOption = 256,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
) -> None:
    """Hold the text fixed and change the picture: where does the target's choice depend on it?

    Answers questions about pictures, then reads every answer again under a picture of the mean
    colour and under another input's picture of the same kind. Tables say how often the choice
    after a round's root changes, and how far its log probability drops, by the number of accepted
    draft tokens; and which source of guesses the picture supports.

    Exit codes: 0 done, 2 bad input.
    """
    folder_for(out, "result folder")
    from eyespan.diagnostics.questions import questions

    every = questions(dataset or ["demo"], max_inputs)
    target = options.Setup(model=model, dtype=dtype, device=device).load_target()
    from eyespan.bench.manifest import manifest, progress, write_json
    from eyespan.diagnostics.counterfactual import measure
    from eyespan.diagnostics.counterfactual_tables import results

    found = measure(target, every, tell=progress, max_new_tokens=max_new_tokens)
    if not found.anchors:
        raise InputError(
            f"{found.answers} answers of {model}",
            found=f"no valid anchor in {found.rounds} rounds with a draft",
            needed="rounds whose next token the target chooses again are needed",
            todo="Take more inputs or longer answers.",
        )
    made = results(found, target.info.name)
    made.write(out)
    write_json(out / "manifest.json", {**manifest(), "datasets": dataset or ["demo"]})
    console.notes().print(
        f"{len(found.anchors)} anchors; {len(made.tables)} tables and {len(made.figures)} figures "
        f"in {out}; see them with: eyespan bench report {out}",
        soft_wrap=True,
    )
