"""Known defects of libraries that train with differential privacy, and which runs they concern.

What a run records, it records on its library's word. Where a version of a library told its
accountant more noise than it used, or let a record weigh more than it should, no accounting of ours
finds out. So runs say what was loaded, in labels `library.NAME: VERSION`, and those that a known
defect concerns are marked. No guarantee changes by it: whether a run used what was defective, only
those who trained it can tell.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.schemas.responses import AdvisoryAnswer

LABEL: Final = "library."
_IMPORTED: Final = "imported-from"  # what the client's importers write
_READABLE: Final = re.compile(r"(\d+(?:\.\d+)*)(?:[+-].*|\.post\d+|)", re.ASCII)

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """A defect, in the versions from `first` on, before `fixed`."""

    id: str
    library: str
    first: str
    fixed: str
    defect: str
    consequence: str  # for what the ledger holds
    source: str

    def concerns(self, version: str | None) -> bool:
        """Whether a version has the defect; one that cannot be read may be any."""
        known = _version(version)
        return known is None or not (
            known < _parse_version(self.first) or known >= _parse_version(self.fixed)
        )

    def answer(self, version: str | None) -> AdvisoryAnswer:
        """The wire form, for a run with this version."""
        return AdvisoryAnswer(
            id=self.id,
            library=self.library,
            library_version=version,
            affected=f">={self.first}, <{self.fixed}",
            defect=self.defect,
            consequence=self.consequence,
            source=self.source,
        )


ADVISORIES: Final = (
    Advisory(
        id="opacus-adaclip-accounting",
        library="opacus",
        first="1.1.3",
        fixed="1.6.0",
        defect="AdaClipDPOptimizer raises its noise multiplier, because part of the privacy of a "
        "step goes into counting unclipped gradients, and tells its accountant the raised one.",
        consequence="If clipping was adaptive, the noise multipliers that were recorded are too "
        "high and epsilon is too low. The value given to the optimizer is the right one, were it "
        "not that adaptive clipping also divides by the private size of the batch.",
        source="https://github.com/meta-pytorch/opacus/pull/807; changelog of v1.6.0",
    ),
    Advisory(
        id="opacus-ghost-max-grad-norm",
        library="opacus",
        first="1.5",
        fixed="1.5.3",
        defect="With grad_sample_mode='ghost', PrivacyEngine.make_private does not give "
        "max_grad_norm to the model that clips, which clips to norm 1.",
        consequence="If clipping was ghost clipping and max_grad_norm below 1, the noise per "
        "clipping norm was max_grad_norm times what was recorded, and epsilon is too low.",
        source="https://github.com/meta-pytorch/opacus/pull/664; changelog of v1.5.3",
    ),
    Advisory(
        id="opacus-ghost-bias-norm",
        library="opacus",
        first="1.5",
        fixed="1.5.4",
        defect="Ghost clipping takes a wrong norm for the bias gradient of a linear layer whose "
        "input is a sequence, too small a one where gradients are small.",
        consequence="If clipping was ghost clipping of such layers with a bias, records may have "
        "weighed more than the clipping norm: the sensitivity behind what was recorded was not "
        "kept.",
        source="https://github.com/meta-pytorch/opacus/pull/751; changelog of v1.5.4",
    ),
)


def _version(text: str | None) -> Version | None:
    """A released version as numbers; None of what cannot be ordered for certain."""
    found = _READABLE.fullmatch(text or "")
    if found is None:
        return None
    parts = [int(part) for part in found[1].split(".")]
    while parts and parts[-1] == 0:  # 1.6 and 1.6.0 are one
        parts.pop()
    return tuple(parts)


def _parse_version(text: str) -> Version:
    found = _version(text)
    assert found is not None, text  # noqa: S101 (of the table above)
    return found


def libraries_of(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The libraries a run says were loaded, with their versions where it says them."""
    found: dict[str, str | None] = {
        name.removeprefix(LABEL): version
        for name, version in labels.items()
        if name.startswith(LABEL)
    }
    source = labels.get(_IMPORTED, "").partition(",")[0]
    if source:
        found.setdefault(source, None)
    return found


def advisories_of(labels: Mapping[str, str]) -> list[AdvisoryAnswer]:
    """The known defects that concern a run with these labels."""
    libraries = libraries_of(labels)
    return [
        one.answer(libraries[one.library])
        for one in ADVISORIES
        if one.library in libraries and one.concerns(libraries[one.library])
    ]
