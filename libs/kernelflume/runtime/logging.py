"""One log line a fact, as JSON, to standard error."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("kernelflume_log_fields", default=MappingProxyType({}))
"""Fields of every line that is logged in this context, such as a request's task: its ids."""
_PLAIN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; fields given by ``extra`` stand beside the message."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **LOG_FIELDS.get(),
        }
        # A library's own fields, such as those that Ray gives every record, begin with an underscore.
        line |= {
            key: value
            for key, value in vars(record).items()
            if key not in _PLAIN_FIELDS and not key.startswith("_")
        }
        if record.exc_info:
            line["error"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(service: str, level: str) -> None:
    """Send every logger's lines to standard error as JSON. Call once, in a process's main."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn.access", "httpx", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
