"""One question about many pictures: progress, JSON lines, resuming."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eyespan.errors import ConfigError, EyespanError, OutputError
from eyespan.verbs import console
from eyespan.verbs.files import name_of, pictures_of
from eyespan.verbs.memory import remembering
from eyespan.verbs.options import Setup
from eyespan.verbs.results import Results, as_line

if TYPE_CHECKING:
    from eyespan.batching import Scheduler, Ticket
    from eyespan.generation import Engine
    from eyespan.trace import Trace
    from eyespan.types import Generation


@dataclass(slots=True)
class Tally:
    """What a run did so far."""

    answered: int = 0
    failed: int = 0
    tokens: int = 0
    forwards: int = 0

    @property
    def tau(self) -> float:
        """Tokens per forward over all answers."""
        return self.tokens / self.forwards if self.forwards else 0.0


class Line(NamedTuple):
    """What a picture came to."""

    picture: Path
    result: Generation | Exception


def _continued(file: Path, done: Collection[str]) -> Trace:
    """The trace of a run: new, or with what an earlier run wrote of pictures that are done.

    Answers of a batch end in another order than their lines are written in, so an interruption
    may leave traces of pictures that will be asked about again.
    """
    from eyespan.trace import Trace, keep_requests

    if done:
        keep_requests(file, lambda line: line.get("image") is None or line["image"] in done)
    return Trace(file, append=bool(done))


@dataclass(slots=True)
class Batch:
    """A run over pictures.

    Attributes:
        setup: the engine to load.
        prompt: what to ask about each picture.
        asked: further options of `Engine.generate`.
        rows: answers written at once; they are the same for any number.
    """

    setup: Setup
    prompt: str
    asked: dict[str, Any]
    rows: int = 1
    tally: Tally = field(default_factory=Tally)

    def run(
        self, pattern: str, out: Path | None, trace: Path | None, memory: Path | None = None
    ) -> int:
        """Answer every picture that has no answer yet.

        Args:
            pattern: a folder or glob.
            out: the result file, resumed when it exists; None is stdout.
            trace: a trace file, continued when answers are.
            memory: what the drafter learned, read before and written after.

        Returns:
            The exit code: 0, 1 when pictures failed, 130 when interrupted.

        Raises:
            EyespanError: before the first answer.
        """
        pictures, notes = pictures_of(pattern), console.notes()
        with ExitStack() as stack:
            names = [name_of(picture) for picture in pictures]
            results = Results(out, self._settings(), names) if out else None
            if results:
                stack.callback(results.close)
            done = results.done if results else set()
            todo = [picture for picture in pictures if name_of(picture) not in done]
            if not todo:
                notes.print(f"all {len(pictures)} pictures have their answers in {out}")
                return 0
            if len(todo) < len(pictures):
                notes.print(f"resuming: {len(pictures) - len(todo)} of {len(pictures)} are done")
            engine = self.setup.load()
            engine.target.check_text(self.prompt)  # a wrong question is wrong for every picture
            sink = stack.enter_context(_continued(trace, done)) if trace else None
            stack.enter_context(remembering(engine, memory, self.asked.get("scope")))
            interrupted = self._answer_all(engine, todo, results, sink)
        self._say(out, len(todo), interrupted)
        return 130 if interrupted else int(self.tally.failed > 0)

    def _settings(self) -> dict[str, Any]:
        """Everything that a line of the result file depends on, besides its picture."""
        setup, model = self.setup, Path(self.setup.model)
        return {
            "prompt": self.prompt,
            "model": str(model.resolve()) if model.is_dir() else setup.model,
            "drafter": setup.drafter,
            "budget": setup.budget,
            "options": setup.options,
            "dtype": setup.dtype,
            "device": setup.device,
            **self.asked,
        }

    def _answer_all(
        self, engine: Engine, todo: list[Path], results: Results | None, trace: Trace | None
    ) -> bool:
        """Answer all pictures, lines in their order; whether the user stopped it."""
        from eyespan.batching import Scheduler

        lines: dict[int, Line] = {}  # answered before an earlier picture was
        left, written = iter(enumerate(todo)), 0
        try:
            with self._progress(len(todo)) as advance, Scheduler(engine, max_rows=self.rows) as run:
                while written < len(todo):
                    while run.has_free_row and (one := next(left, None)) is not None:
                        self._submit(run, *one, lines, trace)
                    run.step()
                    while written in lines:
                        line = self._checked(lines.pop(written))
                        written += 1
                        if results:
                            results.write(line)
                        else:
                            sys.stdout.write(as_line(line))
                            sys.stdout.flush()
                        advance()
        except KeyboardInterrupt:
            return True
        return False

    def _submit(
        self,
        run: Scheduler,
        at: int,
        picture: Path,
        lines: dict[int, Line],
        trace: Trace | None,
    ) -> None:
        """Let a picture wait for its answer, which goes to `lines`."""
        from eyespan.trace import Labelled

        def store(ticket: Ticket) -> None:
            lines[at] = Line(picture, ticket.error or ticket.generation)

        try:
            sink = None if trace is None else Labelled(trace, image=name_of(picture))
            run.submit(self.prompt, [picture], on_end=store, trace=sink, **self.asked)
        except EyespanError as error:
            lines[at] = Line(picture, error)

    def _checked(self, line: Line) -> dict[str, Any]:
        """One picture's line. A fault of the picture is its answer; a wrong option is not, nor is a
        full disk.
        """
        picture, result = line
        if isinstance(result, Exception):
            if isinstance(result, (ConfigError, OutputError)) or not isinstance(
                result, EyespanError
            ):
                raise result
            self.tally.failed += 1
            return {"type": "error", "image": name_of(picture), "error": str(result)}
        self.tally.answered += 1
        self.tally.tokens += len(result.token_ids)
        self.tally.forwards += result.forwards
        return {
            "type": "answer",
            "image": name_of(picture),
            "text": result.text,
            "finish": result.finish,
            "tokens": len(result.token_ids),
            "forwards": result.forwards,
            "tau": round(result.tau, 4),
            "seconds": {stage: round(spent, 6) for stage, spent in result.seconds.items()},
        }

    @contextmanager
    def _progress(self, total: int) -> Iterator[Any]:
        """A bar on a terminal's stderr, nothing elsewhere."""
        notes = console.notes()
        with Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=notes,
            auto_refresh=False,  # its thread would take time from the model
            disable=not console.on_terminal(notes),
        ) as bar:
            task = bar.add_task("", total=total, state="")

            def advance() -> None:
                failed = f", {self.tally.failed} failed" if self.tally.failed else ""
                bar.update(task, advance=1, state=f"tau {self.tally.tau:.2f}{failed}", refresh=True)

            yield advance

    def _say(self, out: Path | None, total: int, interrupted: bool) -> None:
        tally = self.tally
        text = f"{tally.answered} of {total} answered, {tally.tokens} tokens, tau {tally.tau:.2f}"
        if tally.failed:
            text += f"; {tally.failed} failed, see their error lines"
        if out:
            text += f"; results in {out}"
        if interrupted:
            text += "; stopped: run the same command again to go on" if out else "; stopped"
        console.notes().print(text, soft_wrap=True)
