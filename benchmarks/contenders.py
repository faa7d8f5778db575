"""What is timed: textcls, a literal port of the original, Hugging Face's Trainer and pipeline, bare matrix products.

Shapes: B batch, T tokens, D d_model, H heads, F d_ff.

Every contender has the same rows, dimensions and batch size, and answers with how many rows it did in how many seconds.
"""

import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import reference
import torch
from torch import Tensor
from torch.nn import functional as F

from textcls.artifact import Artifact, new_model
from textcls.config import Config, recipe
from textcls.data import sources
from textcls.data.batcher import Batcher, epoch_batches, ordered_batches
from textcls.data.encoded import EncodedRows, from_ids
from textcls.data.store import StoredData
from textcls.data.tokenizer import Tokenizer, make_tokenizer
from textcls.evaluate import EVAL_BATCH_TOKENS
from textcls.infer import Classifier
from textcls.journal import Journal
from textcls.model import TransformerClassifier
from textcls.train import Trainer
from textcls.training_data import TrainingData

ORIGINAL: dict[str, dict[str, Any]] = {
    "ag-news": {
        "tokenizer": {"source": "bert-base-cased"},
        "transformer": {"n_layers": 4, "dropout": 0.1, "token_dropout": 0.0},
        "pretraining": {"epochs": 0},
    },
    "db-pedia": {
        "tokenizer": {"source": "bert-base-cased"},
        "transformer": {"d_model": 256, "d_ff": 1024, "n_heads": 8, "dropout": 0.1},
        "pretraining": {"epochs": 0},
    },
}
"""What the original's model has that the recipe's has not."""
PIPELINE_BATCH_SIZES = (1, 8, 32, 128)
_LITERAL_BATCHES = 3  # it pads every row to one length, so a few batches tell its rate
_WARM_UP_BATCHES = 1

Rate = tuple[int, float]  # rows, seconds
Part = TypeVar("Part")


@dataclass(frozen=True)
class Work:
    """The rows that all contenders are given, and the model that they build."""

    dataset: str
    n_rows: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the data set's recipe, with the original's model."""

    @cached_property
    def config(self) -> Config:
        whole_epochs = {"data": {"rows_per_epoch": 0}, "training": {"epochs": 2}}
        original = recipe(self.dataset).override(ORIGINAL[self.dataset])
        return original.override(whole_epochs).override(self.changes)

    @cached_property
    def stored(self) -> StoredData:
        return sources.load(self.dataset)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return make_tokenizer(self.config.tokenizer, iter(()))

    @cached_property
    def items(self) -> list[tuple[str, int]]:
        """Texts and labels, drawn from the train split by a fixed seed."""
        train = self.stored.splits["train"]
        chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: self.n_rows]
        return [(item.text, item.label) for item in (train[row] for row in chosen.tolist())]

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.items]

    @cached_property
    def labels(self) -> Tensor:
        return torch.tensor([label for _, label in self.items])

    @cached_property
    def rows(self) -> EncodedRows:
        return from_ids(self.tokenizer.encode_batch(self.texts, self.config.batch.max_length), self.labels)

    @cached_property
    def batcher(self) -> Batcher:
        return Batcher.of(self.rows, self.tokenizer.pad_token, self.config.batch)

    def model(self) -> TransformerClassifier:
        torch.manual_seed(0)
        n_classes = len(self.stored.class_names)
        return new_model(self.config, vocab_size=self.tokenizer.vocab_size, n_classes=n_classes)


def train_textcls(work: Work) -> Rate:
    """Two epochs of the real loop; the second one's rate, as the run itself reports it."""
    every_row = torch.arange(len(work.rows))
    data = TrainingData(
        batcher=work.batcher,
        text_rows=every_row,
        train_rows=every_row,
        valid_rows=every_row[:32],
        class_names=work.stored.class_names,
    )
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        Trainer(work.model(), data, work.config, torch.device("cpu"), Path(folder), journal).fit()
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["rows_per_second"] for line in lines if "rows_per_second" in line]
    return len(every_row), len(every_row) / speeds[-1]


