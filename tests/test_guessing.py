import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL
from torch.nn import functional as F

from textcls import guessing
from textcls.artifact import new_model
from textcls.config import Config, recipe
from textcls.data.batcher import Batch, Batcher
from textcls.data.encoded import EncodedRows, from_ids
from textcls.guessing import TokenGuesser, hide, token_counts
from textcls.model import TransformerClassifier, attention_mask
from textcls.train import train

CPU = torch.device("cpu")
VOCABULARY = 50


def small(**sections: dict[str, Any]) -> Config:
    return recipe("sample").override(SMALL).override(sections)


def rows(n: int = 16) -> EncodedRows:
    """Rows of 3 to 30 tokens, of which tokens 40 and above never occur."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 31, (n,), generator=generator).tolist()
    return from_ids([torch.randint(40, (length,), generator=generator).tolist() for length in lengths])


def guesser(counts: torch.Tensor) -> TokenGuesser:
    torch.manual_seed(0)
    return TokenGuesser(new_model(small(), vocab_size=VOCABULARY, n_classes=4), counts)


def test_a_share_of_the_tokens_is_hidden_and_never_an_end_or_padding() -> None:
    keep = torch.arange(60) < torch.randint(2, 61, (4_000, 1))
    hidden = hide(keep, 0.3)
    inner = keep[:, 2:].sum()
    assert float(hidden.sum() / inner) == pytest.approx(0.3, abs=0.01)
    assert not hidden[:, 0].any()
    last = keep.sum(1) - 1
    assert not hidden[torch.arange(len(keep)), last].any()
    assert not (hidden & ~keep).any()


def test_something_is_hidden_even_of_rows_that_have_only_ends() -> None:
    assert hide(torch.ones(3, 2, dtype=torch.bool), 0.3).nonzero().tolist() == [[0, 0]]


def test_tokens_are_counted_in_the_chosen_rows_alone() -> None:
    found = token_counts(from_ids([[1, 2, 2], [3, 3], [2, 4]]), torch.tensor([2, 0]), 6)
    assert found.tolist() == [0, 1, 3, 0, 1, 0]


def test_a_hidden_token_has_no_say_in_its_guess() -> None:
    batch = Batcher(rows(), pad_token=0).batch(torch.arange(16))
    model = guesser(torch.ones(VOCABULARY, dtype=torch.int64)).eval()
    hidden = hide(batch.keep, 0.3)
    other = torch.where(hidden, 49 - batch.tokens, batch.tokens)
    with torch.inference_mode():
        found, expected = (model.encoder.encode(tokens, batch.keep, hidden) for tokens in (other, batch.tokens))
        seen = all_vectors(model.encoder, batch)[hidden]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not torch.isclose(seen, expected).all(dim=1).any()


def all_vectors(encoder: TransformerClassifier, batch: Batch, hidden: torch.Tensor | None = None) -> torch.Tensor:
    """The last layer's vectors of all tokens (B, T, D)."""
    x: torch.Tensor = encoder.embeddings(batch.tokens, hidden)
    for layer in encoder.layers:
        x = layer(x, attention_mask(batch.keep))
    return x


def test_only_the_vectors_of_hidden_tokens_are_computed_and_they_are_as_of_all() -> None:
    batch = Batcher(rows(), pad_token=0).batch(torch.arange(16))
    encoder = guesser(torch.ones(VOCABULARY, dtype=torch.int64)).encoder.eval()
    hidden = hide(batch.keep, 0.3)
    with torch.inference_mode():
        found = encoder.encode(batch.tokens, batch.keep, hidden)
        expected = all_vectors(encoder, batch, hidden)
    torch.testing.assert_close(found, expected[hidden])


