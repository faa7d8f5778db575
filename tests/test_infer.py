import math
from pathlib import Path

import pytest
import torch

import textcls
from textcls import artifact
from textcls.config import TransformerConfig
from textcls.data import sources
from textcls.errors import DeviceError
from textcls.model import TransformerClassifier


@pytest.fixture(scope="module")
def classifier(small_run: Path) -> "textcls.Classifier":
    return textcls.load(small_run, device="cpu")


def texts() -> list[str]:
    return [item.text for item in sources.load("sample").splits["test"][:150]]


def test_answers_are_in_the_order_of_the_texts_and_independent_of_each_other(classifier: "textcls.Classifier") -> None:
    together = classifier.predict(texts())
    assert [prediction.text for prediction in together] == texts()
    for prediction in together[::10]:
        (alone,) = classifier.predict([prediction.text])
        assert alone.class_name == prediction.class_name
        assert alone.probabilities == pytest.approx(prediction.probabilities, abs=1e-5)
    backwards = classifier.predict(texts()[::-1])
    assert [p.class_name for p in backwards] == [p.class_name for p in together[::-1]]


def test_probabilities_are_the_softmax_of_the_logits(classifier: "textcls.Classifier", small_run: Path) -> None:
    loaded = artifact.load(small_run / "model.safetensors")
    for prediction in classifier.predict(texts()[:5]):
        ids = torch.tensor([loaded.tokenizer.encode(prediction.text, loaded.config.batch.max_length)])
        with torch.inference_mode():
            expected = loaded.model(ids, torch.ones_like(ids, dtype=torch.bool)).softmax(-1)[0]
        assert list(prediction.probabilities) == list(loaded.class_names)
        assert list(prediction.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-6)
        assert math.fsum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-6)
        assert prediction.class_name == max(prediction.probabilities, key=prediction.probabilities.__getitem__)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "\n\t",
        "a",
        "🙂",
        "日本語",
        "a" * 100_000,
        "\x1b[2J",
        "nul\0l",
        "#39; &lt;b&gt;",
        "\ud83d",
        "a\udc80b",
        "\0",
    ],
)
def test_every_text_has_an_answer(classifier: "textcls.Classifier", text: str) -> None:
    (prediction,) = classifier.predict([text])
    assert math.fsum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-6)


def test_an_empty_text_is_what_white_space_is(classifier: "textcls.Classifier") -> None:
    empty, blank = classifier.predict(["", " \n "])
    assert empty.probabilities == blank.probabilities


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        *((f"Shares fell.{end}", "Shares fell.") for end in ("\n", "\r\n", "\r")),
        ("Shares\r\nfell.", "Shares fell."),
        ("Shares fell\udc80.", "Shares fell."),
        ("Shares \ud83d\ude42 fell.", "Shares 🙂 fell."),
    ],
)
def test_lone_surrogates_and_line_ends_change_nothing(text: str, plain: str, classifier: "textcls.Classifier") -> None:
    ((one,), (other,)) = (classifier.predict([text]), classifier.predict([plain]))
    assert one.probabilities == other.probabilities


@pytest.mark.parametrize("quiet", [True, False])
def test_a_row_that_is_all_padding_gives_finite_logits(quiet: bool) -> None:
    settings = TransformerConfig(d_model=16, n_heads=4, d_ff=32, n_layers=2, quiet_softmax=quiet)
    model = TransformerClassifier(settings, vocab_size=9, max_length=5, n_classes=3).eval()
    keep = torch.tensor([[True, True, False], [False, False, False]])
    assert torch.isfinite(model(torch.zeros(2, 3, dtype=torch.int64), keep)).all()


def test_top_k_keeps_the_most_probable_in_order(classifier: "textcls.Classifier") -> None:
    every = classifier.predict(texts())
    for top_k in (1, 3, 4, 9):
        for prediction, whole in zip(classifier.predict(texts(), top_k=top_k), every, strict=True):
            ranked = sorted(whole.probabilities.items(), key=lambda pair: -pair[1])
            assert list(prediction.probabilities.items()) == ranked[:top_k]
            assert prediction.probability == whole.probability == max(whole.probabilities.values())
            assert prediction.class_name == whole.class_name


def test_one_text_in_the_place_of_many_is_refused(classifier: "textcls.Classifier") -> None:
    with pytest.raises(TypeError, match="give a list of texts"):
        classifier.predict("abc")
    with pytest.raises(TypeError, match="texts has None in it, which is no str"):
        classifier.predict(["abc", None])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="top_k is 0; give 1 or more"):
        classifier.predict(["abc"], top_k=0)


def test_no_texts_no_answers(classifier: "textcls.Classifier") -> None:
    assert classifier.predict([]) == []


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_precision_stays_near(small_run: Path, classifier: "textcls.Classifier", dtype: str) -> None:
    half = textcls.load(small_run, device="cpu", dtype=dtype).probabilities(texts())
    assert float((half - classifier.probabilities(texts())).abs().max()) < 0.05


def test_a_device_that_is_not_there_is_a_sentence(small_run: Path) -> None:
    missing = "mps" if torch.cuda.is_available() else "cuda"
    with pytest.raises(DeviceError, match=f"--device {missing}: not available here; use one of: auto, .*cpu"):
        textcls.load(small_run, device=missing)


def test_the_public_names_are_there_and_no_others() -> None:
    assert all(hasattr(textcls, name) for name in textcls.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        textcls.lode  # noqa: B018
