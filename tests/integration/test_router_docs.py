"""docs/api.md: its examples work as they stand, and its table has every field."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.router_parts import byte_level_tokenizer, router, saying, weight_node, write_model

from kernelflume.router.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponsesRequest,
    TokenizeRequest,
)

if TYPE_CHECKING:
    from kernelflume.router.schemas.base import RequestBody

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)


async def test_every_example_is_answered(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    tokens = byte_level_tokenizer().encode("Hello", add_special_tokens=False).ids
    async with weight_node(folder, saying(*tokens)) as node:
        node.card.max_model_len = 4096
        async with router(folder, [node], served_model_name=("smollm2",)) as url:
            assert len(EXAMPLES) >= 8
            for example in EXAMPLES:
                script = 'curl() { command curl --fail-with-body "$@" || exit; }\n' + example.replace(
                    "http://127.0.0.1:8000", url
                )
                process = await asyncio.create_subprocess_exec(
                    "bash", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
                )
                async with asyncio.timeout(120):
                    output, _ = await process.communicate()
                assert process.returncode == 0, output.decode()
                assert b'"error":{' not in output.replace(b" ", b""), output.decode()


def rows(title: str) -> dict[str, list[str]]:
    """Return the cells of a table by the fields that its rows are about."""
    part = TEXT.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    found: dict[str, list[str]] = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" |")]
        for name in re.findall(r"`(\w+)`", cells[0]):
            assert name not in found, name
            found[name] = cells[1:]
    return found


@pytest.mark.parametrize(
    ("title", "column", "kinds"),
    [
        ("Chat completions and completions", 0, [ChatCompletionRequest]),
        ("Chat completions and completions", 1, [CompletionRequest]),
        ("Responses", 0, [ResponsesRequest]),
        ("Tokenize and detokenize", 0, [TokenizeRequest, DetokenizeRequest]),
    ],
)
def test_the_table_has_every_field(title: str, column: int, kinds: list[type[RequestBody]]) -> None:
    said = {name: cells[column] for name, cells in rows(title).items() if cells[column]}
    served = {name for name, cell in said.items() if not cell.startswith("no")}
    assert served == {name for kind in kinds for name in kind.model_fields}
    assert said.keys() - served == {name for kind in kinds for name in kind.not_served}
