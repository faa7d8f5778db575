"""Thousands of random mutations of real files: each is read, or refused with a sentence."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from textcls import artifact
from textcls.config import Config, DataConfig, read_toml
from textcls.data import sources
from textcls.errors import UserError

CONFIGS = Path(__file__).parents[1] / "configs"
TABLE = (
    b"id,text,label,note\r\n"
    + b'1,"Rates held, banks say ""steady""",money,\r\n2,The visitors won.,sport,late\r\n'
    + "3,Überraschung im Finale …,sport,\r\n4,Shares fell\r\n5,,money,\r\n".encode()
    + b'6,"A text\nof two lines",sport,x\r\n7,Oil climbs.,money,\r\n8,Cup tie drawn.,sport,\r\n' * 4
)
NASTY = [
    b"\0",
    b'"',
    b"'",
    b",",
    b";",
    b"\t",
    b"\n",
    b"\r",
    b"\xff",
    b"\xed\xa0\x80",
    b"{",
    b"]",
    b"-",
    b"9" * 30,
    b"1e999",
]


def mutated(content: bytes, draw: random.Random, within: int | None = None) -> bytes:
    """One to four changes: bytes replaced, put in, taken out, doubled, or everything after a place cut off."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(min(within or len(changed), len(changed)) or 1)
        piece = draw.choice([draw.randbytes(1), draw.choice(NASTY)])
        span = draw.choice([1, 1, 2, 8, 200])
        match draw.randrange(6):
            case 0:
                changed[at : at + len(piece)] = piece
            case 1:
                changed[at:at] = piece
            case 2:
                del changed[at : at + span]
            case 3:
                changed[at:at] = changed[at : at + span]
            case 4 if changed:
                changed[at : at + 1] = bytes([changed[at] ^ 1 << draw.randrange(8)]) if at < len(changed) else b""
            case 5 if draw.random() < 0.2:
                del changed[at:]
    return bytes(changed)


def refusal(read: Callable[[], object]) -> str | None:
    """The sentence with which something is refused, or None; whatever else is raised is a fault."""
    try:
        read()
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_mutated_weights_file_is_read_or_refused(name: str, small_run: Path, tmp_path: Path) -> None:
    draw = random.Random(name)
    for kept in ("model.safetensors", "tokenizer.json"):
        shutil.copy(small_run / kept, tmp_path)
    whole = (tmp_path / name).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little") if name == "model.safetensors" else len(whole)
    refused = []
    for _ in range(1_500):
        (tmp_path / name).write_bytes(mutated(whole, draw, within=draw.choice([8, header, header, len(whole)])))
        if sentence := refusal(lambda: artifact.load(tmp_path / "model.safetensors")):
            refused.append(sentence)
    assert len(refused) > 100
    assert all(str(tmp_path) in sentence for sentence in refused)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json"])
def test_a_mutated_table_is_read_or_refused(suffix: str, tmp_path: Path) -> None:
    draw, path = random.Random(suffix), tmp_path / f"table{suffix}"
    objects = b'{"id": 1, "text": "Rates held.", "label": "money"}\n{"id": 2, "text": "They won.", "label": "sport"}\n'
    tables = {".csv": TABLE, ".tsv": TABLE.replace(b",", b"\t"), ".jsonl": objects * 6, ".json": objects * 6}

    def read() -> None:
        content = sources.find(str(path), DataConfig()).read()
        for rows in content.splits.values():
            for item in rows:
                assert item.text.strip()
                assert 0 <= item.label < len(content.class_names)

    refused = []
    for _ in range(2_000):
        path.write_bytes(mutated(tables[suffix], draw))
        if sentence := refusal(read):
            refused.append(sentence)
    assert 2_000 - len(refused) > 20  # a changed bracket spoils all of a JSON file
    assert all(str(path) in sentence for sentence in refused)


def test_a_mutated_configuration_is_read_or_refused(tmp_path: Path) -> None:
    draw, path = random.Random("toml"), tmp_path / "config.toml"
    whole = (CONFIGS / "ag-news.toml").read_bytes()
    refused = []
    for _ in range(2_000):
        path.write_bytes(mutated(whole, draw))
        if sentence := refusal(lambda: Config().override(read_toml(path), origin=str(path))):
            refused.append(sentence)
    assert 100 < len(refused) < 1_900
    assert all(str(path) in sentence for sentence in refused)
