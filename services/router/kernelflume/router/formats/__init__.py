"""Answers as OpenAI writes them: whole ones as objects, chunks as JSON text built without a detour."""

from kernelflume.router.formats.base import AnswerFormat, AnswerHead, FinishedChoice
from kernelflume.router.formats.chat import ChatFormat
from kernelflume.router.formats.completion import CompletionFormat
from kernelflume.router.formats.responses import ResponsesFormat

__all__ = [
    "AnswerFormat",
    "AnswerHead",
    "ChatFormat",
    "CompletionFormat",
    "FinishedChoice",
    "ResponsesFormat",
]
