"""What `textcls infer` writes, one text after the other as the model answers: lines to read, JSON lines, or CSV."""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import tee
from typing import Any, Literal, TextIO

from textcls.data.texts import UnlabelledText
from textcls.display import json_line, printable
from textcls.infer import Classifier

Format = Literal["lines", "jsonl", "csv"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One text with its class."""

    id: Any
    text: str
    class_name: str | None
    """The most probable class, or what stands for it where its probability is below the threshold."""
    probability: float
    """That of the most probable class, whether it is below the threshold or not."""
    top: dict[str, float]
    """The top_k most probable classes, most probable first; none where they weren't asked for."""


def answer(
    classifier: Classifier,
    texts: Iterable[UnlabelledText],
    *,
    top_k: int = 0,
    threshold: float = 0.0,
    unsure: str | None = None,
) -> Iterator[Answer]:
    """Classify texts as they come, in bounded memory.

    Args:
        classifier: the model.
        texts: read only as far as answers are taken, by chunks.
        top_k: how many classes `Answer.top` lists.
        threshold: the probability below which the class is `unsure`.
        unsure: what stands for the class then.
    """
    read, again = tee(texts)
    predictions = classifier.stream((item.text for item in read), top_k=max(1, top_k))
    # The predictions come first: where reading fails, they raise, while `again` would merely end.
    for prediction, item in zip(predictions, again, strict=False):
        yield Answer(
            id=item.id,
            text=item.text,
            class_name=prediction.class_name if prediction.probability >= threshold else unsure,
            probability=prediction.probability,
            top=prediction.probabilities if top_k else {},
        )


def write_answers(answers: Iterable[Answer], file: TextIO, form: Format, top_k: int) -> None:
    """Write answers to a file, each as soon as it is there."""
    write = (
        _csv_writer(file, top_k) if form == "csv" else _line_writer(file, _as_json if form == "jsonl" else _as_lines)
    )
    for item in answers:
        write(item)
        file.flush()


def _line_writer(file: TextIO, shown: Callable[[Answer], str]) -> Callable[[Answer], None]:
    def write(item: Answer) -> None:
        file.write(shown(item) + "\n")

    return write


def _as_lines(item: Answer) -> str:
    ranked = "  ".join(f"{printable(name)} {probability:.3f}" for name, probability in item.top.items())
    name = "(unsure)" if item.class_name is None else printable(item.class_name)
    return f"{printable(item.text)}\n  -> {name}   ({ranked})"


def _as_json(item: Answer) -> str:
    values = {"id": item.id, "text": item.text, "class": item.class_name, "probability": item.probability}
    return json_line(values | {"probabilities": item.top} if item.top else values)


def _csv_writer(file: TextIO, top_k: int) -> Callable[[Answer], None]:
    """The header is written at once, so that a file without texts is a table without rows."""
    writer = csv.writer(file, lineterminator="\n")
    on_terminal = file.isatty()  # a file gets every text as it is
    ranks = range(1, top_k + 1)
    top_columns = [column for rank in ranks for column in (f"class_{rank}", f"probability_{rank}")]
    writer.writerow(["id", "text", "class", "probability", *top_columns])

    def write(item: Answer) -> None:
        top = [value for pair in item.top.items() for value in pair]
        values = [item.id, item.text, item.class_name, item.probability, *top]
        writer.writerow([printable(v) if on_terminal and isinstance(v, str) else v for v in values])

    return write
