import csv
import json
import os
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch
from conftest import SMALL

import textcls
from textcls.data import sources

SETTINGS = [f"--set={section}.{key}={value}" for section, keys in SMALL.items() for key, value in keys.items()]


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::DeprecationWarning:textcls", "-m", "textcls", *arguments]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.fixture
def home(small_run: Path, tmp_path: Path) -> Path:
    """A folder with a trained run of the sample."""
    shutil.copytree(small_run, tmp_path / "runs" / "sample")
    return tmp_path


def test_help_of_every_verb_shows_an_example(tmp_path: Path) -> None:
    top = run("--help", cwd=tmp_path)
    assert top.returncode == 0
    for verb in ("train", "finetune", "infer", "evaluate", "data"):
        assert verb in top.stdout
        assert f"Example: textcls {verb}" in run(verb, "--help", cwd=tmp_path).stdout


def test_version(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).stdout == f"{textcls.__version__}\n"


def test_help_and_import_need_no_torch() -> None:
    code = (
        "import sys, textcls, textcls.cli\n"
        "heavy = {'torch', 'peft', 'datasets', 'tokenizers', 'numpy', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_train_evaluate_infer_finetune(tmp_path: Path) -> None:
    trained = run("train", "sample", *SETTINGS, "--seed", "3", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    first, second = trained.stdout.splitlines()
    assert first.startswith("test accuracy 0.")
    assert first.endswith("on 320 rows")
    assert second == "saved runs/sample/model.safetensors"
    assert "epoch 2/2: train loss" in trained.stderr
    assert "seed 3" in trained.stderr
    accuracy = first.split()[2].rstrip(",")

    evaluated = run("evaluate", "sample", cwd=tmp_path)
    assert f"rows 320   accuracy {accuracy}" in evaluated.stdout
    as_json = json.loads(run("evaluate", "sample", "--json", cwd=tmp_path).stdout)
    assert f"{as_json['accuracy']:.4f}" == accuracy
    assert sum(map(sum, as_json["confusion"])) == as_json["rows"] == 320
    assert [row["support"] for row in as_json["classes"]] == [80] * 4

    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(tmp_path / "runs/sample" / name, tmp_path / name)
    tuned = run("finetune", "sample", "--epochs", "1", "--rank", "2", "--json", cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    result = json.loads(tuned.stdout)
    assert (result["run"], result["test"]["rows"]) == ("runs/sample-finetuned", 320)
    assert json.loads((tmp_path / "runs/sample-finetuned/config.json").read_text())["lora"] == {"rank": 2, "alpha": 16}
    assert run("infer", "sample-finetuned", "Shares fell.", cwd=tmp_path).returncode == 0


def test_infer_prints_text_class_and_probabilities(home: Path) -> None:
    shown = run("infer", "sample", "Shares fell.", "Goal!", cwd=home)
    lines = shown.stdout.splitlines()
    assert (lines[0], lines[2]) == ("Shares fell.", "Goal!")
    assert lines[1].startswith("  -> ")
    objects = [
        json.loads(line)
        for line in run("infer", "sample", "Shares fell.", "Goal!", "--json", cwd=home).stdout.splitlines()
    ]
    assert [o["text"] for o in objects] == ["Shares fell.", "Goal!"]
    for line, entry in zip(lines[1::2], objects, strict=True):
        assert line.split()[1] == entry["class"]
        assert f"{entry['class']} {entry['probabilities'][entry['class']]:.3f}" in line
        assert sum(entry["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_infer_file_gives_the_numbers_of_the_api_in_order(home: Path) -> None:
    items = sources.load("sample").splits["train"][:]
    with (home / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text"), *((f"n{i}", item.text) for i, item in enumerate(items))])
    expected = textcls.load(home / "runs/sample", device="cpu").predict([item.text for item in items], top_k=2)
    arguments = ("infer", "sample", "--file", "texts.csv", "--top-k", "2", "--device", "cpu")
    result = run(*arguments, cwd=home, OMP_NUM_THREADS=str(torch.get_num_threads()))
    assert (result.returncode, result.stderr) == (0, "")
    for i, (line, prediction) in enumerate(zip(result.stdout.splitlines(), expected, strict=True)):
        assert json.loads(line) == {
            "id": f"n{i}",
            "text": prediction.text,
            "class": prediction.class_name,
            "probability": prediction.probability,
            "probabilities": prediction.probabilities,
        }
    assert run(*arguments, "--out", "new/out.jsonl", cwd=home).stdout == ""
    assert (home / "new/out.jsonl").read_text(encoding="utf-8") == result.stdout


def test_infer_reads_stdin_whatever_its_line_ends(home: Path) -> None:
    outputs = set()
    for end in (b"\n", b"\r\n", b"\r"):
        command = [sys.executable, "-m", "textcls", "infer", "sample", "--file", "-"]
        stdin = b"\xef\xbb\xbf" + end.join([b"Shares fell.", b"", "Tor für Köln".encode()])
        outputs.add(subprocess.run(command, cwd=home, input=stdin, stdout=subprocess.PIPE, check=True).stdout)
    (output,) = outputs
    assert [json.loads(line)["text"] for line in output.splitlines()] == ["Shares fell.", "", "Tor für Köln"]


def test_infer_empty_in_empty_out(home: Path) -> None:
    (home / "empty.txt").touch()
    result = run("infer", "sample", "--file", "empty.txt", cwd=home)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_infer_ends_quietly_when_its_reader_has_enough(home: Path) -> None:
    (home / "texts.txt").write_text("Shares fell.\n" * 20_000)
    command = f"'{sys.executable}' -m textcls infer sample --file texts.txt | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=home, capture_output=True, text=True)
    answer, status = result.stdout.splitlines()
    assert json.loads(answer)["id"] == 1
    assert (status, result.stderr) == ("0", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("verb", ["infer sample text", "evaluate sample", "data sample"])
def test_a_full_stdout_is_a_sentence(home: Path, verb: str) -> None:
    command = f"'{sys.executable}' -m textcls {verb} > /dev/full"
    result = subprocess.run(["bash", "-c", command], cwd=home, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("textcls: standard output: can't be written (No space left")
    assert "Traceback" not in result.stderr


def test_infer_stops_at_a_bad_line_and_keeps_the_file_that_was_there(home: Path) -> None:
    (home / "texts.csv").write_text("id,text\n1,Shares fell.\n2,a,b\n")
    (home / "out.csv").write_text("before")
    sentence = "textcls: texts.csv, line 3: has 3 fields where the header has 2; put a text that has ',' in it into"
    result = run("infer", "sample", "--file", "texts.csv", "--format", "csv", cwd=home)
    assert result.returncode == 1
    assert [row["id"] for row in csv.DictReader(result.stdout.splitlines())] == ["1"]
    assert result.stderr.startswith(sentence)
    assert run("infer", "sample", "--file", "texts.csv", "--out", "out.csv", cwd=home).returncode == 1
    assert (home / "out.csv").read_text() == "before"
    assert {path.name for path in home.iterdir()} == {"texts.csv", "out.csv", "runs"}


def test_infer_shows_its_progress_on_a_terminal_and_answers_on_stdout(home: Path) -> None:
    (home / "texts.txt").write_text("Shares fell.\n" * 3)
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    command = [sys.executable, "-m", "textcls", "infer", "sample", "--file", "texts.txt"]
    process = subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    stdout, _ = process.communicate()
    shown = os.read(leader, 65_536).decode()
    os.close(leader)
    assert len([json.loads(line) for line in stdout.splitlines()]) == 3
    assert "infer: 3text [" in shown


def test_infer_writes_utf_8_whatever_the_locale(home: Path) -> None:
    command = [sys.executable, "-m", "textcls", "infer", "sample", "Köln 🙂", "--json"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}
    result = subprocess.run(command, cwd=home, env=environment, stdout=subprocess.PIPE, check=True)
    assert json.loads(result.stdout.decode("utf-8"))["text"] == "Köln 🙂"


def test_infer_below_the_threshold_is_unsure(home: Path) -> None:
    assert "  -> (unsure)   (" in run("infer", "sample", "Hm.", "--threshold", "1", cwd=home).stdout
    named = run("infer", "sample", "Hm.", "--threshold", "1", "--unsure", "other", "--json", cwd=home).stdout
    assert json.loads(named)["class"] == "other"
    run("infer", "sample", "Hm.", "--threshold", "1", "--out", "answers.csv", cwd=home)
    (row,) = csv.DictReader((home / "answers.csv").read_text().splitlines())
    assert (row["text"], row["class"]) == ("Hm.", "")


def test_evaluate_shows_mistakes_and_writes_files(home: Path) -> None:
    shown = run("evaluate", "sample", "--mistakes", "2", "--out", "card", cwd=home).stdout
    assert "most confident mistakes" in shown
    assert shown.count("(row ") == 2
    report = json.loads((home / "card/report.json").read_text())
    assert report == json.loads(run("evaluate", "sample", "--mistakes", "2", "--json", cwd=home).stdout)
    assert len((home / "card/predictions.jsonl").read_text().splitlines()) == 320


def test_infer_without_texts_classifies_three_examples(home: Path) -> None:
    assert len(run("infer", "runs/sample", "--json", cwd=home).stdout.splitlines()) == 3


def test_infer_takes_an_empty_text_and_control_characters(home: Path) -> None:
    shown = run("infer", "sample", "", "\x1b[2Jred", cwd=home)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "\\x1b[2Jred" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["infer", "ag-news"], "ag-news: no such run yet; make it with: textcls train ag-news"),
        (
            ["train", "agnews"],
            "agnews: there is no such data set; did you mean ag-news? Or use one of ag-news, db-pedia,",
        ),
        (["train", "x.csv"], "x.csv: there is no such file or folder; check the path."),
        (
            ["train", "sample", "--out", "x", "--label-column", "x"],
            "data.label_column: is for own data; the columns and",
        ),
        (["train", "tickets.csv", "--label-column", "x"], "--label-column x: tickets.csv has no such column; its"),
        (["train", "tickets.csv", "--encoding", "x"], "--encoding x: there is no such encoding;"),
        (["train", "tickets.csv", "--separator", "xx"], "--separator xx: can't part columns; give one character"),
        (["data", "tickets.csv", "--text-column", "9"], "--text-column 9: tickets.csv has no such column"),
        (["train", "sample"], "runs/sample: holds a run already; add --resume to go on with it, --overwrite"),
        (
            ["train", "sample", "--out", "x", "--set", "transformer.d_modle=1"],
            "--set: transformer.d_modle: there is no",
        ),
        (["train", "sample", "--out", "x", "--epochs", "0"], "--epochs: training.epochs: 0 can't work; give a"),
        (["train", "sample", "--out", "x", "--config", "none.toml"], "--config none.toml: there is no such file"),
        (["train", "sample", "--out", "file"], "--out file: a file is there; give a folder."),
        (["train", "sample", "--out", "x", "--device", "tpu"], "--device tpu: not available here; use one of: auto,"),
        (
            ["train", "sample", "--out", "file/x"],
            "--out file/x: file is a file, not a folder; give another place.",
        ),
        (["train", "sample", "--out", "x", "--steps", "9", "--epochs", "1"], "--steps: says how long to train, as"),
        (
            ["train", "sample", "--out", "x", "--class-weights", "Sport=2"],
            "--class-weights (training.class_weights): there is",
        ),
        (
            ["train", "sample", "--out", "x", "--checkpoint-every", "10x"],
            "--checkpoint-every: training.checkpoint_every:",
        ),
        (["train", "sample", "--out", "x", "--resume"], "x: has no checkpoint to resume from; train without"),
        (["finetune", "sample"], "--from: no model.safetensors is in this folder; name a run, such as --from"),
        (["finetune", "sample", "--from", "x.safetensors"], "x.safetensors: there is no weights file there"),
        (["train", "sample", "--resume", "--overwrite"], "runs/sample: --resume goes on with the run that --overwrite"),
        (
            ["finetune", "sample", "--from", "sample", "--set", "transformer.d_model=8"],
            "transformer.d_model: 8 can't be",
        ),
        (["evaluate", "sample", "--split", "dev"], "--split dev: the sample that comes with textcls has no such split"),
        (["evaluate", "sample", "--out", "file"], "--out file: a file is there; give a folder."),
        (["evaluate", "sample", "--out", "file/x"], "--out file/x: file is a file, not a folder; give"),
        (["infer", "file"], "file: is not a weights file; train on it first: textcls train file"),
        (
            ["infer", "sample", "--file", "tickets.csv", "--out", "tickets.csv"],
            "--out tickets.csv: is the file that is",
        ),
        (["infer", "sample", "--file", "none.csv"], "--file none.csv: there is no such file."),
        (["infer", "sample", "--file", "file"], "--file file: give a file that ends in .txt, .csv, .tsv, .jsonl, or"),
        (["infer", "sample", "a text", "--file", "-"], "--file -: there are texts on the command line as well"),
        (["infer", "sample", "--file", ""], "--file : give a file that ends in .txt, .csv, .tsv, .jsonl, or"),
        (["infer", "sample", "--text-column", "a"], "--text-column a: is of a file; give one with --file."),
        (["infer", "sample", "--unsure", "x"], "--unsure x: no text is below a --threshold of 0; give a higher one."),
        (["infer", "sample", "--json", "--format", "csv"], "--json: contradicts --format csv; leave one out."),
        (["infer", "sample", "--out", "runs"], "--out runs: a folder is there; give a file."),
        (["infer", "sample", "--out", "x.parquet"], "--out x.parquet: answers are JSON lines or CSV; end it in"),
        (["infer", "runs/none"], "runs/none: there is no such folder; give a run folder that has a model.safetensors"),
        (["train", "sample", "--out", "x", "--config", "runs"], "--config runs: can't be read (Is a directory); give"),
        (
            ["train", "sample", "--out", "x", "--set", "training.batch=9"],
            "--set: training.batch: there is no such key;",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_1(home: Path, arguments: list[str], sentence: str) -> None:
    (home / "file").write_text("x")
    (home / "tickets.csv").write_text("text,label\none,a\ntwo,b\n")
    result = run(*arguments, cwd=home)
    assert result.returncode == 1
    assert result.stdout == ""
    *_, last = result.stderr.splitlines()
    assert last.startswith(f"textcls: {sentence}"), result.stderr
    assert "Traceback" not in result.stderr
    assert not (home / "x").exists()


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["train"], ["train", "sample", "--epochs", "many"], ["--fast"], ["infer", "sample", "--threshold", "2"]],
)
def test_wrong_usage_is_exit_code_2(tmp_path: Path, arguments: list[str]) -> None:
    assert run(*arguments, cwd=tmp_path).returncode == 2


def test_a_bug_keeps_its_traceback(home: Path) -> None:
    code = (
        "import textcls.infer, textcls.cli\n"
        "def broken(*a, **k): raise RuntimeError('a bug')\n"
        "textcls.infer.load = broken\n"
        "textcls.cli.app(['infer', 'sample'])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "RuntimeError: a bug" in result.stderr


def test_data_shows_rows_classes_lengths_and_examples(tmp_path: Path) -> None:
    shown = run("data", "sample", cwd=tmp_path).stdout
    for part in (
        "train: 1,280 rows",
        "test: 320 rows",
        "Technology",
        "tokens a row  50 %:",
        "cut at 128 tokens: 0.00 %",
    ):
        assert part in shown
    as_json = json.loads(run("data", "sample", "--set", "batch.max_length=50", "--json", cwd=tmp_path).stdout)
    train = as_json["splits"][0]
    assert (train["rows"], train["rows_per_class"]["World"]) == (1_280, 320)
    assert 0.2 < train["truncated_share"] < 0.8
    assert len(as_json["examples"]) == 3


def test_own_data_from_a_file_to_classes(tmp_path: Path) -> None:
    good, bad = ("fine", "great", "lovely"), ("awful", "bad", "poor")
    rows = [
        f"a {word} film {i};{label}" for i in range(40) for words, label in ((good, 10), (bad, 2)) for word in words
    ]
    (tmp_path / "films.csv").write_bytes("\r\n".join(["review;stars", *rows]).encode("utf-16"))
    flags = ["--label-column", "stars", "--separator", ";", *SETTINGS, "--set=data.valid_rows=20"]
    trained = run("train", "films.csv", *flags, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.splitlines()[0].endswith("on 48 rows")
    assert trained.stdout.splitlines()[1] == "saved runs/films/model.safetensors"
    said = (tmp_path / "runs/films/experiment.log").read_text()
    for part in (
        'films.csv: utf-16 with a byte order mark; separated by semicolons, quoted by "; text from column review',
        "no test split: 48 of 240 rows were carved for it, of every class in proportion",
        "classes: 2 96, 10 96 rows",
    ):
        assert part in said
        assert part in trained.stderr
    config = json.loads((tmp_path / "runs/films/config.json").read_text())
    assert (config["dataset"], config["data"]["label_column"], config["data"]["separator"]) == (
        "films.csv",
        "stars",
        ";",
    )
    assert config["tokenizer"]["source"] == "corpus"
    assert run("evaluate", "films", cwd=tmp_path).stdout.startswith("rows 48 ")
    assert run("evaluate", "films", "films.csv", cwd=tmp_path).stdout.startswith("rows 240 ")
    assert len(run("infer", "films", "--json", cwd=tmp_path).stdout.splitlines()) == 3
    tuned = run("finetune", "films.csv", "--from", "films", *flags[:4], "--epochs", "1", cwd=tmp_path)
    assert tuned.stdout.splitlines()[1] == "saved runs/films-finetuned/model.safetensors", tuned.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(tmp_path: Path, shell: str) -> None:
    variable = {"_TEXTCLS_COMPLETE": f"complete_{shell}", "COMP_WORDS": "textcls tr", "COMP_CWORD": "1"}
    words = {"_TYPER_COMPLETE_ARGS": "textcls tr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    result = subprocess.run(
        [Path(sys.executable).with_name("textcls")],
        env={**os.environ, **variable, **words},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "train" in result.stdout, result.stderr
