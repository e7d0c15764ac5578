"""Document 002: Kong and Ribero, arXiv:2407.05237, last iterate of cyclic DP-SGD."""

from typing import Final

from accounting.literature.documents.row import Row, Verdict

ROWS: Final[tuple[Row, ...]] = (
    Row(
        "002-L2.1",
        "one shifted Renyi step for Lipschitz randomized proximal maps with residuals",
        Verdict.PROVEN,
        ("shift-mu",),
    ),
    Row(
        "002-P2.2",
        "residuals spread over the cycles, or without a Lipschitz part",
        Verdict.PROVEN,
        ("shift-mu", "shift-mu-cyclic"),
    ),
    Row(
        "002-P3.4",
        "a proximal step on a weakly convex loss has bounded residual and a Lipschitz constant",
        Verdict.PROVEN,
        ("step-lipschitz", "clipped-step-lipschitz", "proximal-step-with-clipping"),
    ),
    Row(
        "002-A1",
        "clipped DP-SGD in a fixed order, the last iterate shown",
        Verdict.DEFINITION,
        ("accounting/hidden_state_runs.py", "accounting/last_iterate/declared.py"),
    ),
    Row(
        "002-T4.3",
        "a bound without curvature; composition is never worse",
        Verdict.PROVEN,
        ("shift-mu",),
    ),
    Row(
        "002-T4.4",
        "a bound for iterates in a bounded domain",
        Verdict.PROVEN,
        ("shift-mu-bounded-domain", "shift-mu-cyclic-bounded-domain"),
    ),
    Row(
        "002-T4.5",
        "a bound linear in the passes, which tends to the convex one",
        Verdict.PROVEN,
        ("shift-mu-cyclic", "shift-mu-cyclic-worst"),
    ),
    Row(
        "002-C.2/3",
        "when the terms in the Lipschitz constant settle, and when they are nearly convex",
        Verdict.PROVEN,
        ("accounting/last_iterate/closed_forms.py",),
    ),
    Row(
        "002-Tab",
        "Table 1: against privacy amplification by iteration",
        Verdict.EXPERIMENT,
        ("shift-mu-single-use", "shift-mu-cyclic", "docs/theory/last_iterate.md"),
    ),
)
