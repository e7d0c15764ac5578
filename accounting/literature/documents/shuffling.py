"""Document 000: Berthier and Karimireddy 2019, Amplifying Renyi DP via Shuffling."""

from typing import Final

from accounting.literature.documents.row import Row, Verdict

ROWS: Final[tuple[Row, ...]] = (
    Row(
        "000-A1",
        "private SGD on single records in fresh secret orders; each pass stops after floor(tau n)",
        Verdict.DEFINITION,
        ("examples/partial_shuffle", "accounting/events"),
    ),
    Row(
        "000-T2.1",
        "step t+1 has RDP 16 alpha L^2/((n-t+1)^2 sigma^2) and terms of higher order",
        Verdict.RETRACTED,
        ("partial-shuffle-retracted-step", "partial-shuffle-rdp"),
    ),
    Row(
        "000-T2.2",
        "the noise at which all passes have a given RDP",
        Verdict.RETRACTED,
        ("partial-shuffle-retracted-noise", "partial-shuffle", "partial-shuffle-rdp"),
    ),
    Row(
        "000-T3.1",
        "subsampling by weights, which may depend on the data, amplifies like the largest of them",
        Verdict.WRONG,
        ("data-dependent-weights", "weighted-renyi", "non-uniform-gaussian-rdp"),
    ),
    Row(
        "000-S4",
        "two records, two steps: log 1.75 with replacement, log 4 shuffled",
        Verdict.PROVEN,
        ("toy-two-records",),
    ),
    Row(
        "000-conv",
        "RDP epsilon at order alpha is (epsilon + log(1/delta)/(alpha-1), delta)-DP",
        Verdict.PROVEN,
        ("renyi-to-epsilon-classical", "renyi-to-epsilon"),
    ),
)
