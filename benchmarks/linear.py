"""What a linear model reaches on the rows that textcls trains on: TF-IDF of words and pairs of words, and a linear SVM.

    scripts/linear ag-news
    scripts/linear ag-news --labels-per-class 100
    scripts/linear banking77          a file or folder of your own

It learns from the training rows alone; how strong its regularisation is, the validation rows decide.
"""

import argparse

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from textcls.config import recipe
from textcls.data import sources
from textcls.data.dataset import TextClassificationItem
from textcls.data.tokenizer import make_tokenizer
from textcls.training_data import prepare, training_texts

STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Of the SVM: what a margin that is violated costs."""


def main() -> None:
    """Train the linear model on a data set's training rows, and print its accuracies."""
    parser = argparse.ArgumentParser(prog="scripts/linear")
    parser.add_argument("dataset")
    parser.add_argument("--labels-per-class", type=int, default=0, help="0: every label")
    parser.add_argument("--seed", type=int, default=0, help="of the carving, as in textcls train")
    arguments = parser.parse_args()
    config = recipe(arguments.dataset)
    config = recipe(arguments.dataset, sources.measure(arguments.dataset, config.data)).override(
        {"data": {"labels_per_class": arguments.labels_per_class}, "training": {"seed": arguments.seed}}
    )
    stored = sources.load(arguments.dataset, config.data)
    data = prepare(config, stored, make_tokenizer(config.tokenizer, training_texts(config, stored)))
    train, test = (split.rows(0, len(split)) for split in (stored.splits["train"], stored.splits["test"]))
    texts, labels = columns([train[row] for row in data.train_rows.tolist()])
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    vectors = vectorizer.fit_transform(texts)
    valid_texts, valid_labels = columns([train[row] for row in data.valid_rows.tolist()])
    valid = vectorizer.transform(valid_texts)
    fitted = {strength: LinearSVC(C=strength).fit(vectors, labels) for strength in STRENGTHS}
    accuracies = {strength: model.score(valid, valid_labels) for strength, model in fitted.items()}
    best = max(STRENGTHS, key=lambda strength: accuracies[strength])
    test_texts, test_labels = columns(test)
    tested = fitted[best].score(vectorizer.transform(test_texts), test_labels)
    print(f"rows {len(labels):,}   validation {accuracies[best]:.4f} (C = {best})   test {tested:.4f}")


def columns(items: list[TextClassificationItem]) -> tuple[list[str], list[int]]:
    """The texts and the labels of some rows."""
    return [item.text for item in items], [item.label for item in items]


if __name__ == "__main__":
    main()
