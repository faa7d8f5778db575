"""The command line: each verb parses, calls one function and prints its result.

Results go to stdout; progress and notes go to stderr. Exit codes: 0, 1 a user's error, 2 usage, 130 Ctrl-C, 143 a
SIGTERM.
"""

import errno
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperGroup

from textcls import __version__
from textcls.config import Config, parse_override, read_toml, recipe
from textcls.errors import ArtifactError, ConfigError, DataError, Interrupted, UserError

if TYPE_CHECKING:  # torch takes a second to import: each verb imports what it needs
    from textcls.metrics import Counts


class Verbs(TyperGroup):
    """Turns a user's error into a sentence and exit code 1, and a signal into its own; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except UserError as error:
            print(f"textcls: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        except Interrupted as interruption:
            print(f"textcls: {interruption}; go on with:\n{_resume_command()}", file=sys.stderr)
            raise typer.Exit(interruption.exit_code) from None
        except KeyboardInterrupt:
            print("textcls: interrupted; a training goes on from its last checkpoint with --resume", file=sys.stderr)
            raise typer.Exit(130) from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            _drop_stdout()
            print(f"textcls: standard output: can't be written ({error.strerror}); make room.", file=sys.stderr)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train a Transformer text classifier from scratch, evaluate it, use it, and carry it over with LoRA.",
)

DATASETS = "ag-news, db-pedia, sample, a file or folder of your own, or hf:owner/name."
FLAG_KEYS = {
    "epochs": "training.epochs",
    "steps": "training.steps",
    "patience": "training.patience",
    "class_weights": "training.class_weights",
    "calibrate": "training.calibrate",
    "checkpoint_every": "training.checkpoint_every",
    "seed": "training.seed",
    "dtype": "training.dtype",
    "batch_size": "batch.size",
    "rank": "lora.rank",
    "alpha": "lora.alpha",
    "text_column": "data.text_columns",
    "label_column": "data.label_column",
    "encoding": "data.encoding",
    "separator": "data.separator",
    "drop_duplicates": "data.drop_duplicates",
}
"""The flags that are another way to set a key; `_flags` reads them all from the context."""
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Dtype = Annotated[
    Literal["f32", "f16", "bf16"] | None, typer.Option(help="Of the matrix products; weights are f32 always.")
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file of keys to change.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One key to change, such as transformer.d_model=256; repeatable."),
]
Epochs = Annotated[int | None, typer.Option(help="Same as --set training.epochs=N.")]
Steps = Annotated[int | None, typer.Option(help="Updates, instead of epochs; same as --set training.steps=N.")]
Patience = Annotated[int | None, typer.Option(help="Stop after N epochs without a better one; training.patience.")]
ClassWeights = Annotated[
    str | None,
    typer.Option(metavar="balanced|NAME=W,...", help="How much a row counts by its class; training.class_weights."),
]
Calibrate = Annotated[
    bool | None, typer.Option("--calibrate", help="Fit probabilities to the validation rows; training.calibrate.")
]
CheckpointEvery = Annotated[
    str | None, typer.Option(metavar="N|TIME", help="Steps, or 90s, 10m, 2h; training.checkpoint_every.")
]
BatchSize = Annotated[int | None, typer.Option(help="Same as --set batch.size=N.")]
Seed = Annotated[int | None, typer.Option(help="Same as --set training.seed=N.")]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--text-column", help="Own data: a column that holds the text, by name or number; repeatable: joined."
    ),
]
LabelColumn = Annotated[str | None, typer.Option(help="Own data: the column that holds the label, by name or number.")]
Encoding = Annotated[str | None, typer.Option(help="Own data: of text files, such as latin-1; by default detected.")]
Separator = Annotated[str | None, typer.Option(help="Own data: what parts columns, such as ';' or tab.")]
DropDuplicates = Annotated[
    bool | None,
    typer.Option("--drop-duplicates", help="Own data: keep one row of each text, and none of test in train."),
]
Out = Annotated[Path | None, typer.Option(help="The run's folder; by default runs/ and the data set's name.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in the folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None:
    # Printing a result must not fail for a terminal that can't show a character of a text.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@app.command(epilog="Example: textcls train ag-news --device cuda --set transformer.d_model=256")
def train(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Argument(help=DATASETS)],
    config: ConfigFile = None,
    overrides: Overrides = None,
    device: Device = "auto",
    dtype: Dtype = None,
    out: Out = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    patience: Patience = None,
    class_weights: ClassWeights = None,
    calibrate: Calibrate = None,
    checkpoint_every: CheckpointEvery = None,
    seed: Seed = None,
    text_column: TextColumns = None,
    label_column: LabelColumn = None,
    encoding: Encoding = None,
    separator: Separator = None,
    drop_duplicates: DropDuplicates = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a classifier from random weights, save the best epoch's, and test it."""
    flags = _flags(ctx)
    settings = _configure(recipe(dataset), config, overrides or [], flags)
    folder = out or _run_folder(dataset)
    _claim(folder, resume, overwrite)
    _start(dataset, settings)
    from textcls.data.sources import measure
    from textcls.runtime import resolve_device
    from textcls.train import train as run

    where = resolve_device(device)
    if size := measure(dataset, settings.data):
        settings = _configure(recipe(dataset, size), config, overrides or [], flags)
    counts = run(settings, device=where, folder=folder, resume=resume)
    _print_test(counts, folder, as_json)


