"""The axes of the grid, and which of their values exclude each other and why: one table each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from eyespan.drafters import DRAFTERS, TRAINED
from eyespan.errors import (
    ConfigError,
    EyespanError,
    InputError,
    UnsupportedRequest,
    UnsupportedTarget,
)
from eyespan.testing import EVERY_SEEING, EVERY_TEXT, FILMED, SEEING, WATCHING
from tests.parity.steps import WRAPPED

AXES: dict[str, tuple[str, ...]] = {
    "drafter": (*DRAFTERS, "random", "oracle"),
    "family": (*EVERY_TEXT, *EVERY_SEEING),
    "choice": (
        "greedy", "cold", "hot", "top_k", "top_p", "min_p", "typical", "position", "generator",
    ),
    "shape": (
        "none", "repetition", "ngram", "min_new", "bad_words", "bias", "forced_end", "allowed",
        "stateful", "grammar", "guidance",
    ),
    "way": ("alone", "stream", "enabled", "ragged", "joining"),
    "images": ("0", "1", "2", "twins", "video", "mixed"),
    "stop": ("length", "eos", "string", "criteria", "context"),
    "limit": ("1", "7", "24"),
    "cache": ("grows", "below", "at", "static", "kept", "chat"),
    "budget": ("0", "1", "4", "auto", "fixed"),
    "verification": ("walk", "rejection"),
}  # fmt: skip
"""What may be combined with what.

Way is how a request comes: alone, read token by token, through an enabled model's `generate()`,
as the first of three ragged rows, or as one of four that share two rows. "2" are pictures of two
sizes where the family takes those, "twins" two of one size, "mixed" are a picture and a video.
Below and at are lengths of the text against the tiny windows; static, kept (from an earlier prompt)
and chat bring a cache along. What holds exactly under rejection says `drawn.py`.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the grid; the defaults are what a refused pair is surrounded by."""

    drafter: str = "recap"
    family: str = "llama"
    choice: str = "greedy"
    shape: str = "none"
    way: str = "alone"
    images: str = "0"
    stop: str = "length"
    limit: str = "7"
    cache: str = "grows"
    budget: str = "fixed"
    verification: str = "walk"

    @property
    def id(self) -> str:
        """Readable, and all there is to know."""
        return ".".join(asdict(self).values())

    @staticmethod
    def of(text: str) -> Case:
        """The case of an id."""
        case = Case(*text.split("."))
        for axis, value in asdict(case).items():
            assert value in AXES[axis], f"{axis} {value}: known are {AXES[axis]}"
        return case

    @property
    def rule(self) -> Rule | None:
        """What excludes it."""
        values = asdict(self)
        return next((rule for rule in RULES if rule.forbids(values)), None)


@dataclass(frozen=True, slots=True)
class Rule:
    """Values that exclude each other.

    Attributes:
        when: axis -> values; all axes must match.
        why: the reason.
        error: what the request raises before its first forward; None where nobody can ask for it.
        says: part of its text.
        around: values of other axes that are not the defaults, which another rule forbids here.
    """

    when: dict[str, tuple[str, ...]]
    why: str
    error: type[EyespanError] | None = None
    says: str = ""
    around: dict[str, str] = field(default_factory=dict)

    def forbids(self, values: dict[str, str]) -> bool:
        """Whether a (part of a) case is excluded."""
        return all(values.get(axis) in among for axis, among in self.when.items())

    def cases(self) -> list[Case]:
        """Everything that it excludes, surrounded by defaults."""
        found = [Case(**self.around)]
        for axis, values in self.when.items():
            found = [replace(case, **{axis: value}) for case in found for value in values]
        return found


FED = tuple(family for family in EVERY_SEEING if family not in SEEING)
OWN = (
    "qwen3_vl", "llava_onevision", "llava_next_video", "video_llava", "internvl", "smolvlm",
    "blip2",
)  # fmt: skip
"""Those of them that have a tiny processor all the same; SmolVLM's needs a package."""
TEXT_CHATS = tuple(family for family in FED if family not in OWN)
WINDOWS = (
    "mistral", "gemma3_text", "qwen2_windows", "olmo3", "cohere2", "llama4_text", "gemma2",
    "gpt_oss", "gemma3n_text", "aya_vision", "cohere2_vision", "gemma3", "gemma4", "paligemma2",
)  # fmt: skip
STATES = (
    "qwen3_next", "qwen3_5_text", "olmo_hybrid", "lfm2", "lfm2_moe", "falcon_h1", "bamba",
    "granitemoehybrid", "mamba2", "qwen3_5", "qwen3_5_moe", "lfm2_vl",
)  # fmt: skip
SCALED = (
    "gemma3_text", "gemma2", "gemma3n_text", "gemma3", "gemma4", "paligemma", "paligemma2",
)  # fmt: skip
"""Their embeddings are more than a table."""
HEADS = (*TRAINED, "hybrid")
DRAWING = (*TRAINED, "draft_model")
PICTURES = ("1", "2", "twins")
FILMS = ("video", "mixed")
MIXING = tuple(sorted(set(WATCHING) - {"glm4v", "glm4v_moe", "molmo2"}))
"""Stock's Molmo 2 takes pictures or videos, and GLM-4V marks both with one id."""
TOGETHER = ("ragged", "joining")

