"""The layers of the package hold: a file imports only from those below it, and some packages in one file alone."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "textcls"
LAYERS = [
    *("errors", "files", "display", "config", "metrics", "runtime"),
    *("data.dataset", "data.store", "data.encodings", "data.texts", "data.table", "data.separated", "data.formats"),
    *("data.splits", "data.labelled", "data.sources", "data.tokenizer", "data.encoded", "data.lsa", "data.batcher"),
    *("model", "artifact", "checkpoint", "evaluate", "calibration", "scorecard", "infer", "answers", "survey"),
    *("journal", "objective", "optimizer", "guessing", "training_data", "train", "finetune", "cli", "__main__"),
]
ONLY_IN = {"typer": "cli", "sqlite3": "data.store", "peft": "finetune", "datasets": "data.sources"}
FILES = {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}


def imports(tree: ast.AST) -> list[str]:
    """The modules that a file imports, anywhere in it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
    return found


def test_every_file_has_a_layer() -> None:
    assert set(LAYERS) == {name for name in FILES if not name.endswith("__init__")}


@pytest.mark.parametrize("name", LAYERS)
def test_imports_only_from_lower_layers(name: str) -> None:
    own = LAYERS.index(name)
    for module in imports(ast.parse(FILES[name].read_text())):
        below = module.removeprefix("textcls.")
        if module.startswith("textcls.") and below in LAYERS:
            assert LAYERS.index(below) < own, f"{name} imports {below}"
        top = module.split(".")[0]
        assert ONLY_IN.get(top, name) == name, f"{name} imports {top}"


@pytest.mark.parametrize("name", LAYERS)
def test_no_long_function(name: str) -> None:
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, f"{name}.{node.name}"
