"""Hostile requests whose fault is the request itself: bytes, paths, queries, headers, order."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from tests.service.hostile import (
    BRANCH,
    EVENTS,
    MARK,
    NDJSON,
    PATHS,
    RUN,
    Hostile,
    batch,
    cyclic,
)
from tests.service.samples import SAMPLING, dataset, event

LIMIT = 4 * 1024 * 1024  # bytes of a body, by default
GOOD = json.dumps(batch()).encode()
LINE = json.dumps(event(10, 5))
NEXT_LINE = json.dumps(event(15, 5))
UNREADABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON"),
    "blank": (b" \n", "not JSON"),
    "truncated": (GOOD[:-5], "not JSON"),
    "bare word": (MARK.encode(), "not JSON"),
    "single quotes": (GOOD.replace(b'"', b"'"), "not JSON"),
    "two values": (GOOD + GOOD, "not JSON"),
    "a trailing comma": (GOOD[:-1] + b",}", "not JSON"),
    "a comment": (GOOD + b"// " + MARK.encode(), "not JSON"),
    "a BOM": (b"\xef\xbb\xbf" + GOOD, "not JSON"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "not UTF-8"),
    "UTF-32": (GOOD.decode().encode("utf-32-be"), "not JSON"),
    "bad UTF-8": (GOOD.replace(b"gaussian", b"gauss\xff\xfe"), "not UTF-8"),
    "an overlong NUL": (GOOD.replace(b"gaussian", b"gauss\xc0\x80"), "not UTF-8"),
    "a raw control character": (GOOD.replace(b"gaussian", b"gauss\x01ian"), "not JSON"),
    "a raw NUL at the end": (GOOD + b"\0", "not JSON"),
    "100,000 brackets": (b"[" * 100_000 + b"]" * 100_000, "nested"),
    "100,000 open brackets": (b"[" * 100_000, "nested"),
    "100,000 objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
    "a repeated key": (b'{"branch": "main", ' + GOOD[1:-1] + b', "branch": "main"}', "repeats"),
    "a repeated key of an event": (GOOD.replace(b'"steps"', b'"steps": 1, "steps"'), "repeats"),
    "a repeated kind": (GOOD.replace(b'"kind"', b'"kind": "none", "kind"'), "repeats"),
    "a repeated key, escaped": (GOOD.replace(b'"steps"', b'"st\\u0065ps": 1, "steps"'), "repeats"),
}  # fmt: skip
OTHER_SHAPES = [f'"{MARK}"', "7654321", "true", "null", "[]", f'["{MARK}"]', "1.5", "[{}]"]
TYPES = ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
         "application/jsonp", "application/vnd.api+json", "text/json", "json", "*/*"]  # fmt: skip


def unreadable() -> Iterator[Hostile]:
    """Bodies that are not JSON, not an object, or not of a type that is read."""
    for path in (EVENTS, "/v1/runs"):
        for name, (body, cause) in UNREADABLE.items():
            yield Hostile(
                name=f"{path}: {name}",
                path=path,
                body=body,
                status=400,
                slug="malformed-body",
                cause=f"body: {cause}" if cause.startswith("not") else cause,
            )
    for path in PATHS:
        for shape in OTHER_SHAPES:
            yield Hostile(name=f"{path} {shape}", path=path, body=shape.encode(), cause="body")
        for kind in TYPES:
            yield Hostile(
                name=f"{path} of type {kind or 'none'}",
                path=path,
                body=json.dumps(PATHS[path]).encode(),
                headers={"content-type": kind} if kind else {},
                status=415,
                slug="unsupported-media-type",
                cause="application/json",
            )


def chunks() -> Iterator[bytes]:
    """A body without a declared length, a little beyond the limit."""
    yield GOOD[:-1]
    for _ in range(LIMIT // 65536 + 1):
        yield b" " * 65536
    yield b"}"


def oversized() -> Iterator[Hostile]:
    """Bodies beyond the limit, declared or not."""
    declared = GOOD[:-1] + b" " * LIMIT + b"}"
    for path in (EVENTS, "/v1/datasets"):
        for name, body in (("declared", declared), ("chunked", chunks)):
            yield Hostile(
                name=f"{path}: {name} and too large",
                path=path,
                body=body,
                status=413,
                slug="body-too-large",
            )


def lines() -> Iterator[Hostile]:
    """NDJSON with faults; the answer names the line."""
    bad = LINE.replace("1.1", f'"{MARK}"')
    cases: dict[str, tuple[str, str, int]] = {
        "an empty line": (f"{LINE}\n\n{NEXT_LINE}\n", "line 2", 400),
        "an empty first line": (f"\n{LINE}", "line 1", 400),
        "two line ends": (f"{LINE}\n\n", "line 2", 400),
        "a bad line": (f"{LINE}\n{bad}\n", "line 2.mechanism.noise_multiplier", 422),
        "a truncated line": (f"{LINE}\n{NEXT_LINE[:-9]}", "line 2", 400),
        "a pretty event": (json.dumps(event(10, 5), indent=1), "line 1", 400),
        "a batch": (json.dumps(batch()), "line 1.", 422),
        "a list": (f"[{LINE}]", "line 1", 422),
        "a repeated key": (LINE.replace('"steps"', '"steps": 1, "steps"'), "line 1", 400),
        "NaN": (LINE.replace("1.1", "NaN"), "line 1: not a JSON number", 400),
        "no line": ("", "from 1 to 10000 lines", 422),
        "one line end": ("\n", "line 1", 400),
        "10,001 lines": ("\n".join([LINE] * 10_001), "from 1 to 10000 lines", 422),
        "an event that does not fit": (
            f"{LINE}\n" + json.dumps(event(15, 1, sampling=cyclic(batch_size=7654321))),
            "line 2.sampling.batch_size",
            422,
        ),
    }
    for name, (body, cause, status) in cases.items():
        slug = "malformed-body" if status == 400 else "invalid-request"
        yield Hostile(
            name=f"NDJSON with {name}",
            path=EVENTS,
            body=body.encode(),
            headers=NDJSON,
            status=status,
            slug=slug,
            cause=cause,
        )
    for query in ("surplus=1", "mode=" + MARK, "branch=" + MARK.upper(), "events=1", "branch="):
        yield Hostile(
            name=f"NDJSON?{query}",
            path=f"{EVENTS}?{query}",
            body=LINE.encode(),
            headers=NDJSON,
            cause="query" if query.startswith(("surplus", "events")) else "query.",
        )
    for query in ("branch=other", "mode=charge", "surplus=1"):
        yield Hostile(
            name=f"JSON?{query}",
            path=f"{EVENTS}?{query}",
            body=GOOD,
            cause="query" if query.startswith(("surplus", "events")) else "query.",
        )


BAD_NAMES = ["A", "RUN", "-a", "..a", ".a", "_a", "a b", "a" * 64, "é", "\0", "a\0", "a\n",
             "\u202e", "%2e%2e", "a%", "a;b", "a:b", "'--", "<script>", "日本", "%"]  # fmt: skip
NAMED = ["/v1/runs/{}", "/v1/runs/{}/guarantee", "/v1/runs/{}/history", "/v1/runs/{}/ledger",
         "/v1/datasets/{}", "/v1/datasets/{}/guarantee", "/v1/bounds/{}",
         "/problems/{}"]  # fmt: skip
UNKNOWN: dict[str, Any] = {
    "/v1/runs/unknown/events": batch(),
    "/v1/runs/unknown/branches": BRANCH,
    "/v1/runs/unknown:finish": {"state": "finished"},
    "/v1/runs/unknown/findings": SAMPLING,
    EVENTS: batch(branch="unknown"),
    "/v1/runs": RUN | {"dataset": "unknown"},
}


def names() -> Iterator[Hostile]:
    """Names that are none, and names of nothing."""
    for name in BAD_NAMES:
        for place in (NAMED[0], NAMED[4]):
            path = place.format(quote(name, safe=""))
            yield Hostile(name=f"GET {path}", path=path, method="GET", cause="path.")
    for place in NAMED:
        yield Hostile(name=place, path=place.format("A_B"), method="GET", cause="path.")
        yield Hostile(
            name=f"{place} of nothing",
            path=place.format(MARK),
            method="GET",
            status=404,
            slug="not-found",
        )
    for path, message in UNKNOWN.items():
        yield Hostile(
            name=f"{path} of nothing",
            path=path,
            body=json.dumps(message).encode(),
            status=404,
            slug="not-found",
        )
    for path in ("/v2", "/v1", "/v1/", "/v1/datasets/", "/v1/runs/", "/v1/runs/run/",
                 "/v1/runs//events", "/v1/runs/a/b", "/v1/runs/a%2Fb", "/redoc",
                 "/openapi.json", "/metrics/",
                 "/v2/runs", "/V1/runs", "/problems/", "/v1/runs/../../etc/passwd",
                 "/problems/..%2f..%2fREADME", "/v1/runs/run/guarantee/x"):  # fmt: skip
        yield Hostile(name=f"GET {path}", path=path, method="GET", status=404, slug="not-found")


METHODS: dict[str, list[str]] = {
    "DELETE": ["/v1/datasets/data", "/v1/runs/run", "/v1/datasets", EVENTS],
    "PUT": ["/v1/datasets/data", "/v1/runs/run", "/v1/runs"],
    "PATCH": ["/v1/runs/run", "/v1/plan"],
    "GET": ["/v1/plan", EVENTS, "/v1/runs/run/branches"],
    "POST": ["/v1/runs/run", "/v1/runs/run/guarantee", "/v1/bounds", "/healthz",
             "/problems/conflict"],
    "TRACE": ["/v1/runs"],
    "OPTIONS": ["/v1/runs"],
}  # fmt: skip
GUARANTEE, HISTORY = "/v1/runs/run/guarantee", "/v1/runs/run/history"
QUERIES: list[tuple[str, str, list[str]]] = [
    (GUARANTEE, "delta", ["0", "1", "2", "-1", "nan", "inf", "", MARK, "1e-400", "1_"]),
    (GUARANTEE, "epsilon", ["-1", "nan", "inf", "1e400", "1e7", MARK]),
    (GUARANTEE, "accountant", [MARK, "", "PLD"]),
    (GUARANTEE, "surplus", [MARK]),
    ("/v1/datasets/data/guarantee", "delta", ["nan", "", "0"]),
    ("/v1/datasets/data/guarantee", "surplus", [MARK]),
    (HISTORY, "points", ["0", "1001", "-5", "1.5", MARK, "", "1" * 5000]),
    (HISTORY, "delta", ["0", "nan"]),
    (HISTORY, "surplus", [MARK]),
    ("/v1/runs", "page_size", ["0", "1001", "abc", "1e2", "", "-1"]),
    ("/v1/runs", "page_token", [
        MARK, "x" * 65, "", "LTE=", "IDE=", "!!MQ==", "é日本", "\0", "MV8w", "MQ", "MQ==MQ==",
        "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5",
    ]),
    ("/v1/runs", "state", [MARK, ""]),
    ("/v1/runs", "dataset", ["A_B", "", "é"]),
    ("/v1/runs", "surplus", [MARK]),
    ("/v1/datasets", "surplus", [MARK]),
    ("/v1/datasets", "page_size", ["0", "1001"]),
    ("/v1/datasets", "page_token", [MARK]),
    ("/v1/datasets", "state", ["active"]),
]  # fmt: skip


LISTED = ("/v1/datasets", "state")  # known to lists of runs, not to this one


def queries() -> Iterator[Hostile]:
    """Methods and query parameters that a path does not take."""
    for method, paths in METHODS.items():
        for path in paths:
            yield Hostile(
                name=f"{method} {path}",
                path=path,
                method=method,
                status=405,
                slug="method-not-allowed",
            )
    for path, key, values in QUERIES:
        for value in values:
            yield Hostile(
                name=f"{path}?{key}={value[:12]!r}",
                path=f"{path}?{key}={quote(value)}",
                method="GET",
                cause="query" if (path, key) == LISTED or key == "surplus" else f"query.{key}",
            )
    both = "/v1/runs/run/guarantee?delta=0.1&epsilon=1"
    yield Hostile(name="delta and epsilon", path=both, method="GET", cause="query.epsilon")


def out_of_place() -> Iterator[Hostile]:
    """Well-formed messages at the wrong time."""
    cases: dict[str, tuple[str, Any, int, str, str]] = {
        "a gap": (EVENTS, batch(event(11, 1)), 409, "out-of-sequence", "10"),
        "a gap in it": (EVENTS, batch(event(10, 1), event(12, 1)), 409, "out-of-sequence", "11"),
        "far ahead": (EVENTS, batch(event(10**12, 1)), 409, "out-of-sequence", "10"),
        "other content": (
            EVENTS, batch(event(0, 10, sampling={"kind": "full"})), 409, "conflict", "events[0]",
        ),
        "a branch from the future": (
            "/v1/runs/run/branches", BRANCH | {"from_step": 11}, 409, "out-of-sequence", "10",
        ),
        "another dataset": ("/v1/datasets", dataset("data", dataset_size=5), 409, "conflict", ""),
        "another writer": ("/v1/runs", RUN | {"name": "run"}, 409, "conflict", ""),
        "a charge of no noise": (
            EVENTS, batch(event(10, 1, mechanism={"kind": "none"}), mode="charge"), 422,
            "unsupported-event", "events[0]",
        ),
    }  # fmt: skip
    for name, (path, message, status, slug, cause) in cases.items():
        yield Hostile(
            name=name,
            path=path,
            body=json.dumps(message).encode(),
            status=status,
            slug=slug,
            cause=cause,
        )


def all_requests() -> list[Hostile]:
    """Every request whose fault is not a value in its body."""
    makers = (unreadable, oversized, lines, names, queries, out_of_place)
    return [request for maker in makers for request in maker()]
