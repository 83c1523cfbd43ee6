"""Write tests/golden/smollm2.json: transformers' greedy tokens of every prompt, in fp32.

Takes some minutes on two cores. The margin kept with each prompt is the least distance between the two most
likely tokens' logits over all steps: far above fp32 rounding, so that every token may be compared strictly.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kernelflume.checkpoint.source import resolve

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.golden.prompts import NUM_TOKENS, PROMPTS  # noqa: E402 - the repository's root is not installed

TARGET = ROOT / "tests" / "golden" / "smollm2.json"


@torch.inference_mode()
def generate(names: list[str]) -> dict[str, dict[str, object]]:
    """Return prompt ids, greedy output ids (end-of-sequence ignored) and margin of each prompt."""
    folder = str(resolve("smollm2").path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    golden: dict[str, dict[str, object]] = {}
    for name in names:
        ids = tokenizer(PROMPTS[name], return_tensors="pt").input_ids
        cache, step, tokens, margin = None, ids, [], float("inf")
        for _ in range(NUM_TOKENS):
            result = model(step, cache=cache, use_cache=True)
            cache = result.cache
            best = result.logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            step = best.indices[:1].view(1, 1)
            tokens.append(int(step))
        golden[name] = {"prompt": ids[0].tolist(), "output": tokens, "margin": round(margin, 5)}
        sys.stderr.write(f"{name}: {ids.shape[1]} prompt tokens, margin {margin:.5f}\n")
    return golden


if __name__ == "__main__":
    TARGET.write_text(json.dumps(generate(list(PROMPTS)), separators=(",", ":")) + "\n", encoding="utf-8")
