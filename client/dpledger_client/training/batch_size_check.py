"""Realised batch sizes against what was declared: private, so nothing leaves this process."""

import json
import warnings
from collections.abc import Mapping
from typing import Any, Final, Literal

from dpledger_client import sampling_check
from dpledger_client.sampling_check import Evidence
from dpledger_client.sampling_check.batch_size_laws import FIELDS, whole

LEVEL: Final = 1e-6  # the chance that a true declaration is ever refuted


class SamplingContradicted(UserWarning):
    """The batches are not sampled as was declared."""


class Sizes:
    """The evidence against the present declaration, one for each that was made."""

    def __init__(self) -> None:
        self._content: str | None = None
        self._sampling: Mapping[str, Any] | None = None
        self._evidence: Evidence | None = None
        self.verdict: Literal["refuted", "not_refuted"] | None = None  # None: nothing was tested

    @staticmethod
    def checked(size: int, dataset_size: int | None) -> int:
        """The dataset's size, or a refusal of what cannot be tested, before anything is counted.

        Raises:
            ValueError: the size is no count of records, or the dataset's size is not known.
        """
        if dataset_size is None:
            raise ValueError("Testing batch sizes needs dataset_size; give it.")
        if (count := whole(size)) is None or count < 0:
            raise ValueError("size must be an integer >= 0.")
        return dataset_size

    def observe(self, content: str, size: int, dataset_size: int) -> None:
        """Take in the size of the next batch; warn once when it refutes the declaration."""
        if content != self._content:
            self._look_at(content, dataset_size)
        if self._evidence is None:
            return
        self._evidence = sampling_check.observe(self._evidence, size)
        if self.verdict == "refuted":
            return
        self.verdict = "not_refuted"
        if sampling_check.verdict(self._evidence, level=LEVEL) == "refuted":
            self.verdict = "refuted"
            kind = json.loads(content)["sampling"]["kind"]
            warnings.warn(
                f"dpledger: the sizes of the batches refute the declared sampling ({kind}). Do not "
                "rely on an epsilon that assumes it. This verdict is private: it depends on data.",
                SamplingContradicted,
                stacklevel=3,
            )

    def restart(self) -> None:
        """Take the next size for the first of a pass: training goes on on another branch."""
        self._content = self._sampling = None

    def _look_at(self, content: str, dataset_size: int) -> None:
        """Begin anew if the sampling is another one; a change of noise alone is no reason."""
        sampling: Mapping[str, Any] = json.loads(content)["sampling"]
        if sampling != self._sampling:
            self._evidence = None
            if sampling["kind"] in FIELDS:  # others do not fix the sizes
                self._evidence = sampling_check.start(sampling, dataset_size=dataset_size)
        self._content, self._sampling = content, sampling