def train_literal(work: Work) -> Rate:
    """The original as written: tokenised in the loop, padded to the limit, every position, every op spelt out, Adam."""
    weights = dict(work.model().named_parameters())
    optimizer = torch.optim.Adam(weights.values(), lr=1e-5, eps=1e-5, weight_decay=5e-5, foreach=False, fused=False)
    drop = partial(F.dropout, p=work.config.transformer.dropout)

    def step(texts: list[str], labels: Tensor) -> None:
        loss = reference.loss(_literal_logits(work, weights, texts, drop), labels)
        loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    batches = zip(
        _in_batches(work.texts, work.config.batch.size), work.labels.split(work.config.batch.size), strict=True
    )
    chosen = list(itertools.islice(batches, _WARM_UP_BATCHES + _LITERAL_BATCHES))
    return _timed(lambda batch: step(*batch), chosen, lambda batch: len(batch[1]))


def train_matrix_products(work: Work) -> Rate:
    """The matrix products of textcls's own batches, forward and backward, with nothing around them: the floor."""
    batches = epoch_batches(work.batcher, torch.arange(len(work.rows)), work.config.batch.size, seed=0)
    shapes = [tuple(work.batcher.batch(batch).tokens.shape) for batch in batches]
    return _timed(partial(_matrix_products, work.config, backward=True), shapes, lambda shape: shape[0])