@app.command(epilog="Example: textcls finetune ag-news --from runs/db-pedia/model.safetensors --rank 8")
def finetune(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Argument(help="The data set to carry the model to.")] = "ag-news",
    base: Annotated[
        str, typer.Option("--from", help="A model.safetensors, a run folder, or a data set's name (its run).")
    ] = "model.safetensors",
    rank: Annotated[int | None, typer.Option(help="Same as --set lora.rank=N.")] = None,
    alpha: Annotated[int | None, typer.Option(help="Same as --set lora.alpha=N.")] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    device: Device = "auto",
    dtype: Dtype = None,
    out: Out = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    patience: Patience = None,
    class_weights: ClassWeights = None,
    calibrate: Calibrate = None,
    checkpoint_every: CheckpointEvery = None,
    seed: Seed = None,
    text_column: TextColumns = None,
    label_column: LabelColumn = None,
    encoding: Encoding = None,
    separator: Separator = None,
    drop_duplicates: DropDuplicates = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Carry a trained classifier to another data set with LoRA, merge, save, and test it."""
    flags = _flags(ctx)
    settings = _configure(recipe(dataset), config, overrides or [], {"data": flags.get("data", {})})
    folder = out or _run_folder(dataset, "-finetuned")
    _claim(folder, resume, overwrite)
    _start(dataset, settings)
    from textcls import artifact
    from textcls.data.sources import measure
    from textcls.runtime import resolve_device

    trained = artifact.load(artifact.locate(_given_base(base)))
    where = resolve_device(device)
    from textcls.finetune import finetune as run
    from textcls.finetune import finetune_config

    own = finetune_config(trained.config, dataset, measure(dataset, settings.data))
    settings = _configure(own, config, overrides or [], flags)
    counts = run(trained, settings, device=where, folder=folder, resume=resume)
    _print_test(counts, folder, as_json)


@app.command(epilog='Example: textcls infer ag-news "Stocks fall as oil climbs to a record"')
def infer(
    run: Annotated[str, typer.Argument(help="A data set's name (its run), a run folder, or a model.safetensors.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to classify; without, three examples.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(help="Classify the texts of a .txt, .csv, .tsv or .jsonl, or with - the lines of stdin."),
    ] = None,
    text_column: Annotated[
        list[str] | None, typer.Option(help="The file's column or key of the text; repeatable: joined.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of the file, such as latin-1; by default detected.")] = "auto",
    form: Annotated[
        Literal["jsonl", "csv"] | None,
        typer.Option("--format", help="Of the output; by default csv for an --out that ends so, else jsonl."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file, whole or not at all, rather than stdout.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="List this many classes with their probabilities.")] = None,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Below this probability the class is null, or what --unsure says.")
    ] = 0.0,
    unsure: Annotated[str | None, typer.Option(help="The class of texts below --threshold.")] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Classify texts: print each with its class and probabilities."""
    _check_infer(texts, file, text_column, encoding, form, out, threshold, unsure, as_json)
    from textcls.answers import answer, write_answers
    from textcls.data.texts import numbered, read_texts
    from textcls.infer import load
    from textcls.journal import counted, show_notes

    show_notes()
    given = read_texts(file, text_column or (), encoding) if file is not None else None
    classifier = load(run, device=device, dtype=dtype or "f32")
    n_classes = len(classifier.class_names)
    top_k = min(top_k or (0 if given else n_classes), n_classes)
    items = given or numbered(texts or _examples(classifier.artifact.config))
    answers = answer(classifier, items, top_k=top_k, threshold=threshold, unsure=unsure)
    if given and (out or not sys.stdout.isatty()):  # on a terminal the answers themselves show how far it is
        answers = counted("infer", answers, unit="text")
    with _output(out) as stream:
        write_answers(answers, stream, form or _form(given is not None, out, as_json), top_k)


