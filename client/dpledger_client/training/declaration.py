"""What the steps of a run are, unless a step says otherwise."""

from collections.abc import Mapping
from operator import index
from typing import Any

from dpledger_client.recording.event_buffer import STEPS_MAX, content_of
from dpledger_client.schemas import lacks_length, no_length

Fields = Mapping[str, Any]


def count_of(steps: int) -> int:
    """A number of steps as JSON has it, whatever library it came from.

    Raises:
        ValueError: it is below 1, or above 1e9, which one event may have.
        TypeError: it is a fraction.
    """
    if not 1 <= steps <= STEPS_MAX:
        raise ValueError(f"A number of steps must be at least 1 and at most {STEPS_MAX}.")
    return int(index(steps))


class Declaration:
    """A mechanism and a sampling, either of which may still be missing."""

    def __init__(
        self, mechanism: Fields | None, sampling: Fields | None, *, dataset_size: int | None = None
    ) -> None:
        self._dataset_size = dataset_size
        self.mechanism = None if mechanism is None else dict(mechanism)
        self.sampling = None if sampling is None else dict(sampling)
        self.default = self._joined()  # what a step is that says nothing of itself; None: unknown

    def changed(self, mechanism: Fields | None, sampling: Fields | None) -> "Declaration":
        """Another one, in which what is given replaces what was.

        Raises:
            TypeError, ValueError: it cannot be sent.
        """
        return Declaration(
            self.mechanism if mechanism is None else mechanism,
            self.sampling if sampling is None else sampling,
            dataset_size=self._dataset_size,
        )

    def content(self, mechanism: Fields | None, sampling: Fields | None) -> str:
        """What a step is that says so much of itself, as text.

        Raises:
            ValueError: its mechanism or its sampling was never given, or the length of its passes.
            TypeError, ValueError: it cannot be sent.
        """
        said = self
        if not mechanism is sampling is None:
            said = self.changed(mechanism, sampling)
        if (content := said.default) is None:
            if said.sampling is not None and lacks_length(said.sampling):
                raise no_length(said.sampling, dataset_size=self._dataset_size)
            raise ValueError("Give the mechanism and the sampling, here or with declare().")
        return content

    def _joined(self) -> str | None:
        if self.mechanism is None or self.sampling is None or lacks_length(self.sampling):
            return None  # a loader that is watched may still tell how long its passes are
        return content_of(self.mechanism, self.sampling)
