"""What a data set is to everything else: labelled texts, and names for the labels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextClassificationItem:
    """One labelled text; the label is an index into the class names."""

    text: str
    label: int


class TextClassificationDataset(ABC, Sequence[TextClassificationItem]):
    """The rows of one split: a sequence of items that also knows its classes and reads many rows at once."""

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in label order."""

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def class_name(self, label: int) -> str:
        """The name of the class that a label stands for."""
        return self.class_names[label]

    @abstractmethod
    def rows(self, start: int, stop: int) -> list[TextClassificationItem]:
        """Rows start to stop (excluded), in order: one read, however many."""
