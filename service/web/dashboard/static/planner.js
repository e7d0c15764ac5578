// The planner, as one drags: a quick upper bound at once, the certified bracket when it is there.
// The latest question wins. Every number comes written out from the server, rounded the safe way.
(function () {
  "use strict";
  const USEFUL_MAX = 1000; // an epsilon above it says nothing
  const root = document.querySelector("[data-planner]");
  if (!root) return;
  const form = root.querySelector("[data-form]");
  const TOP = 1000; // of a slider
  const CERTIFY_AFTER = 180; // milliseconds without a change
  const COMPARE_AFTER = 500;
  const AGAIN_AFTER = 1000; // where the server asks for patience
  const STEPS_RANGE = [1, 1e7];

  const one = (selector) => root.querySelector(selector);
  const out = (name) => one(`[data-out="${name}"]`);
  const field = (name) => form.elements.namedItem(name); // one of them is called length
  const control = (name) => one(`[data-control="${name}"]`);

  // Settings

  function settings(more) {
    const found = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "") found.set(name, value);
    for (const [name, value] of Object.entries(more || {})) found.set(name, value);
    return found;
  }

  function share(where) { // links that carry the settings
    one("[data-share]").href = where;
    const create = one("[data-create]");
    const plan = where.split("?")[1] || "";
    if (create) create.href = "/new-dataset?plan=" + encodeURIComponent(plan);
  }

  function rounded(value, whole) {
    if (whole) return String(Math.round(value < 1000 ? value : Number(value.toPrecision(3))));
    return String(Number(value.toPrecision(3)));
  }

  function ends(slider) {
    const steps = slider.dataset.slider === "length" && field("unit").value === "steps";
    return steps ? STEPS_RANGE : [Number(slider.dataset.low), Number(slider.dataset.high)];
  }

  function said(slider) { // the number that a slider stands at
    const [low, high] = ends(slider);
    const whole = slider.dataset.whole !== undefined || high === STEPS_RANGE[1];
    return rounded(low * Math.pow(high / low, Number(slider.value) / TOP), whole);
  }

  function place(slider) { // where the field's number is
    const [low, high] = ends(slider);
    const value = Number(field(slider.dataset.slider).value);
    if (!(value > 0) || said(slider) === String(value)) return; // one that is moved moves on
    const share = Math.log(value / low) / Math.log(high / low);
    slider.value = String(Math.round(TOP * Math.min(1, Math.max(0, share))));
    slider.setAttribute("aria-valuetext", field(slider.dataset.slider).value);
  }

  function dragged(slider) {
    field(slider.dataset.slider).value = said(slider);
    slider.setAttribute("aria-valuetext", field(slider.dataset.slider).value);
  }

  const sliders = Array.from(root.querySelectorAll("[data-slider]"));

  function show() { // what goes with the choices
    const find = field("find").value;
    const chosen = field("sampling").selectedOptions[0];
    for (const part of root.querySelectorAll("[data-when-find]")) part.hidden = !part.dataset.whenFind.split(" ").includes(find);
    for (const part of root.querySelectorAll("[data-not-find]")) part.hidden = part.dataset.notFind.split(" ").includes(find);
    for (const part of root.querySelectorAll("div[data-extra]")) {
      part.hidden = part.dataset.extra !== chosen.dataset.extra;
      const more = part.closest("details");
      if (!part.hidden && more) more.open = true;
    }
    for (const part of root.querySelectorAll("[data-when]")) { // the field, and the values with which it counts
      const [name, ...values] = part.dataset.when.split(" ");
      part.hidden = !values.includes(field(name).value);
    }
    for (const select of [field("sampling"), field("neighboring_relation")]) {
      const about = select.parentElement.querySelector("p[data-about]");
      about.textContent = select.selectedOptions[0].dataset.about;
    }
    const batches = !["full", "unknown", "non_uniform"].includes(chosen.value);
    control("batch_size").hidden = !batches;
    sliders.forEach(place);
  }

  // Faults

  function faulty(problem) {
    const told = new Map();
    for (const error of problem.errors || []) told.set(error.location.split(".").pop(), error.message);
    let unnamed = told.size ? "" : problem.detail || problem.title || "It could not be computed.";
    for (const [name, message] of told) {
      const place = one(`[data-fault="${name}"]`);
      if (!place) { unnamed = message; continue; }
      place.textContent = message;
      place.hidden = false;
      const input = field(name);
      if (input && input.setAttribute) input.setAttribute("aria-invalid", "true");
    }
    standing(unnamed || "A setting is at fault.");
    one("[data-headline]").classList.add("provisional");
  }

  function faultless() {
    for (const place of root.querySelectorAll("[data-fault]")) { place.hidden = true; place.textContent = ""; }
    for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  }

  // Answers

  function standing(text) {
    const place = one("[data-standing]");
    if (place.textContent !== text) place.textContent = text;
  }

  const peek = one("[data-peek]"); // where the answer is out of sight

  function peeked(answer, words) {
    one("[data-peek-upper]").textContent = answer.epsilon_text;
    one("[data-peek-standing]").textContent = words;
  }

  function write(answer, names) {
    for (const name of names) if (answer[name] !== undefined && answer[name] !== null) out(name).textContent = answer[name];
  }

  function told(answer) {
    faultless();
    write(answer, ["steps_text", "epochs_text", "rate_text", "delta_text"]);
    const rough = answer.quick && (answer.epsilon === null || !answer.amplified) && !answer.reason;
    const headline = one("[data-headline]");
    headline.classList.toggle("provisional", answer.quick);
    // What leaves sampling out says little where sampling is all: the last bracket stays, greyed.
    if (!rough && !(answer.quick && answer.epsilon === null)) write(answer, ["epsilon_text"]);
    one("[data-lower]").hidden = !answer.epsilon_lower_text;
    write(answer, ["epsilon_lower_text"]);
    const reason = one("[data-reason]");
    const sought = field("find").value !== "epsilon" && answer.quick;
    reason.hidden = !answer.reason || sought;
    reason.textContent = answer.reason || "";
    const none = answer.epsilon === null && Boolean(answer.reason) && !sought;
    if (none) out("epsilon_text").textContent = "No finite bound";
    one("[data-sign]").hidden = none;
    const theorem = one("[data-theorem]");
    theorem.hidden = !answer.bound || rough;
    if (answer.bound) {
      const link = one("[data-bound]");
      link.textContent = answer.bound;
      if (answer.bound === "composition") link.removeAttribute("href");
      else link.href = "/theorems/" + encodeURIComponent(answer.bound);
      const badge = one("[data-status]");
      badge.textContent = answer.status_text;
      badge.className = "badge badge-" + answer.status_kind;
      badge.title = answer.status_about;
    }
    return rough;
  }

  function quickly(answer) {
    const rough = told(answer);
    one("[data-assumptions]").hidden = true;
    one("[data-poisson]").hidden = true;
    one("[data-smaller]").hidden = true;
    one("[data-words]").hidden = true;
    if (!rough) peeked(answer, "quick");
    out("unamplified_text").textContent = "…";
    out("snippet").textContent = answer.snippet;
    address(answer.query);
    if (answer.reason) standing(field("find").value === "epsilon" ? "Computing a certified bound…" : "Searching…");
    else if (rough) standing(`Without sampling at most ${answer.epsilon_text}; computing the certified bracket…`);
    else standing(`Quick upper bound, by the ${answer.accountant_name} accountant; certifying…`);
  }

  function address(query) {
    const where = "/planner" + (query ? "?" + query : "");
    history.replaceState(null, "", where);
    share(where);
  }

  function certified(answer) {
    told(answer);
    peeked(answer, answer.epsilon_lower_text ? `≥ ${answer.epsilon_lower_text}, certified` : "certified");
    out("unamplified_text").textContent = answer.unamplified_text || "—";
    one("[data-poisson]").hidden = !answer.poisson_would_say_text;
    one("[data-smaller]").hidden = !answer.smaller_text;
    write(answer, ["poisson_would_say_text", "smaller_text"]);
    const list = one("[data-list]");
    list.replaceChildren(...(answer.assumptions || []).map(function (assumption) {
      const item = document.createElement("li");
      item.textContent = assumption.text;
      return item;
    }));
    one("[data-assumptions]").hidden = !list.children.length;
    one("[data-words-list]").replaceChildren(...answer.words.map((words) => line(words)));
    one("[data-words]").hidden = !answer.words.length;
    const solved = one("[data-solved]");
    solved.hidden = !answer.solved;
    if (answer.solved) {
      out("solved_name").textContent = answer.solved.parameter === "steps" ? "Most steps" : "Least noise multiplier";
      out("solved_text").textContent = answer.solved.value_text;
      share("/planner?" + answer.query);
    }
    out("snippet").textContent = answer.snippet;
    standing(answer.epsilon === null ? "No finite bound." : `Certified, by the ${answer.accountant_name} accountant.`);
  }

  // Asking

  async function asked(path, given, signal) {
    const answer = await fetch(`/planner/${path}.json?${given}`, { signal, headers: { accept: "application/json" } });
    if (answer.status === 401) { location.reload(); throw new DOMException("signed out", "AbortError"); }
    const body = await answer.json();
    if (answer.ok) return body;
    throw Object.assign(new Error(body.title), { problem: body, status: answer.status });
  }

  const wait = (milliseconds, signal) => new Promise(function (resolve, reject) {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", function () { clearTimeout(timer); reject(new DOMException("", "AbortError")); });
  });

  let busy = false; // one quick question at a time; the settings then are the next one's
  let dirty = false;
  let certifying = new AbortController();

  async function ask() {
    if (busy) { dirty = true; return; }
    busy = true;
    try {
      do {
        dirty = false;
        quickly(await asked("quick", settings()));
      } while (dirty);
    } catch (error) {
      certifying.abort();
      if (error.problem) faulty(error.problem);
      else if (error.name !== "AbortError") standing("The service does not answer.");
    }
    busy = false;
    if (dirty) ask();
  }

  async function certify() {
    certifying.abort();
    certifying = new AbortController();
    const signal = certifying.signal;
    one("[data-solved]").hidden = true;
    try {
      await wait(CERTIFY_AFTER, signal);
      const answer = await patiently("answer", settings(), signal);
      certified(answer);
      await fit(answer, signal);
      await envelop(signal);
      await compare(signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.problem) faulty(error.problem);
      else standing("The service does not answer.");
    }
  }

  async function patiently(path, given, signal) {
    for (;;) {
      try {
        return await asked(path, given, signal);
      } catch (error) {
        if (error.status !== 429 && error.status !== 503) throw error;
      }
      await wait(AGAIN_AFTER, signal);
    }
  }

  // Does it fit?

  function line(text, kind) {
    const made = document.createElement("p");
    made.textContent = text;
    made.className = kind || "";
    return made;
  }

  async function fit(answer, signal) {
    const name = field("dataset").value.trim();
    const known = Array.from(one("#dataset-names").options, (option) => option.value).includes(name);
    one("[data-fits]").hidden = !known; // while a name is typed, it is none's
    offer(null);
    if (!known) return;
    const given = answer.solved ? new URLSearchParams(answer.query) : settings();
    given.set("dataset", name);
    const body = one("[data-fits-body]");
    body.replaceChildren(line("Checking the dataset's budget…", "muted"));
    let found;
    try {
      found = await patiently("fits", given, signal);
    } catch (error) {
      if (!error.problem) throw error;
      const detail = (error.problem.errors || [{ message: error.problem.detail }])[0].message;
      body.replaceChildren(line(`The budget of ${name} could not be checked: ${detail}`, "muted"));
      return;
    }
    const verdict = line("", "verdict verdict-" + (found.fits ? "good" : "bad"));
    const link = document.createElement("a");
    link.href = "/datasets/" + encodeURIComponent(found.dataset);
    link.textContent = found.dataset;
    verdict.append(found.fits ? "It fits in " : "It does not fit in ", link, ".");
    const differs = found.differs.length ? ` Counted as the dataset has it: ${found.differs.join(", ")}.` : "";
    const remains = line(`Of its limit of ε = ${found.limit_text}, ${found.remaining_text} remains, as its filter counts.${differs}`, "muted");
    body.replaceChildren(verdict, remains);
    if (found.remedies.length) body.append(line(`It would fit with ${found.remedies.join(", or ")}.`));
    offer(found);
  }

  // The plan as a budget

  function offer(found) { // the form that makes it the budget of the dataset, for an admin
    const place = one("[data-budget-form]");
    if (!place) return;
    place.hidden = !(found && found.can_become_budget);
    if (!found) return;
    one("[data-budget-settings]").value = found.settings;
    one("[data-budget-revision]").value = found.revision;
  }

  async function envelop(signal) { // the code that creates a dataset with this budget
    const found = await patiently("budget", settings(), signal);
    one("[data-budget]").hidden = !found.budget_snippet;
    write(found, ["budget_snippet"]);
  }

  // All schemes, side by side

  const SVG = "http://www.w3.org/2000/svg";

  function cell(name, className, ...inside) {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...inside);
    return made;
  }

  function bar(share) {
    const made = document.createElementNS(SVG, "svg");
    const filled = document.createElementNS(SVG, "rect");
    for (const [name, value] of [["class", "bar"], ["viewBox", "0 0 100 6"], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) made.setAttribute(name, value);
    for (const [name, value] of [["width", String(100 * share)], ["height", "6"]]) filled.setAttribute(name, value);
    made.append(filled);
    return made;
  }

  function row(scheme) {
    const made = document.createElement("tr");
    if (scheme.chosen) made.setAttribute("aria-current", "true");
    const link = cell("a", "", scheme.title);
    link.title = scheme.about;
    link.href = "/planner" + (scheme.query ? "?" + scheme.query : "");
    const head = cell("th", "", link);
    head.scope = "row";
    made.append(head);
    fill(made, scheme, scheme);
    return made;
  }

  function fill(made, scheme, answer) {
    while (made.children.length > 1) made.lastChild.remove();
    made.classList.toggle("provisional", Boolean(answer.quick));
    if (answer.epsilon === null) {
      const why = cell("td", "small muted", answer.reason || "No finite bound.");
      why.colSpan = 3;
      made.append(why);
      return;
    }
    const number = cell("td", "num", answer.epsilon <= USEFUL_MAX ? answer.epsilon_text : "no useful bound");
    if (answer.epsilon_lower_text) number.append(cell("span", "lower", `≥ ${answer.epsilon_lower_text}`));
    let by = `${answer.quick ? "quick, " : ""}${answer.accountant_short}, ${answer.status_text.toLowerCase()}`;
    if (!answer.amplified && scheme.slug !== "full") by += ", without amplification";
    if (scheme.steps_text !== out("steps_text").textContent) by += `; ${scheme.steps_text} steps`;
    made.append(number, cell("td", "bar-cell", bar(answer.share || 0)), cell("td", "small muted", by));
  }

  async function compare(signal) {
    const sections = [["choices", one("[data-choices]")], ["schemes", one("[data-schemes]")]];
    const plain = ["gaussian", "laplace"].includes(field("mechanism").value) && !field("trials").value;
    if (field("find").value !== "epsilon" || !plain) {
      for (const [, section] of sections) section.hidden = true;
      return;
    }
    await wait(COMPARE_AFTER, signal);
    for (const [path, section] of sections) {
      const found = (await patiently(path, settings(), signal))[path];
      const rows = found.map(row);
      section.querySelector("[data-rows]").replaceChildren(...rows);
      section.hidden = false;
      for (const [index, scheme] of found.entries()) {
        try {
          fill(rows[index], scheme, await patiently("answer", new URLSearchParams(scheme.query), signal));
        } catch (error) {
          if (!error.problem) throw error; // the quick bound stays
        }
      }
    }
  }

  // Events

  function changed() {
    show();
    ask();
    certify();
  }

  form.addEventListener("input", function (event) {
    if (event.target.dataset.slider) dragged(event.target);
    if (event.target.name === "unit") {
      const steps = event.target.value === "steps";
      const text = out(steps ? "steps_text" : "epochs_text").textContent.replaceAll(",", "");
      if (Number(text) > 0) field("length").value = text;
    }
    changed();
  });
  form.addEventListener("submit", function (event) {
    event.preventDefault();
    changed();
  });
  root.addEventListener("click", function (event) {
    const link = event.target.closest("[data-rows] a");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    const chosen = new URLSearchParams(link.search);
    field("sampling").value = chosen.get("sampling") || "poisson";
    field("last_batch").value = chosen.get("last_batch") || "";
    field("derived").checked = chosen.has("derived");
    changed();
    field("sampling").focus({ preventScroll: false });
  });

  for (const slider of sliders) slider.hidden = false;
  peek.hidden = false;
  one("[data-submit]").textContent = "Calculate";
  changed();
})();
