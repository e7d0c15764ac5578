// The charts of every page, on top of uPlot: bands between bounds, steps, logarithmic axes, a
// crosshair with its values in words, keys, and a table of the same numbers.
//
//   const chart = dpledger.charts.draw(element, {
//     label: "Epsilon by step",                  // what it shows, for who does not see it
//     height: 280,
//     x: { label: "steps", values: [...], log: false, format: text_of, min, max },
//     y: { label: "epsilon", log: false, format: text_of, min, max },
//     series: [                                  // all over the same x; null is a gap
//       { label: "at most", values: [...], color: "--chart-line", step: -1, dash: false,
//         format: text_of },                     // step: -1 holds from the point before, 1 until
//     ],                                         //       the point after, 0 is a straight line
//     bands: [[0, 1]],                           // between two series, the higher one first
//     stacked: false,                            // series lie on one another; values are shares
//     marks: [{ y: 3, label: "limit", color: "--chart-limit" }, { x: 10, label: "raised" }],
//     read: (index) => "after 10 steps ...",     // the crosshair's words; else made from labels
//     rows: 12,                                  // of the table, spread over the whole; 0 for none
//   });
//   chart.update({ x: ..., series: ... });       // any part of it
//   chart.destroy();
(function () {
  "use strict";
  const HEIGHT = 280;
  const NARROW = 480;
  const ROWS = 12;
  const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const live = new Set();

  // How numbers are written: what is at most is rounded up, what is at least is rounded down.

  function rounded(value, digits, direction) {
    if (value === 0 || !Number.isFinite(value)) return value;
    let near = Number(value.toPrecision(digits));
    const unit = Math.pow(10, Math.floor(Math.log10(Math.abs(value))) - digits + 1);
    for (let tries = 0; tries < 2 && (near - value) * direction < 0; tries += 1) {
      near = Number((near + direction * unit).toPrecision(digits));
    }
    return near;
  }

  function written(value, digits, direction) {
    if (value === null || value === undefined || Number.isNaN(value)) return "—";
    if (!Number.isFinite(value)) return value > 0 ? "no finite bound" : "−∞";
    const near = rounded(value, Math.max(digits, integerDigits(value)), direction);
    if (near !== 0 && (Math.abs(near) < 1e-4 || Math.abs(near) >= 1e15)) {
      return near.toExponential().replace("e+", "e");
    }
    return near.toLocaleString("en", { maximumSignificantDigits: 17 });
  }

  function integerDigits(value) {
    return Math.floor(Math.log10(Math.max(1, Math.abs(value)))) + 1;
  }

  const up = (value, digits) => written(value, digits || 4, 1);
  const down = (value, digits) => written(value, digits || 4, -1);
  const plain = (value, digits) => written(value, digits || 4, 0);
  const count = (value) => (value === null ? "—" : Math.round(value).toLocaleString("en"));
  const percent = (value) => (value === null ? "—" : written(100 * value, 3, 0) + "\u202f%");
  const percentUp = (value) => (value === null ? "—" : written(Math.min(100, 100 * value), 3, 1) + "\u202f%");

  function power(value) {
    const exponent = Math.round(Math.log10(value));
    if (Math.abs(Math.pow(10, exponent) - value) > 1e-9 * value) return "";
    const digits = String(Math.abs(exponent)).split("").map((one) => SUPERSCRIPTS[one]).join("");
    return "10" + (exponent < 0 ? "⁻" : "") + digits;
  }

  // The page says which colours there are.

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function bandColor(name) {
    return name === "--chart-line" ? color("--chart-band") : faded(color(name));
  }

  function faded(shade) {
    const parts = /^rgb\((.*)\)$/.exec(shade); // as browsers tell a registered colour
    return parts ? "rgba(" + parts[1] + ", 0.18)" : shade;
  }

  // From a description to what uPlot takes.

  function lines(spec) {
    if (!spec.stacked) return spec.series.map((one) => one.values);
    const below = new Array(spec.x.values.length).fill(0);
    return spec.series.map(function (one) {
      return one.values.map(function (value, index) {
        below[index] += value || 0;
        return below[index];
      });
    });
  }

  function data(spec) {
    const found = [spec.x.values, ...lines(spec)];
    if (!spec.y.log) return found;
    return found.map((values, index) => index === 0 ? values
      : values.map((value) => (value !== null && value > 0 ? value : null)));
  }

  function scale(axis, fallback) {
    const found = { time: false, distr: axis.log ? 3 : 1 };
    found.range = function (_chart, low, high) {
      let least = axis.min !== undefined ? axis.min : (low === null ? fallback[0] : low);
      let most = axis.max !== undefined ? axis.max : (high === null ? fallback[1] : high);
      if (axis.log) {
        if (!(least > 0)) least = 1e-12;
        if (!(most > least)) most = 10 * least;
        return [Math.pow(10, Math.floor(Math.log10(least) + 1e-9)), Math.pow(10, Math.ceil(Math.log10(most) - 1e-9))];
      }
      if (axis.pad !== false && axis.max === undefined) most += 0.06 * (most - least);
      if (!(most > least)) most = least + 1;
      return [least, most];
    };
    return found;
  }

  function axis(spec, which, size) {
    const given = spec[which];
    const format = given.axisFormat || given.format || plain;
    const whole = format === count; // between whole numbers nothing is counted
    const found = {
      scale: which,
      stroke: color("--chart-axis"),
      grid: { stroke: color("--chart-grid"), width: 1, show: which === "y" || Boolean(given.log) },
      ticks: { show: false },
      border: { show: which === "x", stroke: color("--chart-grid"), width: 1 },
      font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      label: given.label,
      labelSize: 18,
      labelGap: 0,
      gap: 6,
      size: which === "x" ? 32 : size,
      space: which === "x" ? 72 : 40,
      values: (_chart, splits) => splits.map((one) => (one === null || (whole && !Number.isInteger(one)) ? "" : given.log ? power(one) : format(one))),
    };
    if (given.log) found.grid.filter = (_chart, splits) => splits.map((one) => (power(one) ? one : null));
    return found;
  }

  function series(spec) {
    return spec.series.map(function (one, index) {
      const found = {
        label: one.label,
        stroke: color(one.color || "--chart-" + (index % 8 + 1)),
        width: one.width || 1.75,
        dash: one.dash ? [5, 4] : undefined,
        points: { show: false },
        spanGaps: false,
      };
      if (one.step) found.paths = uPlot.paths.stepped({ align: one.step });
      if (spec.stacked && index === 0) found.fill = faded(found.stroke);
      return found;
    });
  }

  function bands(spec) {
    if (spec.stacked) {
      return spec.series.slice(1).map((one, index) => ({
        series: [index + 2, index + 1],
        fill: faded(color(one.color || "--chart-" + ((index + 1) % 8 + 1))),
      }));
    }
    return (spec.bands || []).map((pair) => ({
      series: [pair[0] + 1, pair[1] + 1],
      fill: bandColor(spec.series[pair[0]].color || "--chart-line"),
    }));
  }

  function drawMarks(chart, spec) {
    const context = chart.ctx;
    const box = chart.bbox;
    const ratio = devicePixelRatio || 1;
    context.save();
    context.font = 12 * ratio + "px system-ui, sans-serif";
    for (const mark of spec.marks || []) {
      const flat = mark.y !== undefined;
      const value = flat ? mark.y : mark.x;
      const range = chart.scales[flat ? "y" : "x"];
      if (value === null || value < range.min || value > range.max) continue;
      const at = Math.round(chart.valToPos(value, flat ? "y" : "x", true));
      context.strokeStyle = context.fillStyle = color(mark.color || "--chart-mark");
      context.lineWidth = ratio;
      context.setLineDash([4 * ratio, 4 * ratio]);
      context.beginPath();
      context.moveTo(flat ? box.left : at, flat ? at : box.top);
      context.lineTo(flat ? box.left + box.width : at, flat ? at : box.top + box.height);
      context.stroke();
      if (!mark.label) continue;
      const room = box.left + box.width - at > context.measureText(mark.label).width + 12 * ratio;
      context.textAlign = flat || !room ? "right" : "left";
      const x = flat ? box.left + box.width - 4 * ratio : at + (room ? 6 : -6) * ratio;
      context.fillText(mark.label, x, flat ? at - 5 * ratio : box.top + 12 * ratio);
    }
    context.restore();
  }

  function options(spec, width, onCursor) {
    const narrow = width < NARROW;
    const last = spec.x.log ? "" : (spec.x.format || plain)(spec.x.values[spec.x.values.length - 1] || 0);
    return {
      width: width,
      height: spec.height || HEIGHT,
      padding: [10, Math.max(14, 4 * last.length), 0, 0], // room for half of the last number
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: false, y: false, setScale: false },
        points: { size: 7, width: 2, fill: color("--surface") },
      },
      scales: { x: scale(Object.assign({ pad: false }, spec.x), [0, 1]), y: scale(spec.y, [0, 1]) },
      axes: [axis(spec, "x", 30), axis(spec, "y", narrow ? 44 : 56)],
      series: [{}, ...series(spec)],
      bands: bands(spec),
      hooks: { draw: [(chart) => drawMarks(chart, spec)], setCursor: [onCursor] },
    };
  }

  // Words beside the picture.

  function words(spec, index) {
    if (spec.read) return spec.read(index);
    const at = (spec.x.format || plain)(spec.x.values[index]);
    const told = spec.series
      .filter((one) => one.values[index] !== null && one.values[index] !== undefined && !one.quiet)
      .map((one) => one.label + " " + (one.format || spec.y.format || plain)(one.values[index]));
    return at + " " + spec.x.label + ": " + (told.join(", ") || "nothing known");
  }

  function chosenRows(spec) {
    const length = spec.x.values.length;
    const wanted = spec.rows === undefined ? ROWS : spec.rows;
    const found = new Set();
    for (let row = 0; row < Math.min(wanted, length); row += 1) {
      found.add(Math.round(row * (length - 1) / Math.max(1, Math.min(wanted, length) - 1)));
    }
    return [...found];
  }

  function cell(kind, text) {
    const found = document.createElement(kind);
    found.textContent = text;
    found.className = "num";
    if (kind === "th") found.scope = "col";
    return found;
  }

  function fillTable(table, spec) {
    const shown = spec.series.filter((one) => !one.quiet);
    const head = document.createElement("tr");
    head.append(cell("th", spec.x.label), ...shown.map((one) => cell("th", one.label)));
    const top = document.createElement("thead");
    top.append(head);
    const body = document.createElement("tbody");
    for (const index of chosenRows(spec)) {
      const row = document.createElement("tr");
      row.append(cell("td", (spec.x.format || plain)(spec.x.values[index])));
      for (const one of shown) {
        row.append(cell("td", (one.format || spec.y.format || plain)(one.values[index])));
      }
      body.append(row);
    }
    const caption = document.createElement("caption");
    caption.className = "sr";
    caption.textContent = spec.label;
    table.replaceChildren(caption, top, body);
  }

  function legend(spec) {
    const found = document.createElement("ul");
    found.className = "chart-legend";
    const named = spec.series.map((one, index) => [one, index]).filter((pair) => !pair[0].quiet);
    for (const [one, index] of named) {
      const item = document.createElement("li");
      const swatch = document.createElement("i");
      swatch.style.background = color(one.color || "--chart-" + (index % 8 + 1));
      swatch.className = one.dash ? "dashed" : "";
      item.append(swatch, one.label);
      found.append(item);
    }
    return found;
  }

  // A chart in the page.

  class Chart {
    constructor(element, spec) {
      this.element = element;
      this.spec = spec;
      this.index = null;
      this.picture = document.createElement("div");
      this.picture.className = "chart-picture";
      this.picture.tabIndex = 0;
      this.picture.setAttribute("role", "group");
      this.picture.setAttribute("aria-roledescription", "chart");
      this.readout = document.createElement("p");
      this.readout.className = "chart-readout";
      this.readout.setAttribute("aria-live", "polite");
      this.key = document.createElement("div");
      this.numbers = document.createElement("details");
      this.numbers.className = "chart-numbers";
      const summary = document.createElement("summary");
      summary.textContent = "Numbers";
      const region = document.createElement("div");
      region.className = "chart-table";
      region.tabIndex = 0;
      region.setAttribute("role", "region");
      this.table = document.createElement("table");
      region.append(this.table);
      this.region = region;
      this.numbers.append(summary, region);
      element.classList.add("chart-drawn");
      element.replaceChildren(this.key, this.picture, this.readout, this.numbers);
      this.picture.addEventListener("keydown", (event) => this.moved(event));
      this.numbers.addEventListener("toggle", () => this.tell());
      this.watcher = new ResizeObserver(() => this.resize());
      this.watcher.observe(element);
      live.add(this);
      this.build();
    }

    width() {
      return Math.max(200, Math.floor(this.element.clientWidth));
    }

    build() {
      if (this.plot) this.plot.destroy();
      const started = performance.now();
      this.drawnAt = this.width();
      const onCursor = (chart) => this.pointed(chart.cursor.idx);
      this.plot = new uPlot(options(this.spec, this.drawnAt, onCursor), data(this.spec), this.picture);
      this.key.replaceChildren(...(this.spec.series.filter((one) => !one.quiet).length > 1 ? [legend(this.spec)] : []));
      this.tell();
      this.element.dataset.drawnMilliseconds = (performance.now() - started).toFixed(1);
    }

    tell() {
      const spec = this.spec;
      this.picture.setAttribute("aria-label", spec.label + ". Arrow keys move along it; a table follows.");
      this.region.setAttribute("aria-label", spec.label + ", as a table");
      this.numbers.hidden = spec.rows === 0 || spec.x.values.length === 0;
      if (this.numbers.open) fillTable(this.table, spec);
      const last = spec.x.values.length - 1;
      if (this.index === null) this.say(last >= 0 ? words(spec, spec.rest === undefined ? last : spec.rest) : "");
    }

    say(text) {
      if (this.readout.textContent !== text) this.readout.textContent = text;
    }

    pointed(index) {
      this.index = index === undefined ? null : index;
      if (this.index !== null && this.index < this.spec.x.values.length) this.say(words(this.spec, this.index));
      else this.tell();
    }

    moved(event) {
      const last = this.spec.x.values.length - 1;
      const page = Math.max(1, Math.round(last / 10));
      const now = this.index === null ? last : this.index;
      const steps = {
        ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - page, PageDown: now + page, Home: 0, End: last,
      };
      if (last < 0 || !(event.key in steps)) return;
      event.preventDefault();
      const index = Math.min(last, Math.max(0, steps[event.key]));
      const left = this.plot.valToPos(this.spec.x.values[index], "x");
      this.plot.setCursor({ left: left, top: 10 });
      this.index = index;
      this.say(words(this.spec, index));
    }

    update(part) {
      const series = part.series && part.series.length === this.spec.series.length;
      const same = series && !part.marks && !part.bands && !part.y;
      this.spec = Object.assign({}, this.spec, part);
      if (!same) {
        this.build();
        return;
      }
      this.plot.setData(data(this.spec));
      this.tell();
    }

    resize() {
      const width = this.width();
      if (width === this.drawnAt) return;
      if ((width < NARROW) !== (this.drawnAt < NARROW)) {
        this.build();
        return;
      }
      this.drawnAt = width;
      this.plot.setSize({ width: width, height: this.spec.height || HEIGHT });
    }

    destroy() {
      this.watcher.disconnect();
      live.delete(this);
      this.plot.destroy();
      this.element.replaceChildren();
    }
  }

  document.addEventListener("themechange", function () {
    live.forEach((chart) => chart.build());
  });

  window.dpledger = window.dpledger || {};
  window.dpledger.charts = {
    draw: (element, spec) => new Chart(element, spec),
    up, down, plain, count, percent, percentUp, rounded,
  };
})();
