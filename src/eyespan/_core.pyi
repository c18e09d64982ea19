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
    """The 64-bit key of 1 to 4 tokens, the newest last."""

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

def recycled_tree(
    matrix: NDArray[numpy.int32], root: int, media: TokenSet, budget: int
) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.float32]]:
    """(tokens, parents, scores), each [n]: the first `budget` places of that tree, filled from
    the rows [vocab, 8] of what follows each token. Media are left out with all below them;
    a node scores 2^-(sum of rank + 1) over its path, and 0 where one of them repeats a
    better sibling or comes from a row whose ids are all the same.
    """

class Memory:
    """The maps of one request: a shared U, its own C and G or None."""

    def __init__(
        self,
        u: RowMap,
        c: RowMap | None = None,
        g: RowMap | None = None,
        fourth: RowMap | None = None,
    ) -> None:
        """With a map of order 4, rows can be chosen (fusion backoff or gate) but not mixed."""

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
        first; its last three tokens count.
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
        whose last four tokens count, the root being the newest. A parent comes before its
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

    def __init__(self, *, max_tokens: int, count_depth: int = 0) -> None:
        """At `max_tokens` the most recent half is kept. Occurrences of substrings of at most
        `count_depth` tokens are counted.
        """

    def __len__(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def count_depth(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    def append(self, token: int) -> None:
        """Appends one text token."""

    def clear(self) -> None:
        """Forgets the text."""

    def text(self) -> NDArray[numpy.int32]:
        """[n] the kept text, -1 for a barrier. Appended anew it gives the same automaton."""

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
        room: int = 0,
    ) -> tuple[int, int]:
        """(length, position of its last token) of the longest suffix seen before, (0, -1)
        for none; as if `extra` had been appended, which it is not. With fewer than `room`
        tokens behind the earliest occurrence, that of a shorter suffix is taken.
        """

    def advance(
        self,
        state: int,
        length: int,
        tokens: NDArray[numpy.int32],
        *,
        media: TokenSet | None = None,
    ) -> tuple[int, int]:
        """The cursor (state, length of the match) of a reader of some other text, `tokens`
        further on; (0, 0) has read nothing. Good until the next append.
        """

    def place(
        self, state: int, length: int, occurrence: Occurrence = Occurrence.latest, *, room: int = 0
    ) -> tuple[int, int]:
        """Where a cursor's match occurred, as `match` says it."""

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

class SuffixRules:
    """Rules of a SuffixDecoding guess; immutable."""

    def __init__(
        self,
        *,
        max_factor: float = 1.0,
        max_offset: float = 0.0,
        min_prob: float = 0.1,
        max_depth: int = 24,
        tree: bool = True,
    ) -> None: ...

def guess_suffix(
    text: SuffixAutomaton,
    context: NDArray[numpy.int32],
    rules: SuffixRules,
    media: TokenSet,
    eos: TokenSet,
    budget: int,
) -> tuple[tuple[NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.float32]], float, int]:
    """((tokens, parents, scores), score, tokens matched): the continuations of the context's
    end that followed it in `text`, by how often they did, at most `budget` nodes; the score
    is the number of tokens expected to be accepted. `text` must count to `max_depth`.
    """

class WindowTrie:
    """For every token, the counted windows of what followed it."""

    def __init__(
        self, *, depth: int, max_nodes: int, trie_nodes: int = 512, touched_tries: int = 1024
    ) -> None:
        """`depth` tokens after the first of a window. Tries of more than `trie_nodes` nodes are
        squeezed at a request's end once `touched_tries` of them grew, all of them when
        `max_nodes` would be passed.
        """

    def __len__(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def max_nodes(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    def add_windows(
        self, tokens: NDArray[numpy.int32], starts: int, media: TokenSet, eos: TokenSet
    ) -> None:
        """Counts the windows that begin at the first `starts` tokens; none holds a media or an
        end id.
        """

    def end_request(self) -> None:
        """Once enough tries were touched, those over the limit lose nodes that count at most 1
        and halve the other counts.
        """

    def count(self, window: Sequence[int]) -> float:
        """How often a window was counted, squeezes taken off; 0 for none."""

    def clear(self) -> None:
        """Forgets all windows."""

    def export_nodes(
        self,
    ) -> tuple[
        NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.float32], NDArray[numpy.uint8]
    ]:
        """(tokens, parents, counts, touched), each [n]: every node, parents first, -1 above the
        first tokens.
        """

    def import_nodes(
        self,
        tokens: NDArray[numpy.int32],
        parents: NDArray[numpy.int32],
        counts: NDArray[numpy.float32],
        touched: NDArray[numpy.uint8],
    ) -> None:
        """Replaces the content by exported nodes, or raises ValueError and changes nothing."""

    def check_integrity(self) -> str:
        """The first broken rule, or ''."""

class LookaheadRules:
    """Rules of a Lookahead draft; immutable."""

    def __init__(
        self, *, nodes: int = 64, depth: int = 12, output_weight: float = 0.0001
    ) -> None: ...

def lookahead(
    input: WindowTrie,
    output: WindowTrie,
    query: NDArray[numpy.int32],
    rules: LookaheadRules,
    media: TokenSet,
    budget: int,
) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.float32]]:
    """(tokens, parents, scores) of what followed `query` in the prompt's windows and in those
    of answers, at most `budget` nodes, depth-first.
    """

class Calibration:
    """How often nodes of a source, depth and score came true."""

    def __init__(self, sources: int) -> None: ...

    DECAY: float = 0.999

    PRIOR_WEIGHT: float = 2.0

    def offered(self) -> NDArray[numpy.float64]:
        """[cells] nodes proposed, old ones faded; a copy."""

    def accepted(self) -> NDArray[numpy.float64]:
        """[cells] nodes among them that the text followed; a copy."""

    def restore(self, offered: NDArray[numpy.float64], accepted: NDArray[numpy.float64]) -> None:
        """Replaces all counts. ValueError for what are no such counts; nothing changes then."""

    def weigh(
        self,
        parents: NDArray[numpy.int32],
        scores: NDArray[numpy.float32] | None = None,
        origins: NDArray[numpy.int32] | None = None,
    ) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.float64]]:
        """(depths, cells, chances) of a proposal's nodes: 1 for children of the root, where each
        is counted, and its probability to be committed, never above its parent's. Without
        scores every guess is half believed. ValueError for what is no tree, and for scores
        that are no numbers.
        """

    def chances(self, scores: NDArray[numpy.float32], depth: int) -> NDArray[numpy.float64]:
        """[n] chances of nodes of the first source at one depth, by their scores alone."""

    def learn(
        self,
        tokens: NDArray[numpy.int32],
        parents: NDArray[numpy.int32],
        depths: NDArray[numpy.int32],
        cells: NDArray[numpy.int32],
        text: NDArray[numpy.int32],
    ) -> None:
        """Counts a whole proposal against the tokens that followed its root; nodes deeper than
        those are not counted.
        """

def best_cuts(
    chances: Sequence[NDArray[numpy.float64]],
    costs: NDArray[numpy.float64],
    *,
    price: float,
    cap: int,
    worth: float,
    margin: float,
) -> list[NDArray[numpy.int32]]:
    """Which nodes of each row of a pass to send, likeliest first: the width that brings the most
    tokens beyond what its time is worth, all rows together, or none. `costs[n]` is the
    milliseconds of a pass whose rows have n nodes each besides the root, `price` the tokens
    that a millisecond is worth.
    """
