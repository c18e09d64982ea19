"""FOVEA's switches (`fovea.py`): every choice of the paper, its controls and its ablations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from eyespan.drafters._head_config import HeadConfig, need
from eyespan.drafters._visual_memory import MAX_DEPTH, Query, Retrieval, Select

Interface = Literal["correction", "correction_rebuild", "fixed_prefix", "dynamic_insertion"]
WeightIndex = Literal["draft_offset", "response"]
HiddenState = Literal["corrected", "uncorrected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoveaConfig(HeadConfig):
    """Every switch of the method. Defaults are the paper's.

    Attributes:
        retrieval: how many memory entries a node takes: "cumulative_mass" (section 3.3: the fewest
            that hold `mass`, within k_min and k_max), "top_k" (appendix B: always `top_k`) or
            "dense" (all, a control of table 7).
        query: what asks: the node's "state" with its depth, or a control of table 7: "state_only"
            (no depth), "query_agnostic" (one learned query, the root's depth embedding),
            "static_image" (the mean visual token) or "random" (which entries is drawn by lot, their
            weights stay the state's).
        mass, k_min, k_max: rho, K_min and K_max of eq. 6.
        top_k: K_r of appendix B.
        correct_depth: deepest node that is corrected; the root has depth 0.
        correction: off, nodes are scored from the uncorrected state (table 2).
        depth_embedding: whether the query knows its depth (table 2).
        gate: whether the correction is gated (table 2).
        interface: how pictures reach a node (table 3). "correction"; "correction_rebuild": the
            same, but every round encodes the whole context again; "fixed_prefix": no correction,
            the entries that the mean visual token takes stand before the context; and
            "dynamic_insertion": no correction, the entries that the newest root takes stand there,
            and the context is encoded again behind them every round.
        memory_limit: most memory entries; of larger pictures evenly spaced ones are kept.
        steps: tokens of a chain in training; the first two train both corrected depths. The paper
            does not say.
        weight_index: n of eq. 10 counts from a draft block's first token ("draft_offset"), or from
            the answer's first token ("response", as the text reads literally; with gamma 1 only
            an answer's first few tokens then count).
        gamma: gamma_w of eq. 10.
        hidden_state: which state eq. 13 aligns: "corrected", or "uncorrected" as table 8 says.
        lambda_hidden, lambda_kl, lambda_token: of eq. 19.
        beta_hidden, beta_mid: of eq. 13; beta_mid needs the intermediate states.
        beta_ce, beta_margin, margin: of eq. 18. A factor of 0 drops its term (table 2).
        seed: of the "random" query.
    """

    DECODING: ClassVar[frozenset[str]] = HeadConfig.DECODING | {
        "retrieval", "query", "mass", "k_min", "k_max", "top_k", "correct_depth", "interface",
        "memory_limit", "seed",
    }  # fmt: skip

    layers: int = 2
    retrieval: Retrieval = "cumulative_mass"
    query: Query = "state"
    mass: float = 0.8
    k_min: int = 32
    k_max: int = 256
    top_k: int = 16
    correct_depth: int = 1
    correction: bool = True
    depth_embedding: bool = True
    gate: bool = True
    interface: Interface = "correction"
    memory_limit: int = 8192
    steps: int = 3
    weight_index: WeightIndex = "draft_offset"
    gamma: float = 1.0
    hidden_state: HiddenState = "corrected"
    lambda_hidden: float = 1.0
    lambda_kl: float = 0.2
    lambda_token: float = 1.0
    beta_hidden: float = 1.0
    beta_mid: float = 0.1
    beta_ce: float = 1.5
    beta_margin: float = 0.5
    margin: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field.
        """
        HeadConfig.__post_init__(self)
        for name, choices in _CHOICES.items():
            need(self, name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        need(self, "mass", 0 < self.mass <= 1, "above 0, at most 1")
        need(self, "k_min", 1 <= self.k_min <= self.k_max, f"from 1 to k_max={self.k_max}")
        for name in ("top_k", "memory_limit", "steps"):
            need(self, name, getattr(self, name) >= 1, "at least 1")
        need(self, "correct_depth", 0 <= self.correct_depth <= MAX_DEPTH, f"from 0 to {MAX_DEPTH}")
        need(self, "gamma", self.gamma > 0, "above 0")
        for name in _FACTORS:
            need(self, name, getattr(self, name) >= 0, "at least 0")
        agnostic = self.query == "query_agnostic" and not self.depth_embedding
        need(self, "query", not agnostic, "another one without depth_embedding, whose root it asks")

    def select(self) -> Select:
        """The rule of how many entries are taken."""
        return Select(self.retrieval, self.mass, self.k_min, self.k_max, self.top_k)

    @property
    def looks(self) -> bool:
        """Whether there is a visual memory."""
        return self.correction or not self.interface.startswith("correction")

    @property
    def corrects(self) -> bool:
        """Whether any node is corrected."""
        return self.correction and self.interface.startswith("correction")


_CHOICES = {
    "retrieval": get_args(Retrieval),
    "query": get_args(Query),
    "interface": get_args(Interface),
    "weight_index": get_args(WeightIndex),
    "hidden_state": get_args(HiddenState),
}
_FACTORS = (
    "lambda_hidden", "lambda_kl", "lambda_token", "beta_hidden", "beta_mid", "beta_ce",
    "beta_margin", "margin",
)  # fmt: skip
