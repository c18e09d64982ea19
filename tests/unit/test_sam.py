"""SAM-Decoding on texts worked out by hand: thresholds, room, corpus, presets and fallback."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eyespan.corpus import corpus_of, read_corpus, write_corpus
from eyespan.drafters import make_drafter
from eyespan.drafters.base import Ask
from eyespan.drafters.sam import Sam
from eyespan.errors import ConfigError, InputError
from tests.cli import Shell
from tests.drafting import ints, open_session, show

VOCAB = 100
IMAGE, END = 90, 99


def drafted(prompt: list[int], text: list[int], budget: int = 63, **options: object) -> list[int]:
    """What is drafted when `text` follows the prompt, its last token unseen by any round."""
    session = open_session(Sam(vocab_size=VOCAB, **options), prompt, media=[IMAGE], eos=[END])
    for at in range(len(text) - 1):
        show(session, [*prompt, *text[: at + 1]], [text[at + 1]])
    tree = session.propose(ints([*prompt, *text]), budget)
    assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
    return tree.tokens.tolist()


SPAN = [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_match_of_five_is_continued_and_one_of_four_is_not() -> None:
    assert drafted([*SPAN, 50], [1, 2, 3, 4, 5], max_draft=3) == [6, 7, 8]
    assert drafted([*SPAN, 50], [1, 2, 3, 4], max_draft=3) == []
    assert drafted([*SPAN, 50], [1, 2, 3, 4], max_draft=3, min_match=4) == [5, 6, 7]
    assert drafted([*SPAN, 50, 1, 2, 3, 4], [5], max_draft=3) == [6, 7, 8]


def test_the_earliest_place_with_room_is_continued() -> None:
    """[1..5] ends at 13 with two tokens behind it; of the suffixes only [5] has more, at 0."""
    prompt = [5, 20, 21, 22, 23, 24, 25, 26, 50, 1, 2, 3, 4, 5, 60, 61]
    text = [1, 2, 3, 4, 5]
    assert drafted(prompt, text, max_draft=3) == [60, 61, 1]  # its own start follows as well
    assert drafted(prompt, text, max_draft=20) == [*prompt[1:], *text]
    assert drafted(prompt, text, max_draft=20, occurrence="latest") == [60, 61, *text]


def test_occurrences_differ() -> None:
    prompt = [*SPAN[:5], 30, *SPAN[:5], 40, 41, 42]
    assert drafted(prompt, SPAN[:5], max_draft=2) == [30, 1]
    assert drafted(prompt, SPAN[:5], max_draft=2, occurrence="latest") == [40, 41]


def test_the_paper_preset_grows_with_the_match() -> None:
    """min(40, 1 + 4 x match), the root's place included; a match of one token is enough."""
    prompt = [*range(1, 60)]
    assert drafted([*prompt, 70], [10], preset="paper") == [11, 12, 13, 14]
    assert len(drafted([*prompt, 70], [10, 11, 12], preset="paper")) == 12
    assert len(drafted([*prompt, 70], [*range(1, 20)], preset="paper")) == 39
    assert len(drafted([*prompt, 70], [10, 11, 12], preset="paper", max_draft=5)) == 4
    assert drafted([*prompt, 70], [71], preset="paper") == []
    # No climb: the earliest place is kept although little follows it.
    assert drafted([5, 6, 7, 8, 9, 1, 2], [2], preset="paper") == [2]


def test_media_are_neither_crossed_nor_drafted() -> None:
    prompt = [1, 2, 3, 4, 5, IMAGE, IMAGE, 6, 7, 8, 9, 50, 51, 52, 53]
    assert drafted(prompt, [1, 2, 3, 4, 5], max_draft=4) == []
    assert drafted([*prompt, 4], [5, 6, 7, 8, 9], max_draft=2) == []
    assert drafted([*prompt, 4, 5], [6, 7, 8, 9], max_draft=2, min_match=4) == [50, 51]


def test_nothing_is_drafted_past_an_end() -> None:
    assert drafted([*SPAN[:6], END, 7, 8], SPAN[:5], max_draft=5) == [6, END]


