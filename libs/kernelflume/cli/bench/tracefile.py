"""Lines of a trace file, plain or gzip, with the number of each for what is said about it."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_LINE_BYTES = 16 * 1024 * 1024
"""A session of the agentic trace is a line of at most 128 KB; a longer line than this is no trace."""
_GZIP_MAGIC = b"\x1f\x8b"


class TraceRow(BaseModel):
    """A row of a trace: what is not known is passed over, and no number is infinite."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, populate_by_name=True)


Row = TypeVar("Row", bound=TraceRow)


def trace_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, each with its number from 1.

    Raises:
        ConfigurationError: the file cannot be read, is no text, or has a line without end.
    """
    number = 0
    try:
        # A pipe cannot be looked into and then read from its beginning.
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{path}: no regular file")
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as opened:
            while line := opened.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise fault(path, number, f"longer than {MAX_LINE_BYTES} bytes")
                if text := line.decode("utf-8-sig" if number == 1 else "utf-8").strip():
                    yield number, text
    except UnicodeDecodeError as error:
        raise fault(path, number, f"no UTF-8 text: {error.reason}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise fault(path, number + 1, f"damaged gzip data: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error


def parse_row(model: type[Row], path: Path, number: int, text: str) -> Row:
    """Read a line of JSON.

    Raises:
        ConfigurationError: it is none, or a field is missing or wrong; the message says where.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise fault(path, number, f"{where}: {first['msg']}" if where else first["msg"]) from error


def fault(path: Path, number: int, reason: str) -> ConfigurationError:
    """Return the error of a line."""
    return ConfigurationError(f"{path}:{number}: {reason}")
