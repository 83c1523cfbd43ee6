"""Request bodies of the OpenAI API, as far as they are served here, with vLLM's extensions.

``null`` means unset everywhere. A field that is not known, or known and not served, is refused by name.
"""

from kernelflume.router.schemas.base import RequestBody, parse
from kernelflume.router.schemas.chat import ChatCompletionRequest
from kernelflume.router.schemas.completion import CompletionRequest, Prompt
from kernelflume.router.schemas.generation import GenerationBody
from kernelflume.router.schemas.responses import ResponsesRequest
from kernelflume.router.schemas.tokens import DetokenizeRequest, TokenizeRequest

__all__ = [
    "ChatCompletionRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationBody",
    "Prompt",
    "RequestBody",
    "ResponsesRequest",
    "TokenizeRequest",
    "parse",
]
