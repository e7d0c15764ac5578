"""Write an R client: one function for each operation of an OpenAPI document.

    python examples/other_languages/r/generate.py docs/api/openapi.json dpledger.R

Bodies and answers are R lists with the members of the JSON, so that mechanisms and samplings need
no classes. The functions need httr2 and jsonlite.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

METHODS: Final = ("get", "post", "patch", "put", "delete")
JSON: Final = "application/json"
HEAD: Final = """# An R client of dpledger, generated from its OpenAPI document. Do not edit.

#' Where the service is, and the key to use.
#'
#' @param url By default the environment's DPLEDGER_URL.
#' @param key By default the environment's DPLEDGER_API_KEY.
dpledger_client <- function(
    url = Sys.getenv("DPLEDGER_URL"), key = Sys.getenv("DPLEDGER_API_KEY")) {
  list(url = url, key = key)
}

# jsonlite writes 15 digits: a noise would be rounded, perhaps up. 17 digits are exact.
dpledger_exact <- function(value) {
  if (is.list(value)) return(lapply(value, dpledger_exact))
  if (!is.numeric(value)) return(value)
  if (length(value) != 1) return(lapply(as.list(value), dpledger_exact))
  structure(sprintf("%.17g", value), class = "json")
}

dpledger_json <- function(value) {
  jsonlite::toJSON(dpledger_exact(value), auto_unbox = TRUE, null = "null", json_verbatim = TRUE)
}

# A refusal is an error of class dpledger_problem; the problem document is in its `problem`.
dpledger_call <- function(client, method, path, query = list(), headers = list(), body = NULL) {
  request <- httr2::request(paste0(sub("/+$", "", client$url), path))
  request <- httr2::req_method(request, method)
  request <- httr2::req_auth_bearer_token(request, client$key)
  request <- httr2::req_url_query(request, !!!Filter(Negate(is.null), query))
  request <- httr2::req_headers(request, !!!Filter(Negate(is.null), headers))
  if (!is.null(body)) {
    request <- httr2::req_body_raw(request, dpledger_json(body), type = "application/json")
  }
  request <- httr2::req_error(request, is_error = function(response) FALSE)
  response <- httr2::req_perform(request)
  is_json <- grepl("json", httr2::resp_content_type(response))
  answer <- if (is_json) {
    httr2::resp_body_json(response, check_type = FALSE)
  } else {
    httr2::resp_body_string(response)
  }
  if (httr2::resp_status(response) >= 400) {
    words <- httr2::resp_status_desc(response)
    if (is_json) words <- paste0(answer$title, ": ", answer$detail)
    stop(structure(
      class = c("dpledger_problem", "error", "condition"),
      list(message = words, call = NULL, problem = answer)
    ))
  }
  answer
}
"""


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation of each call that answers once."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in METHODS and not path.endswith("/stream"):
                yield method.upper(), path, operation


def written(method: str, path: str, operation: Mapping[str, Any]) -> str:
    """The R function of an operation."""
    places: dict[str, list[str]] = {"path": [], "query": [], "header": []}
    notes = []
    for one in operation.get("parameters", []):
        places[one["in"]].append(one["name"])
        notes.append(f"#' @param {_word(one['name'])} {_line(one.get('description', ''))}")
    arguments = [_word(name) for name in places["path"]]
    body = JSON in operation.get("requestBody", {}).get("content", {})
    if body:
        arguments.append("body")
        notes.append("#' @param body A list with the members of the JSON.")
    arguments += [f"{_word(name)} = NULL" for name in places["query"] + places["header"]]
    target = f'"{path}"'
    for name in places["path"]:
        value = f"URLencode({_word(name)}, reserved = TRUE)"
        target = f'gsub("{{{name}}}", {value}, {target}, fixed = TRUE)'
    given = [f'client, "{method}", {target}']
    for place, argument in (("query", "query"), ("header", "headers")):
        if names := [f"`{name}` = {_word(name)}" for name in places[place]]:
            given.append(f"{argument} = list({', '.join(names)})")
    given += ["body = body"] * body
    lines = [
        f"#' {_line(operation.get('description') or operation['summary'])}",
        "#'",
        "#' @param client Of `dpledger_client()`.",
        *notes,
        f"{_snake(operation['operationId'])} <- function({', '.join(['client', *arguments])}) {{",
        f"  dpledger_call({', '.join(given)})",
        "}",
    ]
    return "\n".join(lines)


def client(document: Mapping[str, Any]) -> str:
    """The text of the client's file."""
    return "\n".join([HEAD, *(f"{written(*one)}\n" for one in operations(document))])


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(client(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
