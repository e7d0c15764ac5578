// The page of a run: its charts, and its numbers as they move.
(function () {
  "use strict";
  const { charts, live } = window.dpledger;
  const root = document.getElementById("run");
  const here = "/runs/" + encodeURIComponent(root.dataset.run);
  const ENDED = ["finished", "stopped_at_budget", "aborted"];
  const RETRIES = 5;
  const LEAST_RATE = 1e-5;
  const ENOUGH = 120; // points of a curve
  const NAMES = { gaussian: "Gaussian", laplace: "Laplace", poisson: "Poisson", truncated_poisson: "truncated Poisson", none: "no" };
  const SECONDS = { guarantee: 5, schedule: 10, meaning: 20 }; // between two looks while steps come
  const drawn = {};

  function chart(name, spec) {
    if (drawn[name]) drawn[name].update(spec);
    else drawn[name] = charts.draw(document.getElementById(name), spec);
  }

  function put(name, text) {
    const element = document.getElementById(name);
    if (element && element.textContent !== text) element.textContent = text;
  }

  // Epsilon by step. Between two marks the later upper end and the earlier lower end hold.

  function showHistory(told) {
    if (told.state !== root.dataset.state) {
      again();
      return;
    }
    root.dataset.points = String(told.points.length);
    freshen(told.points[told.points.length - 1]);
    if (told.points.length && told.points.every((one) => one.epsilon === null)) {
      document.getElementById("growth").classList.add("chart-none");
      put("growth", "No accepted bound is finite at any step, so there is no curve to draw. The reason is above.");
      return;
    }
    const points = [{ steps: 0, sequence: 0, epsilon: 0, epsilon_lower: 0 }, ...told.points];
    const infinite = told.points.find((one) => one.epsilon === null);
    const bounded = told.points.some((one) => one.epsilon_lower !== null);
    const upper = points.map((one) => one.epsilon);
    const lower = points.map((one, index) => (index === 0 && !bounded ? null : one.epsilon_lower));
    const series = [{ label: "at most", values: upper, color: "--chart-line", step: -1, format: charts.up }];
    if (bounded) {
      series.push({
        label: "at least", values: lower, color: "--chart-line", step: 1, dash: true, width: 1, format: charts.down,
      });
    }
    chart("growth", {
      label: "Epsilon by step of run " + root.dataset.run,
      height: 300,
      x: { label: "steps", values: points.map((one) => one.steps), format: charts.count },
      y: { label: "ε", min: 0, format: charts.plain },
      series: series,
      bands: bounded ? [[0, 1]] : [],
      marks: infinite ? [{ x: infinite.steps, label: "no finite bound from here", color: "--chart-limit" }] : [],
      read: function (index) {
        const one = points[index];
        if (one.epsilon === null) return "After " + charts.count(one.steps) + " steps: no finite bound.";
        const least = one.epsilon_lower === null ? "" : ", at least " + charts.down(one.epsilon_lower, 6);
        return "After " + charts.count(one.steps) + " steps: ε at most " + charts.up(one.epsilon, 6) + least + ".";
      },
    });
  }

  // What stands at the top never says less than the chart below it.
  function freshen(last) {
    const box = document.querySelector("#guarantee .spent");
    if (!box || !last || last.steps <= Number(box.dataset.steps)) return;
    if (box.dataset.plain !== "yes" || last.epsilon === null || box.dataset.epsilon === "") {
      looked.guarantee = 0; // it is another number than the chart's, and must be asked for
      return;
    }
    box.dataset.steps = String(last.steps);
    box.dataset.epsilon = String(last.epsilon);
    box.querySelector(".upper").lastChild.textContent = charts.up(last.epsilon);
    const lower = box.querySelector(".lower");
    if (lower) lower.lastChild.textContent = last.epsilon_lower === null ? "0" : charts.down(last.epsilon_lower);
    const steps = box.querySelector("[data-steps-told]");
    if (steps) steps.textContent = charts.count(last.steps);
  }

  // Noise and rate by step.

  function kinds(spans, which) {
    return [...new Set(spans.map((one) => NAMES[one[which]] || one[which].replaceAll("_", " ")))].join(" and ");
  }

  function same(spans, which) {
    const first = spans[0][which];
    return first !== null && spans.every((one) => one[which] !== null
      && one[which].least === first.least && one[which].most === first.most && first.least === first.most);
  }

  // The corners of some spans. A span before one that has no value would not be drawn to its end.
  function corners(spans, which) {
    const found = { x: [], least: [], most: [] };
    function put(step, range) {
      found.x.push(step);
      found.least.push(range === null ? null : range.least);
      found.most.push(range === null ? null : range.most);
    }
    spans.forEach(function (one, index) {
      const end = one.first_step + one.steps;
      put(one.first_step, one[which]);
      const last = index === spans.length - 1;
      if (last || spans[index + 1][which] === null) put(last ? end : end - 1e-6, one[which]);
    });
    return found;
  }

  function showSpans(name, spans, which, label, format) {
    const { x, least, most } = corners(spans, which);
    const varied = most.some((value, index) => value !== least[index]);
    const series = [{ label: varied ? "most" : label, values: most, color: "--chart-1", step: 1 }];
    if (varied) series.push({ label: "least", values: least, color: "--chart-1", step: 1, width: 1 });
    chart(name, {
      label: label + " by step",
      height: 200,
      x: { label: "steps", values: x, format: charts.count },
      y: { label: label, min: 0, format: format },
      series: series,
      bands: varied ? [[0, 1]] : [],
    });
  }

  function leftOut(spans) { // by each pass of a shuffled loader
    const found = spans[0].left_out;
    if (found === null || spans.some((one) => one.left_out !== found)) return "";
    if (found === 0) return " Each pass uses all records.";
    return " Each pass leaves " + charts.count(found) + (found === 1 ? " record out." : " records out.");
  }

  function showSchedule(told) {
    const spans = told.spans;
    if (spans.length === 0) return;
    const constant = same(spans, "noise_multiplier") && same(spans, "sampling_rate");
    const sweeps = [...new Set(spans.map((one) => one.selection))].filter(Boolean).join(" ");
    const said = kinds(spans, "mechanism") + " noise, " + kinds(spans, "sampling") + " sampling";
    if (constant || spans.every((one) => one.selection)) {
      const one = spans[0];
      put("schedule-words", sweeps || "Constant over all " + charts.count(told.steps) + " steps: " + said + ", noise multiplier "
        + charts.plain(one.noise_multiplier.least, 6) + ", " + charts.percent(one.sampling_rate.most) + " of the records a step." + leftOut(spans));
      document.getElementById("schedule").hidden = true;
      return;
    }
    const known = (which) => spans.some((one) => one[which] !== null);
    put("schedule-words", said.charAt(0).toUpperCase() + said.slice(1) + ", over " + charts.count(told.steps) + " steps"
      + (known("noise_multiplier") ? "." : ". The noise of these mechanisms has no multiplier.") + (sweeps && " " + sweeps));
    document.getElementById("schedule").hidden = false;
    for (const [name, which, label, format] of [
      ["noise", "noise_multiplier", "noise multiplier", charts.plain],
      ["rate", "sampling_rate", "share of records", charts.percent],
    ]) {
      document.getElementById(name).parentElement.hidden = !known(which);
      if (known(which)) showSpans(name, spans, which, label, format);
    }
  }

  // The privacy profile and what it means. Each point holds towards the worse side until the next.

  function showMeaning(told) {
    showSentences(told);
    showProfile(told.curve);
    const box = document.getElementById("trade-off");
    box.parentElement.hidden = told.curve.profile.length === 0;
    if (told.curve.profile.length) showTradeOff(told.curve);
  }

  function showSentences(told) {
    const list = document.getElementById("sentences");
    const items = told.curve.profile.length ? told.sentences.map((one) => one.text) : [];
    const middle = items.length > 1 ? [items[1], items[0], ...items.slice(2)] : items;
    const since = "After " + charts.count(told.curve.steps) + " steps.";
    list.replaceChildren(...[...middle, told.advantage + " " + since].map(function (text, index, all) {
      const item = document.createElement("li");
      item.textContent = text;
      item.className = index === 0 ? "first" : (index === all.length - 1 ? "last" : "");
      return item;
    }));
  }

  // Where few points were worked out, more between them. Delta is the most that any event's chance
  // exceeds e^epsilon times its other chance, hence convex in e^epsilon: a chord is never below it.
  function filled(points) {
    const found = [];
    points.forEach(function (high, index) {
      const low = points[index - 1];
      const between = index === 0 || points.length >= ENOUGH ? 1 : Math.ceil(ENOUGH / points.length);
      for (let part = 1; part < between; part += 1) {
        const epsilon = low.epsilon + part / between * (high.epsilon - low.epsilon);
        const share = Math.expm1(epsilon - low.epsilon) / Math.expm1(high.epsilon - low.epsilon);
        const delta = !Number.isFinite(share) ? low.delta : (low.delta + share * (high.delta - low.delta)) * (1 + 1e-9);
        found.push({ epsilon: epsilon, delta: Math.min(low.delta, delta), delta_lower: high.delta_lower });
      }
      found.push(high);
    });
    return found;
  }

  // An epsilon is told with four digits, rounded up: delta is at most there what it is at most
  // before, and at least what it is at least at the next point that is known.
  function readable(points) {
    const found = new Map();
    let next = 0;
    for (const one of points) {
      const epsilon = charts.rounded(one.epsilon, 4, 1);
      while (next < points.length && points[next].epsilon < epsilon) next += 1;
      const least = next < points.length ? points[next].delta_lower : 0;
      found.set(epsilon, { epsilon: epsilon, delta: one.delta, delta_lower: least });
    }
    return [...found.values()];
  }

  function showProfile(curve) {
    const box = document.getElementById("profile");
    if (curve.profile.length < 2) {
      box.classList.add("chart-none");
      box.textContent = curve.profile.length ? "Nothing was spent." : "No accepted bound is finite, so no δ below 1 is proved at any ε.";
      return;
    }
    const points = readable(filled(curve.profile));
    const delta = Number(root.dataset.delta);
    chart("profile", {
      label: "Privacy profile: delta by epsilon",
      height: 380,
      x: { label: "ε", values: points.map((one) => one.epsilon), format: charts.plain },
      y: { label: "δ", log: true, min: 1e-12, max: 1, format: (value) => charts.up(value, 3) },
      series: [
        { label: "δ at most", values: points.map((one) => one.delta), color: "--chart-line", step: 1, format: (value) => charts.up(value, 3) },
        { label: "at least", values: points.map((one) => one.delta_lower), color: "--chart-line", step: -1, dash: true, width: 1, format: (value) => charts.down(value, 3) },
      ],
      bands: [[0, 1]],
      marks: delta ? [{ y: delta, label: "δ = " + charts.plain(delta) }] : [],
      rest: 0,
      read: (index) => "At ε = " + charts.up(points[index].epsilon) + ": δ at most " + charts.up(points[index].delta, 3)
        + (points[index].delta_lower > 0 ? ", at least " + charts.down(points[index].delta_lower, 3) : "") + ".",
    });
  }

  function showTradeOff(curve) {
    // One minus a lower bound; what is told is rounded up by far more than that could be off. A
    // rate is told with three digits, rounded down: no more is found there.
    const drawn = curve.trade_off.map((one) => ({
      false_positive_rate: one.false_positive_rate, true_positive_rate: Math.min(1, 1 - one.false_negative_rate),
    }));
    const points = [...drawn, ...curve.true_positive_rates]
      .map((one) => ({ ...one, false_positive_rate: charts.rounded(one.false_positive_rate, 3, -1) }))
      .filter((one) => one.false_positive_rate >= LEAST_RATE)
      .sort((one, other) => one.false_positive_rate - other.false_positive_rate)
      .filter((one, index, all) => index === 0 || one.false_positive_rate > all[index - 1].false_positive_rate);
    const found = points.map((one) => one.true_positive_rate);
    const rates = points.map((one) => one.false_positive_rate);
    const one = rates.findIndex((rate) => rate >= 0.01);
    const words = (index) => "Wrong on " + charts.percent(rates[index]) + " of non-members: finds at most "
      + charts.percentUp(found[index]) + " of members.";
    chart("trade-off", {
      label: "Share of members found, by share of non-members accused wrongly",
      x: { label: "non-members accused wrongly", values: rates, log: true, min: LEAST_RATE, max: 1, format: charts.percent },
      y: { label: "members found", min: 0, max: 1, format: (value) => charts.percent(value) },
      series: [
        { label: "the best attacker, at most", values: found, color: "--chart-limit", step: -1, format: charts.percentUp },
        { label: "guessing", values: rates, color: "--chart-8", dash: true, width: 1 },
      ],
      rest: one,
      read: words,
    });
  }

  // Asking: more slowly after each refusal, and never two of the same thing at once.

  const looked = { guarantee: 0, schedule: 0, meaning: 0 };

  function rest(milliseconds) {
    return new Promise((done) => setTimeout(done, milliseconds));
  }

  async function patiently(name, ask) {
    for (let tries = 0; ; tries += 1) {
      try {
        return await ask();
      } catch (error) {
        const again = error.status === 429 || error.status === 503 || error.status === undefined;
        if (!again || tries >= RETRIES) {
          if (!drawn[name]) put(name, error.told || "It could not be read. Load the page again.");
          return null;
        }
        await rest(Math.max(error.after || 0, 500 * Math.pow(2, tries)));
      }
    }
  }

  async function data(name, address, show) {
    const told = await patiently(name, () => live.json(here + address));
    if (told) show(told);
    return told;
  }

  async function schedule() {
    let told = await data("schedule-words", "/schedule.json", showSchedule);
    while (told && !told.complete) {
      await rest(1000 * told.again_seconds);
      told = await data("schedule-words", "/schedule.json", showSchedule);
    }
  }

  async function guarantee() {
    const box = document.getElementById("guarantee");
    const part = await patiently(root.dataset.told === "yes" ? "" : "guarantee", () => live.text(here + "/guarantee"));
    if (part === null) return; // what stands there holds for the steps that it names
    const before = box.querySelector("details");
    const open = before !== null && before.open;
    box.innerHTML = part;
    const after = box.querySelector("details");
    if (after) after.open = open;
    root.dataset.told = "yes";
  }

  const look = {
    history: () => (root.dataset.delta === "" ? null : data("growth", "/history.json", showHistory)),
    guarantee: guarantee,
    schedule: schedule,
    meaning: () => data("sentences", "/meaning.json", showMeaning),
  };

  // A look at the history, which is cheap, says how soon to look again; all else is looked at now
  // and then. Once it is quiet, everything is told of the same steps.

  const QUIET = 30000; // without an entry, after which one looks whether the run has ended
  let stream = null;
  let stale = false;
  let looking = false;

  // Where it is another page that fits, that page is loaded.
  function again() {
    if (stream) stream.stop();
    location.reload();
  }

  async function beside(slowly, everything) {
    for (const name of Object.keys(SECONDS)) {
      if (stale && everything) return;
      if (everything ? looked[name] < movedAt : Date.now() - looked[name] > 1000 * SECONDS[name] * slowly) {
        looked[name] = Date.now();
        await look[name]();
      }
    }
  }

  let movedAt = 0;

  async function follow() {
    if (looking) return;
    looking = true;
    while (stale && !document.hidden) {
      stale = false;
      const told = await look.history();
      if (told && !told.complete) stale = true;
      await beside(told ? Math.max(1, told.again_seconds / 2) : 1, false);
      await rest(told ? 1000 * told.again_seconds : 2000);
      if (!stale) await beside(1, true);
    }
    looking = false;
  }

  function changed() {
    movedAt = Date.now();
    stale = true;
    follow();
  }

  document.addEventListener("visibilitychange", () => { if (stale) follow(); });

  function watch() {
    const sign = document.getElementById("live");
    let steps = Number(root.dataset.steps);
    function counted(now) {
      steps = now;
      put("run-steps", charts.count(steps));
    }
    setInterval(() => { if (!looking) changed(); }, QUIET);
    stream = live.watch(here + "/stream", {
      late: function (isLate) {
        sign.hidden = false;
        sign.classList.toggle("live-late", isLate);
        put("live-text", isLate ? "reconnecting" : "live");
      },
      state: function (told) {
        const state = told.state;
        if (state.state !== root.dataset.state || (steps === 0 && state.steps > 0)) return again();
        if (state.steps !== steps) changed();
        return counted(state.steps);
      },
      entry: function (told) {
        if (steps === 0) return again();
        changed();
        return counted(steps + told.steps);
      },
      incident: function () {
        put("live-text", "something happened: load the page again");
      },
    });
  }

  if (root.dataset.told === "yes") looked.guarantee = Date.now();
  if (Number(root.dataset.steps) > 0) {
    for (const name of Object.keys(SECONDS)) { // the service takes them in turn
      if (looked[name] === 0) look[name]();
      looked[name] = Date.now();
    }
    stale = true;
    follow();
  } else if (root.dataset.told !== "yes") look.guarantee();
  if (!ENDED.includes(root.dataset.state)) watch();
})();
