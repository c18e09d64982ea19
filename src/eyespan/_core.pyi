# Written by scripts/write_stub.py from the compiled module; change cpp/bindings.
"""The compiled core: prediction memory, tree search, suffix automaton, packing."""

import enum
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

ROW_SIZE: int = 8

MAX_PACK: int = 128

TOKEN_LIMIT: int = 2097152

class TokenSet:
    """Ids that are never text (media), or that end an answer. Immutable."""

    def __init__(self, vocab_size: int, ids: Sequence[int]) -> None:
        """Ids must lie in [0, 2^21); vocab_size only sizes the bitmap."""

    def __contains__(self, token: int) -> bool: ...
    def __len__(self) -> int: ...

class RowMap:
    """Prediction rows under the last `order` text tokens: RECAP's U, C and G.
    Holds the `max_rows` most recently written keys.
    """

    def __init__(self, *, order: int, max_rows: int) -> None: ...
    @property
    def order(self) -> int: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes allocated, everything counted."""

    def __len__(self) -> int: ...
    def put(
        self, tokens: Sequence[int], ids: NDArray[numpy.int32], logits: NDArray[numpy.float32]
    ) -> bool:
        """Writes the softmax of the 8 best logits; False, and nothing written, when they are
        not finite.
        """

    def get(
        self, tokens: Sequence[int]
    ) -> tuple[NDArray[numpy.int32], NDArray[numpy.float32], float] | None:
        """(ids [8], probabilities [8], confidence) under these tokens, or None."""

    def get_many(
        self, keys: NDArray[numpy.uint64]
    ) -> tuple[
        NDArray[numpy.uint64], NDArray[numpy.int32], NDArray[numpy.float32], NDArray[numpy.float32]
    ]:
        """The rows that exist among `keys`, in their order."""

    def time_lookups(self, keys: NDArray[numpy.uint64]) -> tuple[float, float]:
        """Nanoseconds a look-up that reads the whole row: (one after the other, many at once)."""

    def clear(self) -> None:
        """Forgets all rows in O(1)."""

    def export_rows(
        self,
    ) -> tuple[
        NDArray[numpy.uint64], NDArray[numpy.int32], NDArray[numpy.float32], NDArray[numpy.float32]
    ]:
        """(keys, ids, probabilities, confidences), least recently written first."""

    def import_rows(
        self,
        keys: NDArray[numpy.uint64],
        ids: NDArray[numpy.int32],
        probs: NDArray[numpy.float32],
        confidences: NDArray[numpy.float32],
    ) -> None:
        """Replaces the content by exported rows, or raises ValueError and changes nothing."""

    def check_integrity(self) -> str:
        """The first broken rule, or ''."""

def pack_key(tokens: Sequence[int]) -> int:
    """The 64-bit key of 1 to 3 tokens, the newest last."""

class Fusion(enum.Enum):
    """How the rows that answer one context are weighted."""

    entropy = 0

    fixed_prior = 1

    no_prior = 2

    uniform = 3

    gate = 4

    backoff = 5

class Occurrence(enum.Enum):
    """Which earlier occurrence of a match is continued."""

    latest = 0

    earliest = 1

class ProposeRules:
    """Rules of a proposal; immutable."""

    def __init__(
        self,
        *,
        fusion: Fusion = Fusion.entropy,
        priors: Sequence[float] = [0.7, 0.2, 0.1],
        eta: Sequence[float] = [0.68, 0.63, 0.5, 0.43, 0.4, 0.38],
        width: int = 8,
        depth: int = 10,
        shape: Sequence[int] = [],
        suffix_inside_budget: bool = False,
    ) -> None:
        """An empty `shape` searches best first; else it counts the children of each node of
        a static tree in breadth-first order, root first.
        """

def token_recycling_shape() -> list[int]:
    """The static tree of Token Recycling: 80 nodes, depth 6, as a `shape`."""

class Memory:
    """The maps of one request: a shared U, its own C and G or None."""

    def __init__(self, u: RowMap, c: RowMap | None = None, g: RowMap | None = None) -> None: ...
    def seed(
        self,
        prompt: NDArray[numpy.int32],
        positions: NDArray[numpy.int32],
        row_ids: NDArray[numpy.int32],
        row_logits: NDArray[numpy.float32],
        media: TokenSet,
        *,
        contexts: bool = False,
    ) -> None:
        """Prefill: the first occurrence of each text token writes U, with `contexts` also C
        and G. Rows are [m, K], descending, at ascending `positions` of the prompt.
        """

    def refresh(
        self,
        history: NDArray[numpy.int32],
        tokens: NDArray[numpy.int32],
        parents: NDArray[numpy.int32],
        row_ids: NDArray[numpy.int32],
        row_logits: NDArray[numpy.float32],
        media: TokenSet,
    ) -> None:
        """Every node of a packed tree writes its row [n, K] under its own path context; the
        first occurrence of a key wins. `history` was committed before the root, oldest
        first; its last two tokens count.
        """

    def has_row(self, history: NDArray[numpy.int32], media: TokenSet) -> bool:
        """Whether any map answers after `history`."""

    def propose(
        self,
        history: NDArray[numpy.int32],
        rules: ProposeRules,
        budget: int,
        media: TokenSet,
        eos: TokenSet,
        *,
        continuation: NDArray[numpy.int32] | None = None,
        continuation_mass: float = 1.0,
        fallback_ids: NDArray[numpy.int32] | None = None,
        fallback_logits: NDArray[numpy.float32] | None = None,
    ) -> tuple[
        NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.float32], NDArray[numpy.int32]
    ]:
        """(tokens, parents, scores, origins), each [n], of a draft tree after `history`,
        whose last three tokens count, the root being the newest. A parent comes before its
        children, -1 hangs from the root; origin 1 marks nodes that only the continuation
        proposed. `fallback` rows [r, K], at most three, stand in at the root when no map
        answers there.
        """

def pack(
    tokens: NDArray[numpy.int32],
    parents: NDArray[numpy.int32],
    scores: NDArray[numpy.float32] | None,
    root_token: int,
) -> tuple[
    NDArray[numpy.int32],
    NDArray[numpy.int32],
    NDArray[numpy.int32],
    NDArray[numpy.uint64],
    NDArray[numpy.int32],
]:
    """(tokens [n], parents [n], depths [n], ancestors [n, 2], order [n - 1]): root first, then
    depth-first, best child first by score; ties, and trees without scores, in the given
    order. Bit j of ancestors[i] says that j is i or above it; order[i] is the draft node
    behind packed node i + 1. At most 127 nodes besides the root. Raises ValueError for a
    malformed tree.
    """

class SuffixAutomaton:
    """Longest earlier match of the end of a growing text. Media are
    barriers that no match crosses.
    """

    def __init__(self, *, max_tokens: int) -> None:
        """At `max_tokens` the most recent half is kept."""

    def __len__(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    def append(self, token: int) -> None:
        """Appends one text token."""

    def barrier(self) -> None:
        """No match or continuation crosses this place."""

    def extend(self, tokens: NDArray[numpy.int32], media: TokenSet) -> None:
        """Appends tokens; each run of media is one barrier."""

    def match(
        self,
        occurrence: Occurrence = Occurrence.latest,
        *,
        extra: NDArray[numpy.int32] | None = None,
        media: TokenSet | None = None,
    ) -> tuple[int, int]:
        """(length, position of its last token) of the longest suffix seen before, (0, -1)
        for none; as if `extra` had been appended, which it is not.
        """

    def continuation(
        self,
        length: int,
        end: int,
        max_tokens: int,
        *,
        extra: NDArray[numpy.int32] | None = None,
        media: TokenSet | None = None,
    ) -> NDArray[numpy.int32]:
        """What followed a match in the text and `extra` behind it, up to a barrier or the end."""

    def check_integrity(self) -> str:
        """The first broken rule, or ''."""