def test_budgets_cut_and_proposing_changes_nothing() -> None:
    session = open_session(Sam(vocab_size=VOCAB), [*SPAN, 50, 1, 2, 3, 4])
    prefix = ints([*SPAN, 50, 1, 2, 3, 4, 5])
    assert session.propose(prefix, 1).tokens.tolist() == [6]
    assert len(session.propose(prefix, 0)) == 0
    first, again = session.propose(prefix, 9), session.propose(prefix, 9)
    assert first.tokens.tolist() == again.tokens.tolist()
    assert first.scores is not None
    assert (np.diff(first.scores) < 0).all()


# Fallback


def test_a_fallback_drafts_where_no_match_is_long_enough() -> None:
    drafter = Sam(vocab_size=VOCAB, fallback="prompt_lookup", min_match=5)
    assert drafter.fixed_budget == 40
    short, long = [*SPAN, 50, 2, 3, 4], [*SPAN, 50, 1, 2, 3, 4]
    sessions = [open_session(drafter, prompt) for prompt in (short, long)]
    asks = [
        Ask(session, ints([*prompt, 5]), 3)
        for session, prompt in zip(sessions, (short, long), strict=True)
    ]
    trees = drafter.propose_many(asks)
    assert [tree.tokens.tolist() for tree in trees] == [[6, 7, 8], [6, 7, 8]]
    names = [[tree.origin_names[at] for at in tree.origins] for tree in trees]  # type: ignore[union-attr]
    assert names == [["prompt_lookup"] * 3, ["sam"] * 3]
    for ask, tree in zip(asks, trees, strict=True):
        alone = ask.session.propose(ask.prefix, ask.budget)
        assert alone.tokens.tolist() == tree.tokens.tolist()
        assert alone.origins.tolist() == tree.origins.tolist()  # type: ignore[union-attr]


def test_a_fallbacks_needs_and_memory_are_the_drafters() -> None:
    drafter = Sam(vocab_size=VOCAB, fallback="recap")
    assert drafter.needs == make_drafter("recap", vocab_size=VOCAB).needs
    assert (drafter.fixed_budget, drafter.extra_nodes) == (63, 4)
    session = open_session(drafter, [1, 2], scope="a")
    show(session, [1, 2, 3], [4])
    assert drafter.is_warm("a")
    tree = session.propose(ints([1, 2, 3, 4]), 63)
    assert tree.origin_names == ("sam", "recap", "suffix")
    drafter.reset()
    assert not drafter.is_warm("a")


# Corpus


def corpus_at(folder: Path, *documents: list[int]) -> str:
    write_corpus(folder, corpus_of([ints(each) for each in documents]), tokenizer="none")
    return str(folder)


def test_a_corpus_answers_where_its_match_is_five_tokens_longer(tmp_path: Path) -> None:
    folder = corpus_at(tmp_path, [*range(1, 40)], [60, 61, 62])
    text = [*range(10, 20)]
    assert drafted([70], text, max_draft=2, corpus=folder) == [20, 21]  # 10 - 5 reaches 5
    assert drafted([70], text[1:], max_draft=2, corpus=folder) == []
    assert drafted([70], text[5:], max_draft=2, corpus=folder, corpus_handicap=0) == [20, 21]
    own = [*range(15, 20), 80, 81]
    assert drafted(own, text, max_draft=2, corpus=folder) == [80, 81]  # ties go to the request
    assert drafted(own, [9, *text], max_draft=2, corpus=folder) == [20, 21]


def test_documents_and_media_end_a_match_in_the_corpus(tmp_path: Path) -> None:
    folder = corpus_at(tmp_path, [1, 2, 3], [4, 5, 6, 7, 8])
    options = {"corpus": folder, "corpus_handicap": 0, "min_match": 2, "max_draft": 2}
    assert drafted([70], [2, 3], **options) == []  # type: ignore[arg-type]
    assert drafted([70], [2, 3, 4, 5], **options) == [6, 7]  # type: ignore[arg-type]
    assert drafted([70, 5, IMAGE], [6], **options) == []  # type: ignore[arg-type]


def test_a_corpus_survives_the_disk(tmp_path: Path) -> None:
    corpus = read_corpus(corpus_at(tmp_path, [1, 2], [], [3]), vocab_size=VOCAB)
    assert [each.tolist() for each in corpus.documents()] == [[1, 2], [3]]


def spoil(folder: Path, tokens: object, starts: object) -> None:
    from eyespan.artifacts import write_artifact

    write_artifact(
        folder,
        kind="text corpus",
        about={},
        tensors={"tokens": np.array(tokens), "starts": np.array(starts)},
    )


