"""`eyespan corpus build`: texts that a drafter knows before the first request. Needs no model, only
its tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from eyespan.corpus import MOST_TOKENS, corpus_of, write_corpus
from eyespan.errors import InputError
from eyespan.types import Ints
from eyespan.verbs import console, options
from eyespan.verbs.words import tokenizer_of

EPILOG = """
Examples:

eyespan corpus build manual.txt answers.jsonl --model demo --out my-corpus

eyespan generate --drafter sam -o corpus=my-corpus --image scan.png "Read the page."
"""

LARGEST_FILE = 1 << 30

app = typer.Typer(
    name="corpus",
    help="Texts that a drafter knows before the first request.",
    no_args_is_help=True,
)


@app.callback()
def corpus() -> None:
    """Texts that a drafter knows before the first request."""


@app.command(epilog=EPILOG)
def build(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="UTF-8 texts, a document each; of *.jsonl the 'text' of every line is one.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the corpus.")],
    model: options.ModelOption = "demo",
) -> None:
    """Tokenise texts for `--drafter sam --option corpus=DIR`.

    Markup of a chat in the texts, image placeholders too, is taken as plain text.
    """
    tokenizer = tokenizer_of(
        model,
        needed="a tokenizer.json is needed to build a corpus",
        todo="Name the model that will read the corpus: its folder or its Hugging Face id.",
    )
    tokenizer.encode_special_tokens = True
    documents: list[Ints] = []
    size = 0
    for file in files:
        for text in texts_of(file):
            ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)
            documents.append(ids)
            size += len(ids)
            if size > MOST_TOKENS:
                raise InputError(
                    "building a corpus",
                    found=f"more than {MOST_TOKENS} tokens up to {file}",
                    needed="a corpus that fits into memory a hundred times over is needed",
                    todo="Pass fewer files.",
                )
    whole = corpus_of(documents)
    if not len(whole.tokens):
        raise InputError(
            "building a corpus",
            found="no text in the files",
            needed="one document that is not empty is needed",
            todo="Check the files.",
        )
    write_corpus(out, whole, tokenizer=model)
    console.notes().print(
        f"{len(whole.starts)} documents, {len(whole.tokens)} tokens in {out}", highlight=False
    )


def texts_of(file: Path) -> Iterator[str]:
    """The documents of one file.

    Raises:
        InputError: it cannot be read, or a line is no JSON object with a text.
    """
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise _unusable(file, f"more than {LARGEST_FILE} bytes")
        text = file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise _unusable(file, getattr(error, "strerror", None) or str(error)) from error
    if file.suffix.lower() != ".jsonl":
        yield text
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)["text"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _unusable(file, f"line {number} is no object with a 'text'") from error
        if not isinstance(document, str):
            raise _unusable(file, f"the 'text' of line {number} is none")
        yield document


def _unusable(file: Path, found: str) -> InputError:
    return InputError(
        f"corpus file {file}",
        found=found,
        needed="UTF-8 text is needed, or JSON lines with a 'text' in a *.jsonl file",
        todo="Check the file.",
    )