@app.command(epilog="Example: textcls evaluate ag-news")
def evaluate(
    run: Annotated[str, typer.Argument(help="A data set's name (its run), a run folder, or a model.safetensors.")],
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATA]", help="By default what the model was trained on.")
    ] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    mistakes: Annotated[int, typer.Option(min=0, help="Show this many of the most confident mistakes.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="A folder for report.json, classes.csv, confusion.csv and predictions.jsonl.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Evaluate a classifier on every row of a split."""
    if out is not None:
        _check_folder(out)
    from textcls import artifact
    from textcls.data import sources
    from textcls.display import json_line
    from textcls.runtime import resolve_device
    from textcls.scorecard import save, scorecard

    trained = artifact.load(artifact.locate(run))
    name = dataset or trained.config.dataset
    reading = trained.config.data if sources.is_own(name) else Config().data
    _start(name, Config(data=reading))
    stored = sources.load(name, reading, whole=dataset is not None)
    where = resolve_device(device)
    card = scorecard(trained, stored, split, device=where, dtype=dtype or "f32", n_mistakes=mistakes)
    if out is not None:
        save(card, stored, out)
    print(json_line(card.to_dict()) if as_json else card.table())


@app.command(epilog="Example: textcls data ag-news")
def data(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Argument(help=DATASETS)],
    config: ConfigFile = None,
    overrides: Overrides = None,
    text_column: TextColumns = None,
    label_column: LabelColumn = None,
    encoding: Encoding = None,
    separator: Separator = None,
    drop_duplicates: DropDuplicates = None,
    as_json: Json = False,
) -> None:
    """Fetch a data set into the cache, and show its rows, classes and lengths."""
    flags = _flags(ctx)
    settings = _configure(recipe(dataset), config, overrides or [], flags)
    _start(dataset, settings)
    from textcls.data.sources import measure
    from textcls.survey import survey

    if size := measure(dataset, settings.data):
        settings = _configure(recipe(dataset, size), config, overrides or [], flags)

    found = survey(settings)
    print(json.dumps(found.to_dict()) if as_json else found.table())


def _resume_command() -> str:
    """The command that goes on with the run of this one."""
    kept = [word for word in sys.argv[1:] if word not in ("--overwrite", "--resume")]
    return shlex.join(["textcls", *kept, "--resume"])


def _start(dataset: str, settings: Config) -> None:
    """Show notes on stderr, and refuse a data set that doesn't exist before torch is imported."""
    from textcls.data import sources
    from textcls.journal import show_notes

    sources.find(dataset, settings.data)
    show_notes()


def _run_folder(dataset: str, suffix: str = "") -> Path:
    from textcls.data.sources import run_name

    return Path("runs") / f"{run_name(dataset)}{suffix}"


def _flags(ctx: typer.Context) -> dict[str, Any]:
    """The keys that have a flag of their own, where it was given."""
    given: dict[str, dict[str, Any]] = {}
    for flag, key in FLAG_KEYS.items():
        if ctx.params.get(flag) not in (None, [], ()):
            section, name = key.split(".")
            given.setdefault(section, {})[name] = ctx.params[flag]
    training = given.get("training", {})
    if {"epochs", "steps"} <= training.keys():
        raise ConfigError("--steps: says how long to train, as --epochs does; give one of them.")
    if "epochs" in training:
        training["steps"] = 0  # over a file's
    return given


def _configure(base: Config, file: Path | None, overrides: list[str], flags: dict[str, Any]) -> Config:
    """The configuration: `base`, then the file, then --set, then the flags of their own."""
    settings = base
    if file is not None:
        settings = settings.override(read_toml(file), origin=str(file))
    for text in overrides:
        settings = settings.override(parse_override(text), origin="--set")
    flag_of = {key: f"--{flag.replace('_', '-')}" for flag, key in FLAG_KEYS.items()}
    for section, values in flags.items():
        for name, value in values.items():
            settings = settings.override({section: {name: value}}, origin=flag_of[f"{section}.{name}"])
    return settings


def _claim(folder: Path, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that can't be written, has nothing to resume, or holds a run that nobody said to replace."""
    _check_folder(folder)
    if resume and overwrite:
        raise ArtifactError(f"{folder}: --resume goes on with the run that --overwrite replaces; leave one out.")
    has_checkpoint = any((folder / "checkpoints").glob("step-*.pt"))
    if resume and not has_checkpoint:
        raise ArtifactError(f"{folder}: has no checkpoint to resume from; train without --resume.")
    if (has_checkpoint or (folder / "model.safetensors").exists()) and not (resume or overwrite):
        raise ArtifactError(
            f"{folder}: holds a run already; add --resume to go on with it, --overwrite to replace it, or --out DIR."
        )


def _given_base(base: str) -> str:
    """What --from names, or its default where that is there."""
    if base == "model.safetensors" and not Path(base).is_file():
        raise ArtifactError("--from: no model.safetensors is in this folder; name a run, such as --from runs/db-pedia.")
    return base


def _check_folder(folder: Path) -> None:
    """Refuse a folder that is a file, or that can't be written."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"--out {folder}: a file is there; give a folder.")
    _check_writable(folder)


def _check_writable(out: Path) -> None:
    existing = next((parent for parent in (out, *out.parents) if parent.exists()), out)
    if existing != out and not existing.is_dir():
        raise ArtifactError(f"--out {out}: {existing} is a file, not a folder; give another place.")
    if not os.access(existing, os.W_OK):
        raise ArtifactError(f"--out {out}: can't be written; give another place.")


def _check_infer(
    texts: list[str] | None,
    file: str | None,
    text_column: list[str] | None,
    encoding: str,
    form: str | None,
    out: Path | None,
    threshold: float,
    unsure: str | None,
    as_json: bool,
) -> None:
    """Refuse flags of `textcls infer` that contradict each other, or would do nothing."""
    if file is not None and texts:
        raise DataError(f"--file {file}: there are texts on the command line as well; give one or the other.")
    if text_column and file is None:
        raise DataError(f"--text-column {text_column[0]}: is of a file; give one with --file.")
    if encoding != "auto" and file is None:
        raise DataError(f"--encoding {encoding}: is of a file; give one with --file.")
    if unsure is not None and not threshold:
        raise DataError(f"--unsure {unsure}: no text is below a --threshold of 0; give a higher one.")
    if as_json and form == "csv":
        raise DataError("--json: contradicts --format csv; leave one out.")
    if out is not None:
        if out.is_dir():
            raise DataError(f"--out {out}: a folder is there; give a file.")
        if form is None and out.suffix.lower() not in ("", ".csv", ".json", ".jsonl", ".txt"):
            raise DataError(f"--out {out}: answers are JSON lines or CSV; end it in .jsonl or .csv, or give --format.")
        if file is not None and out.exists() and os.path.exists(file) and out.samefile(file):
            raise DataError(f"--out {out}: is the file that is read; give another.")
        _check_writable(out)


def _form(from_file: bool, out: Path | None, as_json: bool) -> Literal["lines", "jsonl", "csv"]:
    """The format of answers where none is given."""
    if out is not None and out.suffix.lower() == ".csv" and not as_json:
        return "csv"
    return "jsonl" if from_file or as_json or out is not None else "lines"


@contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """The file at `path`, whole or not at all, or else stdout, both in UTF-8."""
    if path is not None:
        from textcls.files import replaced

        with replaced(path) as temporary, temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        yield sys.stdout
    except BrokenPipeError:
        _drop_stdout()  # whoever reads has enough


def _drop_stdout() -> None:
    """Let what is buffered for stdout go nowhere, else the interpreter would fail to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _examples(config: Config) -> list[str]:
    from textcls.data import sources

    return list(sources.examples(config.dataset, config.data))


def _print_test(counts: "Counts", folder: Path, as_json: bool) -> None:
    rates = {"rows": counts.rows, "loss": counts.loss, "accuracy": counts.accuracy, "macro_f1": counts.macro_f1}
    if as_json:
        print(json.dumps({"run": str(folder), "test": rates}))
        return
    print(
        f"test accuracy {counts.accuracy:.4f}, macro-F1 {counts.macro_f1:.4f}, loss {counts.loss:.4f} "
        f"on {counts.rows:,} rows"
    )
    print(f"saved {folder / 'model.safetensors'}")
