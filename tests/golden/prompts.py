"""Prompts of the equality tests: short, chat, code, unicode, and long ones, made of text alone."""

from __future__ import annotations

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
)

_TOWNS = ("Arden", "Brook", "Calder", "Dunmore", "Elm", "Farrow", "Glen", "Harrow", "Inver", "Jarrow")
_THINGS = ("bridge", "mill", "market", "harbour", "library", "orchard", "quarry", "school", "tower", "well")


def chronicle(num_lines: int) -> str:
    """Return a text of numbered lines, about 20 tokens each, none like another."""
    lines = []
    for number in range(1, num_lines + 1):
        town, thing = _TOWNS[number % 10], _THINGS[(number * 7 + number // 10) % 10]
        year, cost = 1700 + number, (number * 37) % 900 + 100
        lines.append(f"{number}. In {year} the people of {town} built a {thing} for {cost} pounds.")
    return "\n".join(lines) + "\n"


PROMPTS: dict[str, str] = {
    "word": "Hello",
    "story": "Once upon a time, in a small village by the sea, there lived",
    "science": "Photosynthesis is the process by which",
    "list": "The first ten prime numbers are",
    "recipe": "To make a simple tomato soup, you need",
    "letter": "Dear Professor Lindqvist,\n\nI am writing to",
    "history": "The industrial revolution began in",
    "chat_gravity": CHAT.format(question="What is gravity? Answer in two sentences."),
    "chat_poem": CHAT.format(question="Write a short poem about autumn leaves."),
    "chat_python": CHAT.format(question="Write a Python function that reverses a string."),
    "chat_advice": CHAT.format(question="How can I sleep better at night?"),
    "code_python": 'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n',
    "code_c": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "code_sql": "-- all customers who ordered more than three times\nSELECT customers.name, COUNT(*)",
    "code_json": '{"name": "kernel", "version": "1.2.0", "dependencies": {',
    "unicode_french": "Il était une fois, à l'orée d'une forêt enchantée, une petite fille",
    "unicode_greek": "Η Αθήνα είναι η πρωτεύουσα",  # noqa: RUF001 - Greek on purpose
    "unicode_japanese": "東京は日本の首都であり、",
    "unicode_emoji": "Weather today: ☀️🌧️🌈 and tomorrow:",
    "unicode_math": "∀x ∈ ℝ: x² ≥ 0. Proof:",  # noqa: RUF001 - mathematics on purpose
    "long_1500": chronicle(62) + "\nSummary: the people of",
    "long_2000": chronicle(84) + "85. In 1785 the people of",
    "long_3000": CHAT.format(question=chronicle(124) + "\nWhich towns are mentioned above?"),
}

NUM_TOKENS = 48
"""Greedy tokens compared for each prompt."""
