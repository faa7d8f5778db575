import math
from pathlib import Path

import pytest
import torch

import textcls
from textcls import artifact
from textcls.data import sources
from textcls.errors import DeviceError


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
    "text", ["", "   ", "\n\t", "🙂", "日本語", "a" * 100_000, "\x1b[2J", "nul\0l", "#39; &lt;b&gt;"]
)
def test_every_text_has_an_answer(classifier: "textcls.Classifier", text: str) -> None:
    (prediction,) = classifier.predict([text])
    assert math.fsum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-6)


def test_an_empty_text_is_what_white_space_is(classifier: "textcls.Classifier") -> None:
    empty, blank = classifier.predict(["", " \n "])
    assert empty.probabilities == blank.probabilities


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
