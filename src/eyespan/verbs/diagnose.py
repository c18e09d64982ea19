"""`eyespan diagnose`: experiments on a model that say why drafting works where it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyespan.drafters import TRAINED
from eyespan.errors import InputError, unknown_name
from eyespan.verbs import console, options
from eyespan.verbs.files import folder_for

if TYPE_CHECKING:
    from eyespan.bench.tables import Results
    from eyespan.target import HuggingFaceTarget

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

BUDGET_EPILOG = """
Example:

eyespan diagnose visual-budget --drafter fovea -o checkpoint=demo --out visual-budget
"""

RETRIEVAL_EPILOG = """
Example:

eyespan diagnose retrieval "What does it say?" --image receipt.png -o checkpoint=demo --out maps
"""

InputsOption = Annotated[
    int, typer.Option("--max-inputs", metavar="N", min=1, help="Inputs of each set.")
]


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


@app.command(name="visual-budget", epilog=BUDGET_EPILOG)
def visual_budget(
    model: options.ModelOption = "demo",
    drafter: options.DrafterOption = "fovea",
    option: options.SettingOption = None,
    dataset: options.DatasetOption = None,
    max_inputs: InputsOption = 24,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where tables and figures go.")
    ] = Path("visual-budget"),
    max_new_tokens: options.TokensOption = 200,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
) -> None:
    """How much of the picture does a draft state want?

    Answers questions, then drafts at every round with 0, 25, 50, 75 and 100% of the visual tokens,
    the most attended ones, and tells which share gave the longest accepted draft, early and late in
    the answer. Needs a trained drafter.

    Exit codes: 0 done, 2 bad input.
    """
    folder_for(out, "result folder")
    setup = _trained(drafter, option, model=model, dtype=dtype, device=device)
    from eyespan.diagnostics.questions import questions

    every = questions(dataset or ["demo"], max_inputs)
    target, ready = _bound(setup)
    from eyespan.bench.manifest import progress
    from eyespan.diagnostics.visual_budget import measure, results

    states = measure(target, ready, every, tell=progress, max_new_tokens=max_new_tokens)
    if not states:
        raise _nothing(len(every), model)
    _finish(results(states, target.info.name, drafter), out, dataset, f"{len(states)} states")


@app.command()
def focus(
    model: options.ModelOption = "demo",
    dataset: options.DatasetOption = None,
    max_inputs: InputsOption = 24,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the table goes.")] = Path(
        "focus"
    ),
    max_new_tokens: options.TokensOption = 200,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
) -> None:
    """Does the model look elsewhere as its answer goes on?

    Answers questions plainly and compares the 16 most attended visual tokens of neighbouring steps,
    early and late in the answer.

    Exit codes: 0 done, 2 bad input.
    """
    folder_for(out, "result folder")
    from eyespan.diagnostics.questions import questions

    every = questions(dataset or ["demo"], max_inputs)
    target = options.Setup(model=model, dtype=dtype, device=device).load_target()
    from eyespan.bench.manifest import progress
    from eyespan.diagnostics.focus import measure, results

    found = measure(target, every, tell=progress, max_new_tokens=max_new_tokens)
    if not found:
        raise _nothing(len(every), model)
    _finish(results(found, target.info.name), out, dataset, f"{len(found)} answers")


@app.command(epilog=RETRIEVAL_EPILOG)
def retrieval(
    prompt: Annotated[str, typer.Argument(help="The question.")],
    image: Annotated[Path, typer.Option("--image", "-i", metavar="FILE", help="The picture.")],
    model: options.ModelOption = "demo",
    option: options.SettingOption = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the maps go.")] = Path(
        "retrieval"
    ),
    panels: Annotated[
        int, typer.Option("--panels", metavar="N", min=1, max=64, help="Most states drawn.")
    ] = 8,
    max_new_tokens: options.TokensOption = 200,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
) -> None:
    """Where does FOVEA look in the picture, state by state?

    Draws, over the picture, which entries of the visual memory the root of each round takes, and
    with what weight; retrieval.json holds the numbers of all rounds.

    Exit codes: 0 done, 2 bad input.
    """
    folder_for(out, "result folder")
    setup = _trained("fovea", option, model=model, dtype=dtype, device=device)
    from eyespan.target.images import open_picture

    picture = open_picture(image)
    target, ready = _bound(setup)
    from eyespan.bench.manifest import manifest, write_json
    from eyespan.diagnostics.questions import Question
    from eyespan.diagnostics.retrieval import draw, even, trajectory

    content = [{"type": "image"}, {"type": "text", "text": prompt}]
    asked = Question(str(image), "image", str(image), "", [{"role": "user", "content": content}],
                     (picture,))  # fmt: skip
    looks = trajectory(target, ready, asked, max_new_tokens=max_new_tokens)
    drawn, _ = draw(picture, even(looks, panels), out)
    states = [
        {"step": one.step, "before": one.before, "drafted": one.drafted,
         "weights": one.weights.round(6).tolist()}
        for one in looks
    ]  # fmt: skip
    write_json(out / "retrieval.json", {"states": states})
    write_json(out / "manifest.json", manifest())
    console.notes().print(f"{len(looks)} states; maps in {drawn}", soft_wrap=True)


def _trained(drafter: str, option: list[str] | None, **where: Any) -> options.Setup:
    """A trained drafter's options, checked."""
    if drafter not in TRAINED:
        raise unknown_name("trained drafter", drafter, TRAINED)
    return options.setup(drafter=drafter, budget="fixed", option=option, **where)


def _bound(setup: options.Setup) -> tuple[HuggingFaceTarget, Any]:
    """The target, and the drafter ready for it, with the weights that come along where they fit."""
    from eyespan.drafters import make_drafter, with_shipped_weights

    target = setup.load_target()
    known = with_shipped_weights(setup.drafter, target, setup.options)
    drafter: Any = make_drafter(setup.drafter, vocab_size=target.info.vocab_size, **known)
    drafter.bind(target)
    return target, drafter


def _nothing(count: int, model: str) -> InputError:
    return InputError(
        f"{count} answers of {model}",
        found="none of more than one token",
        needed="longer answers are needed",
        todo="Take other inputs.",
    )


def _finish(made: Results, out: Path, dataset: list[str] | None, what: str) -> None:
    """Write results and say where they are."""
    from eyespan.bench.manifest import manifest, write_json

    made.write(out)
    write_json(out / "manifest.json", {**manifest(), "datasets": dataset or ["demo"]})
    console.notes().print(
        f"{what}; {len(made.tables)} tables and {len(made.figures)} figures in {out}; see them "
        f"with: eyespan bench report {out}",
        soft_wrap=True,
    )
