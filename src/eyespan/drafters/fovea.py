"""FOVEA: a trained drafter that looks at the picture only where the current word needs it.

Projected visual tokens are stored once as keys and values. A node near the root asks this *visual
memory* with its own state, takes few entries, and what they say corrects the state that scores the
node's candidates. Nothing else changes: tokens, mask, positions and cached keys stay as they are,
so the context is never encoded again.

Sections, equations and tables are the paper's. It contradicts itself in three places; each is a
field: how many entries are taken (`retrieval`), from where the loss weights count (`weight_index`)
and which state is aligned (`hidden_state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from eyespan.drafters._attention import KeyValues
from eyespan.drafters._head import (
    Block,
    Condition,
    DraftHead,
    HeadConfig,
    Hidden,
    RmsNorm,
    TrainState,
    count_parameters,
    need,
    rotary,
)
from eyespan.drafters._trained import Context, Trained
from eyespan.drafters._unroll import Drafted, Score, unroll
from eyespan.drafters._visual_memory import (
    MAX_DEPTH,
    Query,
    Retrieval,
    Select,
    VisualMemory,
    readout,
    select,
)
from eyespan.errors import InputError
from eyespan.train import losses
from eyespan.types import Ints

if TYPE_CHECKING:
    from eyespan.train.batch import TrainBatch

Interface = Literal["correction", "correction_rebuild", "fixed_prefix", "dynamic_insertion"]
WeightIndex = Literal["draft_offset", "response"]
HiddenState = Literal["corrected", "uncorrected"]

PUBLISHED_PARAMETERS = {
    "llava-1.6-vicuna-7b": 0.621e9,
    "llava-1.6-vicuna-13b": 0.962e9,
    "qwen2.5-vl-7b": 0.583e9,
}
"""Trainable parameters that section 4 reports. The parts that the text names do not add up to them:
with d_k = d_u = d_h, two blocks of LLaVA-7B give 0.50 billion, three of LLaVA-13B 1.10."""

LAYERS = {"llava-1.6-vicuna-13b": 3}
"""Blocks by backbone (section 4); all others have two."""

_INNER = 512


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


class FoveaHead(DraftHead):
    """Blocks, visual memory, correction.

    Args:
        config: see `FoveaConfig`.
    """

    method: ClassVar[str] = "fovea"

    def __init__(self, config: FoveaConfig) -> None:
        super().__init__(config)
        self.config = config
        size = config.hidden_size
        self.join = nn.Linear(2 * size, size, bias=False)
        self.blocks = nn.ModuleList(Block(config, slot) for slot in range(config.layers))
        self.norm = RmsNorm(size, config.rms_eps)
        self.sees = config.looks
        if config.looks:
            self.memory = VisualMemory(config.hidden_size, depth_embedding=config.depth_embedding)
        if config.correction:
            self.correct = _two_layers(2 * size, size)
            if config.gate:
                self.open = _two_layers(2 * size, 1)

    def look(self, visual: Tensor, visual_mask: Tensor) -> Condition:
        """The visual memory, at most `memory_limit` evenly spaced entries of it."""
        if not self.config.looks:
            return {}
        count, limit = visual.shape[1], self.config.memory_limit
        if count > limit:
            kept = torch.arange(limit, device=visual.device) * count // limit
            visual, visual_mask = visual[:, kept], visual_mask[:, kept]
        return self.memory.store(visual.to(self.dtype), visual_mask)

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        """A linear map of [token's embedding; state before it]."""
        x: Tensor = self.join(torch.cat([embeds, features], dim=-1))
        return x

    def stack(self, x: Tensor, positions: Tensor, attend: Any) -> Hidden:
        """All blocks."""
        turn = rotary(positions, self.config)
        first = x = self.blocks[0](x, turn, attend)
        for block in self.blocks[1:]:
            x = block(x, turn, attend)
        return Hidden(x, first)

    def feedback(self, last: Tensor) -> Tensor:
        """The uncorrected state behind the norm, which is what stands for the target's."""
        fed: Tensor = self.norm(last)
        return fed

    def scores(
        self, last: Tensor, depth: int, condition: Condition, generator: torch.Generator | None
    ) -> Tensor:
        """Logits of nodes, corrected near the root."""
        return self.through_lm_head(self.scoring(last, depth, condition, generator))

    def scoring(
        self,
        last: Tensor,
        depth: int,
        condition: Condition,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """[B, n, D] the state that the LM head reads (eq. 8-9)."""
        scoring: Tensor
        if not self.config.corrects or depth > self.config.correct_depth:
            scoring = self.norm(last)
            return scoring
        seen = torch.cat([last, self.evidence(last, depth, condition, generator)], dim=-1)
        change = self.correct(seen)
        if self.config.gate:
            change = torch.sigmoid(self.open(seen)) * change
        scoring = self.norm(last + change)
        return scoring

    def evidence(
        self,
        last: Tensor,
        depth: int,
        condition: Condition,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """[B, n, D] what nodes [B, n, D] of one depth read from the memory, zero without one."""
        return readout(self.attention(last, depth, condition, generator), condition["values"])

    def attention(
        self,
        last: Tensor,
        depth: int,
        condition: Condition,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """[B, n, N] weights of memory entries, zero at those not taken (eq. 4-7)."""
        config = self.config
        asking = self.memory.ask(last, depth, condition, config.query)
        scores = asking @ condition["keys"].transpose(1, 2) * config.hidden_size**-0.5
        scores = scores.expand(-1, last.shape[1], -1)
        lots = None
        if config.query == "random":
            lots = torch.rand(scores.shape, generator=generator, device=scores.device)
        return select(scores, condition["mask"], config.select(), lots)

    def front(self, condition: Condition, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Visual tokens as pairs that stand before a context: the taken entries of the memory.

        Args:
            condition: of the requests.
            weights: [B, N] as `attention` gives them for one node.

        Returns:
            [B, s, D] block inputs, and [B, s] which of them are there.
        """
        taken = weights > 0
        count = int(taken.sum(1).max()) if taken.numel() else 0
        order = torch.argsort((~taken).to(torch.int8), dim=1, stable=True)[:, :count]
        values = condition["values"]
        picked = values.gather(1, order[..., None].expand(-1, -1, values.shape[-1]))
        return picked, taken.gather(1, order)

    def static_weights(self, condition: Condition) -> Tensor:
        """[B, N] the entries that the mean visual token takes."""
        asking = self.memory.ask(condition["mean"], 0, condition, "static_image")
        scores = asking @ condition["keys"].transpose(1, 2) * self.config.hidden_size**-0.5
        return select(scores, condition["mask"], self.config.select())[:, 0]

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        """The objective of section 3.5 (eq. 10-19) over chains of `steps` drafts."""
        config = self.config
        memory = self.look(batch.visual, batch.visual_mask)
        front = None
        if config.interface in ("fixed_prefix", "dynamic_insertion"):
            front = self.front(memory, self.static_weights(memory))
        chains = list(unroll(self, batch, memory, config.steps, prefix=front))
        weights = [self._weights(batch, drafted) for drafted in chains]
        total = sum((each.sum() for each in weights), start=batch.final.new_zeros(()).float())
        terms: dict[str, Tensor] = {}
        score = Score(config.width)
        for drafted, each in zip(chains, weights, strict=True):
            self._add(terms, batch, drafted, each, total, memory, state, score)
        loss = sum(
            (factor * terms[name] for name, factor in self._factors().items()),
            start=total.new_zeros(()),
        )
        return {"loss": loss, **{k: v.detach() for k, v in terms.items()}, **score()}

    def _factors(self) -> dict[str, float]:
        """Terms that count, with their factors."""
        c = self.config
        factors = {
            "hidden": c.lambda_hidden * c.beta_hidden,
            "mid": c.lambda_hidden * c.beta_mid,
            "kl": c.lambda_kl,
            "ce": c.lambda_token * c.beta_ce,
            "margin": c.lambda_token * c.beta_margin,
        }
        return {name: factor for name, factor in factors.items() if factor > 0}

    def _add(
        self,
        terms: dict[str, Tensor],
        batch: TrainBatch,
        drafted: Drafted,
        weights: Tensor,
        total: Tensor,
        memory: Condition,
        state: TrainState,
        score: Score,
    ) -> None:
        """Add one step's share to every term."""
        c, wanted = self.config, self._factors()
        scoring = self.scoring(drafted.last, drafted.step, memory, state.generator)
        logits = self.through_lm_head(scoring)
        teacher = drafted.teacher(batch)
        found: dict[str, Tensor] = {}
        if "hidden" in wanted:
            aligned = scoring if c.hidden_state == "corrected" else self.norm(drafted.last)
            found["hidden"] = losses.squared_error(
                aligned, drafted.pick(batch.final), weights, total
            )
        if "mid" in wanted:
            if batch.mid is None:
                raise InputError(
                    "training 'fovea'",
                    found="no intermediate states in the captured data",
                    needed="beta_mid > 0 aligns the first block with them (FOVEA table 8)",
                    todo="Capture them (store.mid = true), or set beta_mid = 0.",
                )
            found["mid"] = losses.squared_error(
                drafted.first, drafted.pick(batch.mid), weights, total
            )
        if "kl" in wanted:
            found["kl"] = losses.kl(logits, teacher, weights, total)
        if "ce" in wanted:
            found["ce"] = losses.cross_entropy(logits, teacher.best, weights, total)
        if "margin" in wanted:
            found["margin"] = losses.candidate_margin(
                logits, teacher.best, weights, total, width=c.width, margin=c.margin
            )
        for name, value in found.items():
            terms[name] = terms[name] + value if name in terms else value
        score.count(logits, teacher.best, drafted.rows)

    def _weights(self, batch: TrainBatch, drafted: Drafted) -> Tensor:
        """[B, r] w_n of eq. 10, zero in the padding."""
        if self.config.weight_index == "draft_offset":
            n = torch.full_like(drafted.at, drafted.step + 1)
        else:
            n = drafted.pick(batch.supervise.long().cumsum(1))
        decayed = torch.exp(-(n.float() - 1) / self.config.gamma)
        # An answer's hundredth token weighs e^-99, which float32 rounds to nothing: so says eq. 10.
        return decayed * drafted.rows


def _two_layers(wide: int, out: int) -> nn.Sequential:
    """Two biased linear layers with SiLU between them (appendix C)."""
    return nn.Sequential(nn.Linear(wide, _INNER), nn.SiLU(), nn.Linear(_INNER, out))


def describe(config: FoveaConfig) -> dict[str, int]:
    """Trainable parameters of each part, and "total"; allocates nothing."""
    return count_parameters(FoveaHead, config)


class Fovea(Trained[FoveaConfig, FoveaHead]):
    """The drafter; see `Trained` for arguments."""

    name: ClassVar[str] = "fovea"
    config_type: ClassVar[type[HeadConfig]] = FoveaConfig
    head_type: ClassVar[type[DraftHead]] = FoveaHead

    @property
    def keeps_inputs(self) -> bool:
        """Contexts that are encoded again need their inputs."""
        return self.config.interface in ("correction_rebuild", "dynamic_insertion")

    def open(self, context: Context, x: Tensor, positions: Tensor) -> None:
        """Fill a new context, behind the visual prefix where there is one."""
        if self.config.interface == "fixed_prefix":
            front, _ = self.head.front(
                context.condition, self.head.static_weights(context.condition)
            )
            x, positions = self._behind(front[0], x, positions)
        super().open(context, x, positions)

    def catch_up(self, contexts: Sequence[Context], prefixes: Sequence[Ints]) -> KeyValues:
        """Encode what is new; interfaces without a stable context then encode everything again."""
        fresh = [context.encoded < len(prefix) for context, prefix in zip(
            contexts, prefixes, strict=True)]  # fmt: skip
        cache = super().catch_up(contexts, prefixes)
        if not self.keeps_inputs or not any(fresh):
            return cache
        xs, positions = [], []
        for context, is_fresh in zip(contexts, fresh, strict=True):
            assert context.x is not None
            assert context.positions is not None
            x, at = context.x, context.positions
            if not is_fresh:
                xs.append(x[:0])
                positions.append(at[:0])
                continue
            if self.config.interface == "dynamic_insertion":
                weights = self.head.attention(context.root, 0, context.condition)[:, 0]
                front, _ = self.head.front(context.condition, weights)
                x, at = self._behind(front[0], x, at)
            context.cache.clear()
            context.x = context.positions = None
            xs.append(x)
            positions.append(at)
        cache = self.encode(contexts, xs, positions)
        for context in contexts:
            assert context.x is not None
            assert context.positions is not None
            text = context.positions >= 0
            context.x, context.positions = context.x[text], context.positions[text]
        return cache

    def generator(self, lengths: Sequence[int]) -> torch.Generator | None:
        """Lots of the "random" query depend on the seed and on how far the sequences are."""
        if self.config.query != "random":
            return None
        made = torch.Generator(device=self._device)
        made.manual_seed(self.config.seed * 1_000_003 + sum(lengths))
        return made

    @staticmethod
    def _behind(front: Tensor, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Put `front` [s, D] before pairs, at positions -s to -1."""
        before = torch.arange(-len(front), 0, device=positions.device)
        return torch.cat([front, x]), torch.cat([before, positions])
