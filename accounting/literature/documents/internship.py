"""Document 004: Berthier's report of 2019."""

from typing import Final

from accounting.literature.documents.row import Row, Verdict

ROWS: Final[tuple[Row, ...]] = (
    Row(
        "004-D2.1",
        "(epsilon, delta)-DP between histograms that differ by one record",
        Verdict.DEFINITION,
        ("accounting/events", "service/schemas/requests.py"),
    ),
    Row(
        "004-P2.1",
        "Laplace noise of scale S/epsilon is epsilon-DP",
        Verdict.PROVEN,
        ("laplace-mechanism", "laplace-renyi"),
    ),
    Row(
        "004-P2.2",
        "Gaussian noise sqrt(2 log(1.25/delta)) S/epsilon, for every epsilon",
        Verdict.WRONG,
        ("gaussian-classic-unrestricted", "classical-gaussian", "analytic-gaussian"),
    ),
    Row(
        "004-RR",
        "the truth if a coin shows heads, else a second coin: log 3",
        Verdict.PROVEN,
        ("coin-response", "randomized-response-renyi"),
    ),
    Row(
        "004-T2.1",
        "advanced composition; its optimum is hard to compute where steps differ",
        Verdict.PROVEN,
        (
            "basic-composition",
            "advanced-composition",
            "optimal-composition",
            "optimal-composition-epsilon",
        ),
    ),
    Row(
        "004-TV",
        "privacy by total variation: post-processing, and distances add",
        Verdict.PROVEN,
        ("total-variation-sum", "total-variation-product", "total-variation-of-dp"),
    ),
    Row(
        "004-P2.4",
        "Laplace noise sqrt(S/(2 delta)) has total variation delta",
        Verdict.WRONG,
        ("tv-laplace-as-printed", "laplace-total-variation", "laplace-total-variation-noise"),
    ),
    Row(
        "004-P2.5",
        "Gaussian noise S/(2 delta) has total variation at most delta",
        Verdict.PROVEN,
        ("gaussian-total-variation", "gaussian-total-variation-noise"),
    ),
    Row(
        "004-TV√",
        "total variations of Gaussian answers add up in squares",
        Verdict.PROVEN,
        ("gaussian-total-variation-root", "gaussian-total-variation"),
    ),
    Row(
        "004-LeCam",
        "total variation as the errors of a test and the chance of a guess",
        Verdict.PROVEN,
        ("test-errors", "guess-success"),
    ),
    Row(
        "004-P2.6/7",
        "the RDP of Gaussian noise, and (epsilon, delta) from it",
        Verdict.PROVEN,
        ("gaussian-renyi", "renyi-to-epsilon-classical", "renyi-to-epsilon"),
    ),
    Row(
        "004-obj",
        "objective perturbation: private at the exact minimum of a strongly convex loss; not built",
        Verdict.DEFINITION,
        ("docs/theory/errata.md",),
    ),
    Row(
        "004-out",
        "output perturbation: a strongly convex step contracts, and one release of noise suffices",
        Verdict.PROVEN,
        ("output-perturbation", "step-lipschitz", "output-perturbation-as-printed"),
    ),
    Row(
        "004-L3.1",
        "moments of a mixture are at most the mean of the moments",
        Verdict.PROVEN,
        ("softmax-average", "random-order-average"),
    ),
    Row(
        "004-T3.2",
        "RDP of a uniform subsample, for any mechanism",
        Verdict.PROVEN,
        ("subsampled-renyi", "subsampling-leading-term"),
    ),
    Row(
        "004-Tab1",
        "Table 1: excess losses of private training, from other papers",
        Verdict.CITED,
        ("docs/theory/errata.md",),
    ),
    Row(
        "004-T3.5/3.6",
        "amplification by iteration for smooth losses, convex or not",
        Verdict.PROVEN,
        ("shift-mu", "shift-mu-single-use"),
    ),
    Row(
        "004-wc",
        "almost convexity: twice the mean over orders, if sigma >= L sqrt(2 alpha (alpha-1))",
        Verdict.PROVEN,
        ("almost-convex-average", "softmax-average"),
    ),
    Row(
        "004-P3.1",
        "one shuffled epoch with small steps: rates with log n",
        Verdict.WRONG,
        ("small-step-rate", "small-step-rate-root", "small-rate-pass"),
    ),
    Row(
        "004-P3.2",
        "affine gradients: the law of every iterate; right for noise on the iterate",
        Verdict.PROVEN,
        ("affine-pair-audit", "affine-constant-hessian", "affine-gradients-as-printed"),
    ),
    Row(
        "004-P3.3",
        "noise feedback on affine gradients: the recursion of the variance",
        Verdict.WRONG,
        ("noise-feedback-as-printed", "affine-pair-audit", "affine-constant-hessian"),
    ),
    Row(
        "004-C1",
        "step t+1 has RDP C alpha L^2/((n-t+1)^2 sigma^2) for some C >= 16, and higher terms",
        Verdict.CONJECTURE,
        ("partial-shuffle-conjecture-step", "partial-shuffle-conjecture", "partial-shuffle-rdp"),
    ),
    Row(
        "004-C2",
        "all passes have RDP C e alpha L^2/(n (1-tau) sigma^2), and higher terms",
        Verdict.CONJECTURE,
        ("partial-shuffle-conjecture-global", "partial-shuffle"),
    ),
    Row(
        "004-L4.1/T4.2",
        "RDP of subsampling by unequal weights fixed in advance; the last sum starts at 3",
        Verdict.PROVEN,
        ("weighted-renyi", "non-uniform-gaussian-rdp", "non-uniform-subsampling-as-printed"),
    ),
    Row(
        "004-4.4.2",
        "an answer also tells which records are left: open there, published and bypassed here",
        Verdict.CONJECTURE,
        ("partial-shuffle-conjecture-step", "docs/theory/partial_shuffle.md"),
    ),
    Row(
        "004-4.5",
        "shuffling can be less private: the toy example",
        Verdict.PROVEN,
        ("toy-two-records",),
    ),
    Row(
        "004-F10/11",
        "Figures 10 and 11: tau matters to SGD without noise, and not with it",
        Verdict.EXPERIMENT,
        ("examples/partial_shuffle",),
    ),
    Row(
        "004-F12",
        "Figure 12: epsilon by epochs, as conjectured",
        Verdict.EXPERIMENT,
        (
            "service/cli/figures",
            "accounting/literature/refuted/compared.py",
            "partial-shuffle-conjecture-epsilon",
        ),
    ),
    Row(
        "004-5.2",
        "epsilon-DP is uniform stability, for losses of a declared range",
        Verdict.PROVEN,
        ("dp-stability",),
    ),
    Row(
        "004-5.4",
        "the sum of a ring of nodes and nothing else: additive masks, no noise",
        Verdict.DEFINITION,
        ("examples/secure_sum",),
    ),
)
