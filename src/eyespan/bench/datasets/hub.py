"""Rows of a public set, from the Hugging Face hub or from a folder in the hub's layout.

Columns are checked before any row is read, pictures are kept as bytes and decoded by our own
bounded opener, and `datasets` is imported here alone, so that everything else works without it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyespan.errors import InputError, OutputError
from eyespan.target.images import Picture

FORMATS = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
}


class Rows:
    """A split's rows by number, as plain dicts; pictures come as file bytes or paths.

    Args:
        name: of the set, for messages.
        origin: hub id, or a local folder in the same layout.
        config: the hub's configuration, or None; where a folder has one of that name, only what is
            in there counts.
        split: which part; in a folder, files of that very name are taken, else those whose name
            begins with it or that stand in a folder of that name (all files when none does).
        columns: that must be there.

    Raises:
        InputError: nothing there, unreadable, or a column is missing.
        OutputError: `datasets` is not installed.
    """

    def __init__(
        self,
        name: str,
        origin: str,
        *,
        config: str | None,
        split: str,
        columns: Iterable[str],
        files: str | None = None,
    ) -> None:
        self.folder = Path(origin).expanduser() if Path(origin).expanduser().is_dir() else None
        self._name, self._origin = name, origin
        try:
            self._data = self._open(config, split, files)
        except (InputError, OutputError):
            raise
        except Exception as error:  # a library with a hundred ways to fail: hub, files, schemas
            raise InputError(
                f"dataset '{name}'",
                found=f"{origin} cannot be read ({_first_line(error)})",
                needed="the set on the Hugging Face hub or a copy of its files is needed",
                todo=f"Check the network, or write {name}@FOLDER with a downloaded copy.",
            ) from error
        there = set(self._data.column_names)
        missing = [column for column in columns if column not in there]
        if missing:
            raise InputError(
                f"dataset '{name}' from {origin}",
                found=f"no column {', '.join(missing)} (there are: {', '.join(sorted(there))})",
                needed=f"columns {', '.join(columns)} are needed",
                todo="Use the set's own files, or bring your data as folder:PATH.",
            )

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> dict[str, Any]:
        found: dict[str, Any] = self._data[row]
        return found

    def _open(self, config: str | None, split: str, files: str | None) -> Any:
        library = _library()
        if self.folder is None:
            kind = {"data_files": files} if files else {"name": config}
            wanted = "train" if files else split
            data = library.load_dataset(self._origin, split=wanted, **kind)
        else:
            found = _files_of(self.folder, config, split, self._name)
            if FORMATS[found[0].suffix] == "json":
                return _JsonRows(found)
            options: dict[str, Any] = {"sep": "\t"} if found[0].suffix == ".tsv" else {}
            data = library.load_dataset(
                FORMATS[found[0].suffix],
                data_files=[str(file) for file in found],
                split="train",
                cache_dir=str(_cache()),
                **options,
            )
        return _undecoded(library, data)


class _JsonRows:
    """Rows of JSON files as they stand. LLaVA's ids are text in some rows and numbers in others,
    which a table with one kind a column cannot hold: "000000000020" would come back as 20.

    Args:
        files: each a list of objects, or one object a line.

    Raises:
        ValueError: something else.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._rows = [row for file in files for row in _objects(file)]
        self.column_names = list(dict.fromkeys(key for row in self._rows for key in row))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {**dict.fromkeys(self.column_names), **self._rows[row]}


def _objects(file: Path) -> list[dict[str, Any]]:
    text = file.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError:
        found = [json.loads(line) for line in text.split("\n") if line.strip()]
    found = [found] if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise ValueError(f"{file.name} holds something else than JSON objects")
    return found


def _library() -> Any:
    """The `datasets` package, quiet."""
    try:
        import datasets
    except ImportError as error:
        raise OutputError(
            "reading a public dataset",
            found=f"the package 'datasets' is missing ({error})",
            needed="it comes with eyespan's extra 'bench'",
            todo="pip install 'eyespan[bench]', or use demo or folder:PATH.",
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _cache() -> Path:
    """Where converted copies of local files are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "eyespan" / "datasets"


def _undecoded(library: Any, data: Any) -> Any:
    """Leave pictures as bytes: decoding is ours, and rows that are not used cost nothing."""
    for column, feature in dict(data.features).items():
        if isinstance(feature, library.Image):
            data = data.cast_column(column, library.Image(decode=False))
        elif isinstance(feature, library.List) and isinstance(feature.feature, library.Image):
            data = data.cast_column(column, library.List(library.Image(decode=False)))
    return data


def _files_of(folder: Path, config: str | None, split: str, name: str) -> list[Path]:
    """The split's data files, all of one format, sorted."""
    every = sorted(file for file in folder.rglob("*") if file.suffix in FORMATS)

    def among(test: Callable[[Path], bool]) -> list[Path]:
        return [file for file in every if test(file.relative_to(folder))]

    every = among(lambda file: config in file.parts[:-1]) or every
    chosen = (
        among(lambda file: file.stem.lower() == split.lower())
        or among(
            lambda file: file.name.lower().startswith(split.lower()) or split in file.parts[:-1]
        )
        or every
    )
    if not chosen:
        raise InputError(
            f"dataset '{name}' from {folder}",
            found="no data file there",
            needed=f"files of the hub's layout are needed ({', '.join(sorted(FORMATS))})",
            todo="Download the set's files into that folder.",
        )
    format_ = chosen[0].suffix
    return [file for file in chosen if file.suffix == format_]


def pictures_of(value: Any, folder: Path | None, what: str) -> tuple[Picture, ...]:
    """Pictures of one cell: a hub picture, a list of them, base64 text, or a path.

    Args:
        value: the cell; None is no picture.
        folder: that relative paths start from.
        what: the row, for messages.

    Raises:
        InputError: something else, or a path that leads nowhere.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(one for part in value for one in pictures_of(part, folder, what))
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
        if value.get("bytes"):
            return (bytes(value["bytes"]),)
        return (_file(str(value["path"]), folder, what),)
    if isinstance(value, bytes):
        return (value,)
    if isinstance(value, str):
        return (_file(value, folder, what) if _is_path(value) else _from_base64(value, what),)
    raise _no_picture(what, f"a {type(value).__name__}")


_LONGEST_PATH = 1024


def _is_path(text: str) -> bool:
    return len(text) <= _LONGEST_PATH and "." in text


def _from_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _no_picture(what, "text that is neither a path nor base64") from None


def _file(name: str, folder: Path | None, what: str) -> Path:
    places = [Path(name)]
    if folder is not None:
        places += [folder / name, folder / "images" / name]
    for path in places:
        if path.is_file():
            return path
    raise InputError(
        f"the picture of {what}",
        found=f"no file '{name}'" + (f" below {folder}" if folder else ""),
        needed="the set's pictures are needed beside its questions",
        todo="Download them into the same folder.",
    )


def _no_picture(what: str, found: str) -> InputError:
    return InputError(
        f"the picture of {what}",
        found=found,
        needed="a picture, a list of them, base64 text or a path is needed",
        todo="Use the set's own files.",
    )


def lettered(options: Sequence[Any]) -> str:
    """Options as lines "A. ...", "B. ...", empty ones left out."""
    given = [str(option) for option in options if option not in (None, "")]
    return "\n".join(f"{chr(ord('A') + at)}. {text}" for at, text in enumerate(given))


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0] or type(error).__name__
    return text if len(text) < 200 else f"{text[:200]}..."
