"""The code blocks of a page, each with what a hidden comment before it says about how to test it.

    <!-- test: context=training -->     run it in that context (see contexts.py)
    <!-- test: skip=REASON -->          it cannot run here, and why
    <!-- test: options-only=REASON -->  only see that the command knows these options
    <!-- test: exit=2 -->               the code with which the last command ends

A block without a comment runs as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

LANGUAGES = ("python", "console")
_COMMENT = re.compile(r"<!-- test: (.+) -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    directives: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def commands(self) -> list[str]:
        """Return the commands of a console block: what follows ``$``, with its continuation lines."""
        commands: list[str] = []
        is_open = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                commands.append(line[2:])
                is_open = line.endswith("\\")
            elif is_open:
                commands[-1] += "\n" + line
                is_open = line.endswith("\\")
        return commands


def find_blocks(page: Path) -> list[Block]:
    """Return the Python and console blocks of a page, in their order."""
    blocks: list[Block] = []
    lines = page.read_text().splitlines()
    directives: dict[str, str] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        if (comment := _COMMENT.match(line.strip())) is not None:
            name, _, value = comment[1].partition("=")
            directives[name.strip()] = value.strip()
        elif line.startswith("```"):
            begin, language = index, line[3:].strip()
            index += 1
            while not lines[index].startswith("```"):
                index += 1
            if language in LANGUAGES:
                blocks.append(Block(page, begin + 1, language, "\n".join(lines[begin + 1 : index]), directives))
            directives = {}
        elif line.strip():
            directives = {}
        index += 1
    return blocks