RULES = (
    Rule(
        {
            "verification": ("rejection",),
            "drafter": tuple(sorted(set(AXES["drafter"]) - set(DRAWING))),
        },
        "they do not know the probabilities of their guesses",
        UnsupportedRequest,
        "not drawn from a distribution",
        {"choice": "hot"},
    ),
    Rule(
        {"verification": ("rejection",), "choice": ("greedy",)},
        "nothing is drawn",
        UnsupportedRequest,
        "a greedy request",
        {"drafter": "draft_model"},
    ),
    Rule(
        {"verification": ("rejection",), "choice": ("position",)},
        "a position has one number and rejection takes several",
        UnsupportedRequest,
        "rng='position'",
        {"drafter": "draft_model"},
    ),
    Rule({"shape": ("guidance",)}, "it needs a second answer", ConfigError, "guidance_scale"),
    Rule(
        {"choice": ("generator",), "way": ("ragged",)},
        "numbers would depend on the neighbours",
        ConfigError,
        "generator",
    ),
    Rule(
        {"family": EVERY_TEXT, "images": PICTURES}, "it cannot see", InputError, "reads text only"
    ),
    Rule(
        {"drafter": HEADS, "family": (*SCALED, "mamba2")},
        "heads borrow a table and the shape of its attention",
        UnsupportedTarget,
        "a trained drafter for",
    ),
    Rule(
        {"drafter": HEADS, "family": ("phi4_multimodal",)},
        "its tower fails for good once states were asked for",
        UnsupportedTarget,
        "a drafter that reads states",
    ),
    Rule(
        {"drafter": ("fovea", "hybrid"), "family": ("mllama",)},
        "pictures never become tokens",
        UnsupportedTarget,
        "a drafter that reads visual tokens",
    ),
    Rule(
        {"drafter": ("viskip",), "family": ("mamba2",)},
        "there is no attention to look at",
        UnsupportedTarget,
        "attention on picture positions",
    ),
    Rule(
        {"cache": ("static",), "family": (*WINDOWS, *STATES)},
        "windows and states of a static cache do not roll back",
        UnsupportedTarget,
        "a cache of",
    ),
    Rule(
        {"cache": ("static",), "family": ("mllama",)},
        "its slots are counted for text",
        UnsupportedRequest,
        "a static cache",
    ),
    Rule(
        {"cache": ("chat",), "family": TEXT_CHATS, "images": PICTURES},
        "tiny processors of these read text",
        InputError,
        "reads text only",
    ),
    Rule(
        {"cache": ("chat",), "family": ("blip2",)},
        "its processor has no turns",
        InputError,
        "no chat template",
    ),
    Rule(
        {"way": ("enabled",), "family": WRAPPED},
        "their generate() starts another",
        UnsupportedTarget,
        "the language model inside it",
    ),
    Rule(
        {"cache": ("chat",), "family": ("smolvlm",), "images": (*PICTURES, *FILMS)},
        "whether it takes them in turns depends on a package",
    ),
    Rule(
        {"family": tuple(sorted(set(AXES["family"]) - set(WATCHING))), "images": FILMS},
        "it takes no videos",
    ),
    Rule(
        {"family": tuple(sorted(set(WATCHING) - set(MIXING))), "images": ("mixed",)},
        "it takes one kind at a time",
    ),
    Rule(
        {"cache": ("chat",), "family": tuple(sorted(set(WATCHING) - set(FILMED))), "images": FILMS},
        "their videos come as tensors",
    ),
    Rule({"family": FED, "images": ("twins",)}, "sizes of their pictures are fixed"),
    Rule({"way": ("enabled",), "cache": ("static", "kept", "chat")}, "stock's own loop runs these"),
    Rule({"way": ("enabled",), "choice": ("position", "generator")}, "not options of generate()"),
    Rule({"way": ("enabled",), "stop": ("context",)}, "stock runs past the end of a context"),
    Rule({"cache": ("chat",), "way": TOGETHER}, "a conversation writes one answer at a time"),
    Rule({"cache": ("below", "at", "chat"), "stop": ("context",)}, "a text has one length"),
)  # fmt: skip
