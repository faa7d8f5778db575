import math
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from torch import Tensor
from torch.nn import functional as F

from textcls.config import TransformerConfig
from textcls.data import sources
from textcls.data.tokenizer import fetch_tokenizer, train_tokenizer
from textcls.model import Dropout, Embeddings, TransformerClassifier, attention_mask, count_parameters, dropout_scale
from textcls.runtime import autocast

SMALL = TransformerConfig(d_model=32, n_heads=4, d_ff=64, n_layers=3, dropout=0.1)


def sample_rows() -> tuple[list[list[int]], Tensor, int]:
    """Token ids and labels of real texts of many lengths, and the vocabulary's size."""
    stored = sources.load("sample")
    items = stored.splits["train"][:24]
    tokenizer = train_tokenizer((item.text for item in stored.splits["train"]), 1_000)
    return tokenizer.encode_batch([i.text for i in items], 48), torch.tensor([i.label for i in items]), 1_000


def hub_rows() -> tuple[list[list[int]], Tensor, int]:
    tokenizer = fetch_tokenizer("bert-base-cased")
    items = sources.load("ag-news").splits["train"][:24]
    return tokenizer.encode_batch([i.text for i in items], 48), torch.tensor([i.label for i in items]), 28_996


def gradients(loss: Tensor, model: TransformerClassifier) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


@pytest.mark.parametrize("rows", [sample_rows, pytest.param(hub_rows, marks=pytest.mark.hub)])
@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_logits_and_gradients_equal_the_literal_reference(
    rows: Any, quiet: bool, dtype: torch.dtype, tolerance: float
) -> None:
    ids, labels, vocab_size = rows()
    config = replace(SMALL, quiet_softmax=quiet, embedding_std=0.5)
    model = TransformerClassifier(config, vocab_size=vocab_size, max_length=64, n_classes=4).to(dtype).eval()
    weights = dict(model.named_parameters())
    padded = reference.pad(ids, 64, 0)
    expected_logits = reference.logits(weights, *padded, n_layers=config.n_layers, n_heads=config.n_heads, quiet=quiet)
    expected = gradients(reference.loss(expected_logits, labels), model)

    logits = model(*reference.pad(ids, max(map(len, ids)), 0))
    actual = gradients(torch.nn.functional.cross_entropy(logits, labels), model)

    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=tolerance)
    for name, gradient in expected.items():
        assert float((actual[name] - gradient).abs().max()) <= tolerance, name
    assert max(float(gradient.abs().max()) for gradient in actual.values()) > 1e-3  # not all vanishing


def replayed(factors: list[Tensor]) -> reference.Drop:
    """Dropout with given factors in their order; positions that a factor doesn't cover are ones that nothing reads."""
    remaining = iter(factors)

    def drop(x: Tensor) -> Tensor:
        factor, whole = next(remaining), torch.ones_like(x)
        whole[:, : factor.shape[1]] = factor
        return x * whole

    return drop


@pytest.mark.parametrize("quiet", [True, False])
def test_training_equals_the_literal_reference_given_the_same_draws(
    quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors: list[Tensor] = []

    def recorded(x: Tensor, p: float) -> Tensor:
        factors.append(dropout_scale(x, p))
        return factors[-1]

    monkeypatch.setattr("textcls.model.dropout_scale", recorded)
    ids, labels, vocab_size = sample_rows()
    config = replace(SMALL, quiet_softmax=quiet, embedding_std=0.5, dropout=0.3)
    model = TransformerClassifier(config, vocab_size=vocab_size, max_length=64, n_classes=4).double().train()
    logits = model(*reference.pad(ids, max(map(len, ids)), 0))
    actual = gradients(torch.nn.functional.cross_entropy(logits, labels), model)
    assert len(factors) == 3 * config.n_layers

    expected_logits = reference.logits(
        dict(model.named_parameters()),
        *reference.pad(ids, 64, 0),
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        quiet=quiet,
        drop=replayed(factors),
    )
    expected = gradients(reference.loss(expected_logits, labels), model)
    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=1e-12)
    for name, gradient in expected.items():
        assert float((actual[name] - gradient).abs().max()) <= 1e-12, name


def test_quiet_softmax_by_its_formula() -> None:
    x = torch.tensor([0.3, -2.0, 1.7], dtype=torch.float64)
    padded = torch.cat([x, torch.zeros(1, dtype=torch.float64)]).softmax(-1)[:3]
    torch.testing.assert_close(padded, x.exp() / (1 + x.exp().sum()), rtol=0, atol=1e-15)


