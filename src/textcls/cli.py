"""The command line: each verb parses, calls one function and prints its result.

Results go to stdout; progress and notes go to stderr. Exit codes: 0, 1 a user's error, 2 usage, 130 interrupted.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from textcls.config import Config, parse_override, read_toml, recipe
from textcls.errors import ArtifactError, UserError

if TYPE_CHECKING:  # torch takes a second to import: each verb imports what it needs
    from textcls.infer import Prediction
    from textcls.metrics import Counts


class Verbs(TyperGroup):
    """Turns a user's error into a sentence and exit code 1, and Ctrl-C into 130; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            print(f"textcls: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print("textcls: interrupted; a training goes on with --resume", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train a Transformer text classifier from scratch, evaluate it, use it, and carry it over with LoRA.",
)

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
BatchSize = Annotated[int | None, typer.Option(help="Same as --set batch.size=N.")]
Seed = Annotated[int | None, typer.Option(help="Same as --set training.seed=N.")]
Out = Annotated[Path | None, typer.Option(help="The run's folder; by default runs/ and the data set's name.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in the folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def _main() -> None:
    # Printing a result must not fail for a terminal that can't show a character of a text.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@app.command(epilog="Example: textcls train ag-news --device cuda --set transformer.d_model=256")
def train(
    dataset: Annotated[str, typer.Argument(help="ag-news, db-pedia or sample.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    device: Device = "auto",
    dtype: Dtype = None,
    out: Out = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a classifier from random weights, save the best epoch's, and test it."""
    flags = _flags(epochs, batch_size, seed, dtype)
    settings = _configure(recipe(dataset), config, overrides or [], flags)
    folder = out or Path("runs") / dataset
    _claim(folder, resume, overwrite)
    _start(dataset)
    from textcls.runtime import resolve_device
    from textcls.train import train as run

    counts = run(settings, device=resolve_device(device), folder=folder, resume=resume)
    _print_test(counts, folder, as_json)


@app.command(epilog="Example: textcls finetune ag-news --from runs/db-pedia/model.safetensors --rank 8")
def finetune(
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
    batch_size: BatchSize = None,
    seed: Seed = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Carry a trained classifier to another data set with LoRA, merge, save, and test it."""
    folder = out or Path("runs") / f"{dataset}-finetuned"
    _claim(folder, resume, overwrite)
    _start(dataset)
    from textcls import artifact
    from textcls.runtime import resolve_device

    trained = artifact.load(artifact.locate(base))
    where = resolve_device(device)
    from textcls.finetune import finetune as run
    from textcls.finetune import finetune_config

    flags = _flags(epochs, batch_size, seed, dtype)
    flags["lora"] = _given(rank=rank, alpha=alpha)
    settings = _configure(finetune_config(trained.config, dataset), config, overrides or [], flags)
    counts = run(trained, settings, device=where, folder=folder, resume=resume)
    _print_test(counts, folder, as_json)


@app.command(epilog='Example: textcls infer ag-news "Stocks fall as oil climbs to a record"')
def infer(
    run: Annotated[str, typer.Argument(help="A data set's name (its run), a run folder, or a model.safetensors.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to classify; without, three examples.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Classify texts: print each with its class and probabilities."""
    from textcls.infer import load

    classifier = load(run, device=device, dtype=dtype or "f32")
    for prediction in classifier.predict(texts or _examples(classifier.artifact.config.dataset)):
        print(_prediction_json(prediction) if as_json else _prediction_lines(prediction))


@app.command(epilog="Example: textcls evaluate ag-news")
def evaluate(
    run: Annotated[str, typer.Argument(help="A data set's name (its run), a run folder, or a model.safetensors.")],
    dataset: Annotated[str | None, typer.Argument(help="By default the one the model was trained on.")] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Evaluate a classifier on every row of a split."""
    from textcls import artifact
    from textcls.data import sources
    from textcls.evaluate import evaluate_split
    from textcls.runtime import resolve_device

    trained = artifact.load(artifact.locate(run))
    name = dataset or trained.config.dataset
    _start(name)
    counts = evaluate_split(trained, sources.load(name), split, resolve_device(device), dtype or "f32")
    if as_json:
        print(json.dumps(_counts_dict(counts, trained.class_names)))
    else:
        print(_counts_table(counts, trained.class_names))


@app.command(epilog="Example: textcls data ag-news")
def data(
    dataset: Annotated[str, typer.Argument(help="ag-news, db-pedia or sample.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Fetch a data set into the cache, and show its rows, classes and lengths."""
    settings = _configure(recipe(dataset), config, overrides or [], {})
    _start(dataset)
    from textcls.survey import survey

    found = survey(settings)
    print(json.dumps(found.to_dict()) if as_json else found.table())


def _start(dataset: str) -> None:
    """Show notes on stderr, and refuse a data set's name that doesn't exist before torch is imported."""
    from textcls.data import sources
    from textcls.journal import show_notes

    sources.find(dataset)
    show_notes()


def _flags(epochs: int | None, batch_size: int | None, seed: int | None, dtype: str | None) -> dict[str, Any]:
    """The keys that have a flag of their own, where it was given."""
    return {"training": _given(epochs=epochs, seed=seed, dtype=dtype), "batch": _given(size=batch_size)}


def _given(**flags: Any) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _configure(base: Config, file: Path | None, overrides: list[str], flags: dict[str, Any]) -> Config:
    """The configuration: `base`, then the file, then --set, then the flags of their own."""
    settings = base
    if file is not None:
        settings = settings.override(read_toml(file), origin=str(file))
    for text in overrides:
        settings = settings.override(parse_override(text), origin="--set")
    return settings.override(flags)


def _claim(folder: Path, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that can't be written, has nothing to resume, or holds a run that nobody said to replace."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"--out {folder}: a file is there; give a folder.")
    existing = next((parent for parent in (folder, *folder.absolute().parents) if parent.exists()), folder)
    if not os.access(existing, os.W_OK):
        raise ArtifactError(f"--out {folder}: can't be written; give another folder.")
    checkpoints, weights = folder / "checkpoints", folder / "model.safetensors"
    if resume and not (checkpoints / "last.pt").exists():
        raise ArtifactError(f"{folder}: has no checkpoint to resume from; train without --resume.")
    if (checkpoints.exists() or weights.exists()) and not (resume or overwrite):
        raise ArtifactError(
            f"{folder}: holds a run already; add --resume to go on with it, --overwrite to replace it, or --out DIR."
        )


def _examples(dataset: str) -> list[str]:
    from textcls.data import sources

    return list(sources.find(dataset).examples)


def _prediction_json(prediction: "Prediction") -> str:
    values = {"text": prediction.text, "class": prediction.class_name, "probabilities": prediction.probabilities}
    return json.dumps(values, ensure_ascii=False)


def _prediction_lines(prediction: "Prediction") -> str:
    ranked = sorted(prediction.probabilities.items(), key=lambda pair: -pair[1])
    shown = "  ".join(f"{name} {probability:.3f}" for name, probability in ranked)
    return f"{_printable(prediction.text)}\n  -> {prediction.class_name}   ({shown})"


def _printable(text: str) -> str:
    """A text with its control characters written out, so that it can't command the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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


def _counts_dict(counts: "Counts", names: tuple[str, ...]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "rows": counts.rows,
        "loss": counts.loss,
        "accuracy": counts.accuracy,
        "macro_f1": counts.macro_f1,
        "weighted_f1": counts.weighted_f1,
        "calibration_error": counts.calibration_error,
        "classes": [asdict(scores) for scores in counts.per_class(names)],
        "confusion": counts.confusion.tolist(),
    }


def _counts_table(counts: "Counts", names: tuple[str, ...]) -> str:
    width = max(5, *map(len, names))
    lines = [
        f"rows {counts.rows:,}   accuracy {counts.accuracy:.4f}   macro-F1 {counts.macro_f1:.4f}   "
        f"weighted F1 {counts.weighted_f1:.4f}   loss {counts.loss:.4f}   "
        f"calibration error {counts.calibration_error:.4f}",
        "",
        f"{'class':<{width}}  precision  recall      F1     rows",
    ]
    lines += [
        f"{s.name:<{width}}  {s.precision:9.4f}  {s.recall:6.4f}  {s.f1:6.4f}  {s.support:7,}"
        for s in counts.per_class(names)
    ]
    lines += ["", "confusion: a row is a true class, a column a predicted one, in the same order"]
    lines += [
        f"{name:<{width}}  " + " ".join(f"{int(n):6}" for n in row)
        for name, row in zip(names, counts.confusion, strict=True)
    ]
    return "\n".join(lines)
