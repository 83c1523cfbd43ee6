"""The claims of the paper as data: what it says, where our figure is from, and what to simulate for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.yamltext import parse_mapping

CLAIMS = Path(__file__).parent / "claims.yaml"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Part = Literal["claims", "sweeps"]
"""What is simulated together: what claims are judged by, or what they depend on."""


class Experiment(_Section):
    """A sweep of one of the configurations in docs/examples/paper."""

    config: str
    what: str
    """For people."""
    part: Part = "claims"
    assumes: str = ""
    """What all of its rows assume, in words, beside their settings."""
    settings: dict[str, Any] = {}
    """Dotted settings in place of the configuration's."""
    sweep: dict[str, tuple[Any, ...]] = {}
    """Swept besides what the configuration sweeps."""
    replaces_sweep: bool = False
    """``sweep`` is in place of the configuration's."""
    strategies: tuple[str, ...] = ()
    """Only these; all if empty."""


class Simulated(_Section):
    """A figure of an experiment: one value a row of it, or a mean for each of some of its settings."""

    experiment: str
    kind: Literal[
        "value",
        "ratio",
        "cut",
        "step_at",
        "flat",
        "capacity_gb",
        "density",
        "weights_gb",
        "rank_kv_gb",
        "overlap",
    ]
    """``value``: the field; ``ratio``: over that of ``than``; ``cut``: by how many percent it is below that;
    ``step_at``: ms of the longest step while ``nodes`` attention nodes are billed; ``flat``: the longest step
    with more than one of them over that with two, when the first is full; ``capacity_gb``: KV of ``nodes``
    GPUs of attention nodes; ``density``: KV of a GPU of an attention node over that of a rank;
    ``weights_gb`` and ``rank_kv_gb``: of each GPU of a rank; ``overlap``: twice the step of ``strategy`` over
    that of ``than`` with twice the sessions, for each batch and context the most over numbers of nodes."""
    strategy: str = "kernelflume"
    field: str = "usd_per_million_tokens"
    than: tuple[str, ...] = ()
    """Strategies; the least of them counts."""
    nodes: int = 1
    scale: float = 1.0
    mean_by: str | None = None
    """A setting: the values of all rows that share it become their mean."""
    only: dict[str, tuple[Any, ...]] = {}
    """Settings and the values of them that count."""
    without_waits: bool = False
    """Rows in which a turn of one of the strategies waited for room do not count."""


class Quoted(_Section):
    """Figures that a file in benchmarks/results states."""

    file: str
    quote: str
    """Words of the file, which have to be there."""
    values: tuple[float, ...]
    """As the quote has them, in the unit of the claim."""


class Tabled(_Section):
    """Means of the cells of a table in benchmarks/results."""

    file: str
    column: str
    minus: str | None = None
    """A column whose cells are subtracted."""
    rows: tuple[str, ...]
    """Beginnings of rows; each gives one mean."""
    scale: float = 1.0
    shift: float = 0.0
    """Added before scaling."""


class Claim(_Section):
    """One claim."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    section: Literal["6.2", "6.3", "6.4", "6.5"]
    claim: str
    paper: str
    """Its figure, in the paper's words."""
    low: float | None = None
    high: float | None = None
    """The range that the words stand for; None has no bound."""
    unit: str = ""
    digits: int = 1
    tolerance: float | None = None
    """In place of the page's."""
    reading: str = ""
    """What had to be read into the words, for the page."""
    simulated: Simulated | None = None
    measured: Quoted | Tabled | None = None
    device: str = ""
    """What it was measured on."""
    swept: tuple[str, ...] = ()
    """Experiments that show under which assumptions it would hold, where it does not."""
    instead: dict[str, dict[str, str]] = {}
    """In these experiments besides, by words for it: strategies, and the ones that stand in their place."""
    itself: str = "as configured"
    """Words for the strategies themselves, beside those."""
    why: str = ""
    """Why it is missed, or holds under an assumption only."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError(f"{self.name}: has no bound")
        if self.simulated and self.measured:
            raise ValueError(f"{self.name}: a figure is simulated or measured")
        if self.swept and not self.simulated:
            raise ValueError(f"{self.name}: only what is simulated is swept")
        return self


class Claims(_Section):
    """All of them, with the experiments they need."""

    tolerance: float
    """Share of a figure by which it may lie outside the range."""
    tolerance_source: str
    words: dict[str, str]
    """Settings of sweeps in words."""
    experiments: dict[str, Experiment]
    claims: tuple[Claim, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [claim.name for claim in self.claims]
        if len(set(names)) < len(names):
            raise ValueError("two claims have one name")
        for claim in self.claims:
            wanted = (*claim.swept, *((claim.simulated.experiment,) if claim.simulated else ()))
            if missing := [name for name in wanted if name not in self.experiments]:
                raise ValueError(f"{claim.name}: no experiment {', '.join(missing)}")
        return self


def load_claims(path: Path = CLAIMS) -> Claims:
    """Read the claims.

    Raises:
        ConfigurationError: the file is no good.
    """
    try:
        return Claims.model_validate(parse_mapping(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigurationError(f"{path.name}: {error}") from error