@pytest.mark.parametrize(
    ("tokens", "starts", "found"),
    [
        (ints([1, 2]), ints([1]), "one behind the other"),
        (ints([1, 2]), ints([0, 2]), "one behind the other"),
        (ints([1, 2]), ints([]), "one behind the other"),
        (ints([]), ints([]), "it holds 0 tokens"),
        (ints([1, -2]), ints([0]), "ids outside"),
        (ints([1, VOCAB]), ints([0]), "ids outside the target's 100"),
        (np.array([1.0]), ints([0]), "two lists of whole numbers"),
        (ints([[1]]), ints([0]), "two lists of whole numbers"),
    ],
)
def test_a_damaged_corpus_is_refused(
    tmp_path: Path, tokens: object, starts: object, found: str
) -> None:
    spoil(tmp_path, tokens, starts)
    with pytest.raises(InputError, match=found) as refused:
        Sam(vocab_size=VOCAB, corpus=str(tmp_path))
    assert "eyespan corpus build" in refused.value.todo


def test_a_missing_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no readable manifest\.json"):
        Sam(vocab_size=VOCAB, corpus=str(tmp_path / "none"))


def test_the_verb_builds_what_the_drafter_reads(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The total is 12.50 <image> <|im_end|>")
    lines = [json.dumps({"text": "The total is 13.50"}), "", json.dumps({"text": ""})]
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    out = tmp_path / "corpus"
    done = shell("corpus", "build", tmp_path / "a.txt", tmp_path / "b.jsonl", "--out", out)
    assert done.code == 0, done.err
    assert "2 documents" in done.err
    corpus = read_corpus(out, vocab_size=1 << 21)
    from tokenizers import Tokenizer

    from eyespan.demo import MODEL_DIR

    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    texts = [tokenizer.decode(ids.tolist()) for ids in corpus.documents()]
    assert texts[1] == "The total is 13.50"
    special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    assert not special & set(corpus.tokens.tolist())


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.txt", b"\xff\xfe", "can't decode"),
        ("a.jsonl", b'{"text": 3}', "line 1 is none"),
        ("a.jsonl", b"{}", "line 1 is no object with a 'text'"),
        ("a.jsonl", b"[", "line 1 is no object with a 'text'"),
        ("a.txt", b"", "no text in the files"),
        ("none/a.txt", None, "No such file"),
    ],
)
def test_the_verb_refuses_bad_files(
    shell: Shell, tmp_path: Path, name: str, content: bytes | None, found: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert found in shell.refused("corpus", "build", tmp_path / name, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_verb_refuses_a_model_without_tokenizer(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    args = ("corpus", "build", tmp_path / "a.txt", "--out", tmp_path / "out", "--model")
    assert "tokenizer" in shell.refused(*args, tmp_path / "no" / "such" / "model")


# Options


@pytest.mark.parametrize(
    ("option", "value", "range_"),
    [
        ("preset", "best", "one of official, paper"),
        ("min_match", 0, "from 1"),
        ("corpus_handicap", -1, "from 0"),
        ("max_draft", 1, "from 2 to 127"),
        ("max_draft", 128, "from 2 to 127"),
        ("occurrence", "any", "earliest, latest"),
        ("corpus", 5, "a folder's path"),
        ("fallback", "sam", "another drafter's name"),
        ("fallback", None, "another drafter's name"),
        ("fallback", "viskip", "without a gate"),
        ("max_tokens", 1, "from 2"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: object, range_: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_drafter("sam", vocab_size=VOCAB, **{option: value})
    assert range_ in refused.value.needed
    assert f"'{option}'" in refused.value.asked


def test_an_unknown_fallback_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'recap'"):
        Sam(vocab_size=VOCAB, fallback="recapp")


def test_the_config_survives_json_and_says_the_presets_values() -> None:
    drafter = Sam(vocab_size=VOCAB, preset="paper")
    config = json.loads(json.dumps(drafter.config_dict()))
    assert config["min_match"] == 1
    assert Sam(vocab_size=VOCAB, **config).config == drafter.config


def test_a_fallback_with_a_model_of_its_own_gets_to_know_the_target() -> None:
    drafter = Sam(vocab_size=VOCAB, fallback="draft_model")
    known: list[object] = []
    drafter.fallback.bind = known.append  # type: ignore[attr-defined]
    drafter.bind("the target")  # type: ignore[arg-type]
    assert known == ["the target"]
