"""Schemathesis on the served OpenAPI document: bodies that fit it, and bodies that do not."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest
from tests.router_parts import router, saying, weight_node, write_model

if TYPE_CHECKING:
    from pathlib import Path

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
# Not `positive_data_acceptance`: a schema does not say that stream_options needs stream.


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_document_is_true_and_nothing_gives_500(tmp_path: Path) -> None:
    folder = write_model(tmp_path, with_bos=True)
    async with weight_node(folder, saying(5, 6, 7)) as node, router(folder, [node]) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "schemathesis.cli",
            *("run", f"{url}/openapi.json"),
            *("--phases", "coverage,fuzzing", "--max-examples", "15", "--seed", "1"),
            *("--checks", ",".join(CHECKS), "--continue-on-failure", "--no-color"),
            # Of a busy machine, none of which is the router's fault.
            *("--suppress-health-check", "too_slow", "--request-timeout", "120"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        try:
            async with asyncio.timeout(800):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
    text = output.decode(errors="replace")
    assert process.returncode == 0, text[-6000:]
    # All of it was tried: each operation, with thousands of requests.
    assert "Tested: 11" in text, text[-2000:]