def test_scores_are_the_formula_over_every_token_that_occurs() -> None:
    batch = Batcher(rows(), pad_token=0).batch(torch.arange(16))
    counts = token_counts(rows(), torch.arange(16), VOCABULARY)
    model = guesser(counts).eval()
    torch.manual_seed(1)
    scores, targets = model(batch.tokens, batch.keep, 0.3)
    torch.manual_seed(1)
    hidden = hide(batch.keep, 0.3)
    x = model.encoder.encode(batch.tokens, batch.keep, hidden)
    x = F.layer_norm(F.gelu(x @ model.transform.weight.T + model.transform.bias), [32], model.norm.weight)
    every = x @ model.encoder.embeddings.token.weight.T + model.bias
    every[:, counts == 0] = -torch.inf
    expected = F.cross_entropy(every, batch.tokens[hidden])
    torch.testing.assert_close(F.cross_entropy(scores, targets), expected, rtol=1e-5, atol=1e-5)
    assert float(scores.detach().std()) == pytest.approx(1, abs=0.5)


def test_drawn_candidates_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(score), summed over the candidates, is on average that of the whole vocabulary."""
    counts = torch.ones(VOCABULARY, dtype=torch.int64)
    model = guesser(counts).eval()
    batch = Batcher(rows(), pad_token=0).batch(torch.arange(16))

    def sums(n_drawn: int) -> torch.Tensor:
        monkeypatch.setattr(guessing, "N_DRAWN", n_drawn)
        torch.manual_seed(2)
        hidden = hide(batch.keep, 0.05)
        monkeypatch.setattr(guessing, "hide", lambda keep, share: hidden)
        with torch.inference_mode():
            scores = torch.stack([model(batch.tokens, batch.keep, 0.05)[0].exp().sum(1) for _ in range(1_000)])
        monkeypatch.undo()
        return scores.mean(0)

    torch.testing.assert_close(sums(10), sums(VOCABULARY), rtol=0.03, atol=0)


def test_a_hidden_token_is_learnt_from_its_neighbours() -> None:
    """Each row counts upwards from somewhere, so that a neighbour tells all, and frequencies nothing."""
    torch.manual_seed(0)
    tokens = (torch.randint(40, (64, 1)) + torch.arange(12)) % 40
    model = guesser(tokens.flatten().bincount(minlength=VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(250):
        scores, targets = model(tokens, torch.ones_like(tokens, dtype=torch.bool), 0.15)
        F.cross_entropy(scores, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float((scores.argmax(1) == targets).float().mean()) > 0.9


def test_pretraining_learns_from_texts_and_is_on_record(tmp_path: Path) -> None:
    config = small(pretraining={"epochs": 4, "warmup_steps": 10, "lr": 5e-3}, training={"epochs": 1})
    train(config, device=CPU, folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    ends = [line for line in lines if "so_far" not in line]
    assert [(line["split"], line["epoch"], line["step"]) for line in ends] == [
        *(("pretraining", epoch, 35 * epoch) for epoch in (1, 2, 3, 4)),
        *(("train", 1, 175), ("valid", 1, 175)),
    ]
    assert ends[3]["loss"] < ends[0]["loss"] - 0.1
    assert [line["lr"] for line in ends[3:5]] == [0, 0]  # each has a schedule of its own
    assert "pretraining 4/4: train loss" in (tmp_path / "experiment.log").read_text()


def test_an_epoch_of_pretraining_draws_as_many_rows_as_one_of_training(tmp_path: Path) -> None:
    fewer = {"rows_per_epoch": 320, "labels_per_class": 20}
    train(small(pretraining={"epochs": 4}, training={"epochs": 2}, data=fewer), device=CPU, folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    ends = [(line["split"], line["step"]) for line in lines if "so_far" not in line and line["split"] != "valid"]
    assert ends == [*(("pretraining", 10 * n) for n in (1, 2, 3, 4)), ("train", 50), ("train", 60)]


def test_pretraining_drops_nothing_but_what_is_hidden(tmp_path: Path) -> None:
    losses = []
    for dropout in (0.0, 0.5):
        config = small(
            pretraining={"epochs": 1},
            transformer={"dropout": dropout, "score_dropout": dropout, "token_dropout": dropout},
            training={"epochs": 1},
        )
        train(config, device=CPU, folder=tmp_path / f"{dropout}")
        lines = [json.loads(line) for line in (tmp_path / f"{dropout}" / "metrics.jsonl").read_text().splitlines()]
        losses.append({line["split"]: line["loss"] for line in lines})
    assert losses[0]["pretraining"] == losses[1]["pretraining"]
    assert losses[0]["train"] != losses[1]["train"]
