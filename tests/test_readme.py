"""The commands that the documents show are real ones."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from textcls.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def shown_commands() -> list[str]:
    """Every line of a shell block in the documents, continuation lines joined."""
    blocks = [block for path in DOCUMENTS for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL)]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def test_the_results_table_can_be_run() -> None:
    from results import lines

    found = lines((ROOT / "README.md").read_text())
    assert {tuple(line.command.split()[1:3]) for line in found} >= {
        *(("train", "sample"), ("train", "ag-news"), ("train", "db-pedia"))
    }
    table = (ROOT / "README.md").read_text().partition("| command | seeds |")[2].partition("\n\n")[0]
    assert len(found) == table.count("| `textcls ")
    for line in found:
        root = get_command(app)
        assert hasattr(root, "commands")
        root.commands[line.command.split()[1]].make_context("", shlex.split(line.command)[2:])
        assert line.seeds
        assert 0 < line.spread < 0.05 < line.accuracy < 1


def test_there_are_commands() -> None:
    verbs = {command.split()[1] for command in shown_commands() if command.startswith("textcls ")}
    assert {"train", "infer", "evaluate", "finetune", "data"} <= verbs


@pytest.mark.parametrize("command", shown_commands())
def test_a_shown_command_is_a_real_one(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "textcls":
        root = get_command(app)
        verb = root.commands.get(words[1]) if hasattr(root, "commands") else None
        if words[1].startswith("--"):
            root.make_context("textcls", words[1:], resilient_parsing=True)
        else:
            assert verb is not None, f"there is no verb {words[1]}"
            verb.make_context(words[1], words[2:])
        for flag, value in itertools.pairwise(words):
            if flag == "--config":
                assert (ROOT / value).is_file()
    elif words[0].startswith(("scripts/", "./scripts/")):
        script = ROOT / words[0]
        assert script.is_file()
        assert script.stat().st_mode & 0o100
    else:
        assert words[0] in {"git", "cd", "source", "pip", "python"}, f"{words[0]}: not a command of this project"