def test_score_dropout_is_off_in_eval_and_on_in_training() -> None:
    config = replace(SMALL, dropout=0.0, score_dropout=0.5)
    model = TransformerClassifier(config, vocab_size=50, max_length=16, n_classes=3)
    tokens, keep = torch.randint(50, (4, 16)), torch.ones(4, 16, dtype=torch.bool)
    keep[:, 9:] = False
    plain = TransformerClassifier(SMALL, vocab_size=50, max_length=16, n_classes=3)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(tokens, keep), plain.eval()(tokens, keep))
    model.train()
    assert not torch.allclose(model(tokens, keep), model(tokens, keep))
    model.load_state_dict(plain.state_dict())
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 1e-9 if module.p else 0.0  # the explicit path, with nothing dropped
    torch.testing.assert_close(model(tokens, keep), plain(tokens, keep), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quiet", [True, False])
def test_one_token_rows_give_finite_logits(dtype: torch.dtype, quiet: bool) -> None:
    config = replace(SMALL, quiet_softmax=quiet)
    model = TransformerClassifier(config, vocab_size=50, max_length=16, n_classes=3).eval()
    tokens, keep = torch.randint(50, (3, 12)), torch.zeros(3, 12, dtype=torch.bool)
    keep[:, 0] = True
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        assert bool(torch.isfinite(model(tokens, keep)).all())


def test_initialisation_is_the_field_s() -> None:
    config = replace(SMALL, d_model=64, embedding_std=0.05)
    model = TransformerClassifier(config, vocab_size=5_000, max_length=256, n_classes=4)
    for table in (model.embeddings.token, model.embeddings.position):
        assert float(table.weight.detach().std()) == pytest.approx(0.05, rel=0.05)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            assert 0.9 * bound < float(module.weight.detach().abs().max()) <= bound, name
            assert float(module.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.15), name


def test_parameter_count_by_hand() -> None:
    model = TransformerClassifier(SMALL, vocab_size=100, max_length=20, n_classes=3)
    d, f = 32, 64
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d
    assert count_parameters(model) == (120 * d + 3 * layer + 3 * d + 3,) * 2
    model.embeddings.requires_grad_(False)
    assert count_parameters(model) == (120 * d + 3 * layer + 3 * d + 3, 3 * layer + 3 * d + 3)


def test_the_mask_is_left_out_only_where_nothing_is_padding() -> None:
    keep = torch.ones(2, 5, dtype=torch.bool)
    assert attention_mask(keep) is None
    keep[1, 4] = False
    mask = attention_mask(keep)
    assert mask is not None
    assert mask.shape == (2, 1, 1, 5)


def test_token_embeddings_take_given_directions_and_one_length() -> None:
    torch.manual_seed(0)
    embeddings = Embeddings(50, 8, 16, 0.05, 0.0)
    drawn = embeddings.token.weight.detach().clone()
    vectors = 30 * torch.randn(50, 16)
    vectors[7] = 0
    embeddings.start_from(vectors, 0.5)
    weight = embeddings.token.weight
    assert torch.equal(weight[7], drawn[7])
    known = torch.arange(50) != 7
    assert torch.allclose(F.cosine_similarity(weight[known], vectors[known]), torch.ones(49), atol=1e-5)
    assert torch.allclose(weight[known].square().mean(1).sqrt(), torch.full((49,), 0.5), atol=1e-5)
    assert weight.requires_grad


def test_token_dropout_hides_tokens_and_keeps_positions() -> None:
    config = replace(SMALL, dropout=0.0, token_dropout=0.25)
    model = TransformerClassifier(config, vocab_size=50, max_length=200, n_classes=3).train()
    tokens = torch.randint(50, (100, 200))
    whole, hidden = model.eval().embeddings(tokens), model.train().embeddings(tokens)
    position = model.embeddings.position.weight * 0.5
    is_hidden = (hidden == position).all(-1)
    assert float(is_hidden.double().mean()) == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 20_000))
    assert torch.equal(hidden[~is_hidden], whole[~is_hidden])


class TestDropout:
    """It must stay true dropout: rate, scale, seed, independence."""

    @pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
    def test_rate_and_scale(self, p: float) -> None:
        n = 4_000_000
        scale = dropout_scale(torch.empty(n), p)
        assert set(scale.unique().tolist()) == {0.0, torch.tensor(1 / (1 - p)).item()}
        rate = float((scale == 0).double().mean())
        assert abs(rate - p) < 5 * math.sqrt(p * (1 - p) / n) + 2**-17  # five standard errors: 0.0008 at 0.1
        assert float(scale.double().mean()) == pytest.approx(1, abs=2e-3)

    def test_elements_and_steps_are_independent(self) -> None:
        n, p = 1_000_000, 0.3
        first, second = ((dropout_scale(torch.empty(n), p) == 0).double() for _ in range(2))
        limit = 5 / math.sqrt(n)
        for lag in (1, 2, 3, 4, 5, 8, 64, 128):  # within a wide draw, and across
            assert abs(_correlation(first[lag:], first[:-lag])) < limit, lag
        assert abs(_correlation(first, second)) < limit

    def test_every_place_of_a_wide_draw_has_the_rate(self) -> None:
        dropped = (dropout_scale(torch.empty(1_000_000, 4), 0.1) == 0).double().mean(0)
        assert torch.allclose(dropped, torch.full((4,), 0.1, dtype=torch.float64), atol=5 * 3e-4)

    def test_seeded_and_restorable(self) -> None:
        layer, x = Dropout(0.1).train(), torch.ones(3, 7, 5)
        torch.manual_seed(3)
        first = layer(x)
        state = torch.get_rng_state()
        second = layer(x)
        torch.manual_seed(3)
        assert torch.equal(layer(x), first)
        torch.set_rng_state(state)
        assert torch.equal(layer(x), second)
        assert not torch.equal(first, second)

    def test_gradient_is_the_scale(self) -> None:
        x = torch.randn(100, 33, requires_grad=True)
        torch.manual_seed(5)
        y = Dropout(0.2).train()(x)
        torch.manual_seed(5)
        scale = dropout_scale(x, 0.2)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, scale)
        assert torch.equal(y, x * scale)

    def test_off_in_eval(self) -> None:
        x = torch.randn(10)
        assert Dropout(0.9).eval()(x) is x


def _correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("score_dropout", [0.0, 0.1])
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_rows_of_padding_or_one_token_are_finite(dtype: str, quiet: bool, score_dropout: float, training: bool) -> None:
    config = TransformerConfig(d_model=32, d_ff=64, n_layers=2, quiet_softmax=quiet, score_dropout=score_dropout)
    model = TransformerClassifier(config, vocab_size=50, max_length=16, n_classes=3).train(training)
    keep = torch.tensor([[False] * 5, [True] + [False] * 4, [True] * 5])
    with autocast(torch.device("cpu"), dtype):
        logits = model(torch.randint(50, (3, 5)), keep)
    assert bool(torch.isfinite(logits).all())
    logits.float().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
