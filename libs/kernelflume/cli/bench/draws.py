"""Distributions of lengths and times, as a person writes them on a command line."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np

_NUMBER = r"(\d{1,12}(?:\.\d{1,12})?)"
_FORMS = {
    "constant": re.compile(_NUMBER),
    "uniform": re.compile(rf"{_NUMBER}-{_NUMBER}"),
    "lognormal": re.compile(rf"{_NUMBER}~{_NUMBER}"),
}
_MAX_SIGMA = 5.0


@dataclass(frozen=True, slots=True)
class Draws:
    """``N`` is constant, ``LOW-HIGH`` uniform, ``MEDIAN~SIGMA`` lognormal."""

    form: str
    first: float
    second: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one.

        Raises:
            ValueError: it is none of the three.
        """
        for form, pattern in _FORMS.items():
            if found := pattern.fullmatch(text):
                draws = cls(form, *(float(number) for number in found.groups()))
                if form == "uniform" and draws.second < draws.first:
                    raise ValueError(f"{text!r}: the higher number comes second")
                if form == "lognormal" and (draws.second > _MAX_SIGMA or not draws.first):
                    raise ValueError(f"{text!r}: a median above 0 and a sigma of at most {_MAX_SIGMA:g}")
                return draws
        raise ValueError(f"{text!r} is none of N, LOW-HIGH and MEDIAN~SIGMA")

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next number."""
        if self.form == "constant":
            return self.first
        if self.form == "uniform":
            return float(generator.uniform(self.first, self.second))
        return float(generator.lognormal(math.log(self.first), self.second))

    def draw_count(self, generator: np.random.Generator, least: int = 1) -> int:
        """Return the next number, whole and not below ``least``."""
        return max(least, round(self.draw(generator)))
