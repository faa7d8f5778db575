"""The examples of docs/formats.md print what the page shows."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from textcls.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_the_examples_of_a_section(section: str, in_tmp: Path, own_cache: Path) -> None:
    commands = 0
    for kind, name, content in BLOCK.findall(section):
        if name:
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(content, encoding="utf-8")
        elif kind == "python":
            exec(content, {})
        else:
            command, *expected = content.splitlines()
            assert command.startswith("$ textcls ")
            result = CliRunner().invoke(app, shlex.split(command)[2:])
            failed = expected[0].startswith("textcls: ")
            assert result.exit_code == failed, result.output
            assert set(expected) <= set(result.output.splitlines()), result.output
            commands += 1
    assert commands