def train_trainer(work: Work, *, by_length: bool) -> Rate:
    """Hugging Face's Trainer over a BERT of the same dimensions: the second of two epochs; tokenised beforehand."""
    import transformers

    times: list[float] = []

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # Any, as mypy is told
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    rows = [
        {"input_ids": work.rows.ids[start:stop].tolist(), "labels": int(label)}
        for start, stop, label in zip(work.rows.offsets[:-1], work.rows.offsets[1:], work.labels, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=work.config.batch.size,
            num_train_epochs=2,
            learning_rate=1e-3,
            train_sampling_strategy="group_by_length" if by_length else "random",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        transformers.Trainer(
            model=_bert(work),
            args=arguments,
            train_dataset=rows,
            data_collator=transformers.DataCollatorWithPadding(_hugging_face_tokenizer(work)),
            callbacks=[Clock()],
        ).train()
    return len(rows), times[-1] - times[-2]


def infer_textcls(work: Work) -> Rate:
    """Texts to classes through `Classifier.predict`."""
    artifact = Artifact(
        model=work.model(), config=work.config, class_names=work.stored.class_names, tokenizer=work.tokenizer
    )
    classifier = Classifier(artifact, torch.device("cpu"))
    return _timed(classifier.predict, [work.texts[:64], work.texts], len)


def infer_literal(work: Work) -> Rate:
    """Texts to classes by the literal reference, tokenising each text on its own."""
    weights = dict(work.model().named_parameters())

    @torch.no_grad()
    def classify(texts: list[str]) -> None:
        _literal_logits(work, weights, texts, reference.keep_all).softmax(-1).argmax(-1).tolist()

    chosen = itertools.islice(_in_batches(work.texts, work.config.batch.size), _WARM_UP_BATCHES + _LITERAL_BATCHES)
    return _timed(classify, list(chosen), len)


def infer_matrix_products(work: Work) -> Rate:
    """The matrix products of textcls's own evaluation batches, with nothing around them."""
    every_row = torch.arange(len(work.rows))
    shapes = [tuple(batch.tokens.shape) for _, batch in ordered_batches(work.batcher, every_row, EVAL_BATCH_TOKENS)]
    return _timed(partial(_matrix_products, work.config, backward=False), shapes, lambda shape: shape[0])


def infer_pipeline(work: Work, *, batch_size: int) -> Rate:
    """Hugging Face's pipeline over a BERT of the same dimensions."""
    import transformers

    pipeline: Any = transformers.pipeline(
        "text-classification",
        model=_bert(work),
        tokenizer=_hugging_face_tokenizer(work),
        device="cpu",
        batch_size=batch_size,
    )

    def classify(texts: list[str]) -> None:
        list(pipeline(texts, truncation=True, max_length=work.config.batch.max_length, top_k=None))

    return _timed(classify, [work.texts[:64], work.texts], len)


TRAINING: dict[str, Callable[[Work], Rate]] = {
    "textcls": train_textcls,
    "literal port": train_literal,
    "HF Trainer, dynamic padding": partial(train_trainer, by_length=False),
    "HF Trainer, grouped by length": partial(train_trainer, by_length=True),
    "matrix products alone": train_matrix_products,
}
INFERENCE: dict[str, Callable[[Work], Rate]] = {
    "textcls": infer_textcls,
    "literal port": infer_literal,
    **{f"HF pipeline, batch {size}": partial(infer_pipeline, batch_size=size) for size in PIPELINE_BATCH_SIZES},
    "matrix products alone": infer_matrix_products,
}


def _timed(do: Callable[[Part], object], parts: list[Part], count: Callable[[Part], int]) -> Rate:
    """Do every part, and time all but the first, which warms up."""
    do(parts[0])
    started = time.perf_counter()
    for part in parts[1:]:
        do(part)
    return sum(map(count, parts[1:])), time.perf_counter() - started


def _in_batches(texts: list[str], size: int) -> Iterator[list[str]]:
    yield from (texts[start : start + size] for start in range(0, len(texts), size))


def _literal_logits(work: Work, weights: dict[str, Any], texts: list[str], drop: reference.Drop) -> Tensor:
    config, limit = work.config.transformer, work.config.batch.max_length
    tokens, keep = reference.pad([work.tokenizer.encode(t, limit) for t in texts], limit, work.tokenizer.pad_token)
    return reference.logits(
        *(weights, tokens, keep),
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        quiet=config.quiet_softmax,
        drop=drop,
        drop_scores=drop,
    )


def _matrix_products(config: Config, shape: tuple[int, int], *, backward: bool) -> None:
    """Those of one batch (B, T): (rows, inner, columns) of every linear, and of every head's scores and mixing.

    Going back takes two products of the same size for each: the gradient of either factor.
    """
    size, length = shape
    model = config.transformer
    d_model, d_ff, head = model.d_model, model.d_ff, model.d_model // model.n_heads
    for layer in range(model.n_layers):
        n_queries = 1 if layer == model.n_layers - 1 else length
        for positions, inner, outer in (
            *((size * n_queries, d_model, d_model) for _ in ("query", "output")),
            *((size * length, d_model, d_model) for _ in ("key", "value")),
            (size * n_queries, d_model, d_ff),
            (size * n_queries, d_ff, d_model),
        ):
            x, weight = _numbers(positions, inner), _numbers(outer, inner)
            y = x @ weight.T
            if backward:
                torch.mm(y, weight)
                torch.mm(y.T, x)
        query, key = (_numbers(size * model.n_heads, n, head) for n in (n_queries, length))
        scores = query @ key.mT
        mixed = scores @ key
        if backward:
            for left, right in ((scores, key), (scores.mT, query), (mixed, key.mT), (scores.mT, mixed)):
                torch.bmm(left, right)


@cache
def _normal_numbers() -> Tensor:
    return torch.randn(2**25)


def _numbers(*shape: int) -> Tensor:
    """Ordinary numbers of a shape: what is left in fresh memory could be denormal, which is slow to multiply."""
    return _normal_numbers()[: math.prod(shape)].view(shape)


def _bert(work: Work) -> Any:
    import transformers

    config = work.config.transformer
    torch.manual_seed(0)
    settings: Any = transformers.BertConfig
    return transformers.BertForSequenceClassification(
        settings(
            vocab_size=work.tokenizer.vocab_size,
            hidden_size=config.d_model,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            intermediate_size=config.d_ff,
            max_position_embeddings=work.config.batch.max_length,
            num_labels=len(work.stored.class_names),
        )
    )


def _hugging_face_tokenizer(work: Work) -> Any:
    import tokenizers
    import transformers

    inner = tokenizers.Tokenizer.from_str(work.tokenizer.to_json())
    wrapper: Any = transformers.PreTrainedTokenizerFast
    return wrapper(tokenizer_object=inner, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]")
