"use strict";
const WIDTH = 100000, HEIGHT = 1000, MOST_LISTED = 50;
const MOMENT = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d/;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// ------------------------------------------------------------------ copying
// A button beside each display filter; without a script the filter is there to select.
function addCopy(code) {
  const button = element("button", { type: "button", textContent: "copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  code.before(button);
}
for (const code of document.querySelectorAll(".filter code")) addCopy(code);

// ------------------------------------------------------------------ data: compressed (deflate), in base64, as JSON
async function unpacked(script) {
  const bytes = Uint8Array.from(atob(script.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

// ------------------------------------------------------------------ tables: sort, search, page
const UNITS = {
  ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, "%": 1,
};

// A number with its units ("3 min 20 s", "1.94 ms", "1,234"), or null where the text is none.
function valueOf(text) {
  const parts = text.replace(/,/g, "").replace("\u2212", "-").match(/^[<> ]*(-?[\d.]+(?: [^\d\s]+)?)((?: [\d.]+ [^\d\s]+)*)/);
  if (!parts) return null;
  let sum = 0;
  for (const [, number, unit] of (parts[1] + parts[2]).matchAll(/(-?[\d.]+)(?: ([^\d\s]+))?/g)) {
    if (unit && !(unit in UNITS)) return null;
    sum += Number(number) * (unit ? UNITS[unit] : 1);
  }
  return sum;
}

// Texts of values, as the page writes them where there is no script.
const NONE = "\u2013";

function figures(value) {
  return String(Number(value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)));
}

function duration(ns) {
  if (ns < 0) return `\u2212${duration(-ns)}`;
  for (const [unit, size] of [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]]) {
    const value = ns / size;
    if (value >= 999.5 || (unit === "s" && value >= 119.5)) continue;
    return `${figures(value)} ${unit}`;
  }
  const seconds = Math.round(ns / 1e9), minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 60) return `${minutes} min${seconds % 60 ? ` ${seconds % 60} s` : ""}`;
  if (hours < 48) return `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  return `${(hours / 24).toFixed(1)} d`;
}

function instant(microseconds) {
  const moment = new Date(Math.floor(microseconds / 1000)).toISOString().slice(0, 19).replace("T", " ");
  return `${moment}.${String(microseconds % 1e6).padStart(6, "0")}`;
}

const FORMS = {
  text: String, instant,
  count: (number) => number.toLocaleString("en-US"),
  packets: (numbers) => numbers.map((number) => number ?? "?").join(" \u2026 "),
  filter: (port, ends) => {
    const packets = [...new Set(ends)].sort((one, other) => one - other);
    return `tcp.port == ${port} && frame.number ${packets[1] ? `in {${packets.join(", ")}}` : `== ${packets[0]}`}`;
  },
};

function written(value, form, packets) {
  return typeof value === "string" ? value : value === null ? NONE : FORMS[form](value, packets);
}

function cellOf([text, kind, range]) {
  const cell = element("td", { className: kind });
  if (kind === "filter") {
    for (const line of text.split("\n")) {
      const code = element("code", { textContent: line });
      cell.append(element("div", {}, code));
      addCopy(code);
    }
  } else if (kind === "range") {
    const bar = element("span", { role: "img", ariaLabel: text });
    ["--a", "--b", "--c"].forEach((name, at) => bar.style.setProperty(name, range[at]));
    cell.append(bar);
  } else if (kind.startsWith("number")) {
    cell.textContent = text;
  } else {
    cell.append(element("bdi", { textContent: text }));
  }
  return cell;
}

class Rows {
  constructor(table) {
    this.table = table;
    this.body = table.tBodies[0];
    this.rows = [...this.body.rows];
    this.size = Number(table.dataset.page);
    this.page = 0;
    this.found = this.rows;
    if (this.rows.length < 2) return;
    this.heads = [...table.tHead.rows[0].cells];
    this.heads.forEach((head, column) => {
      const button = element("button", { type: "button", className: "sort" });
      button.append(...head.childNodes);
      button.addEventListener("click", () => this.sort(column));
      head.append(button);
    });
    if (this.rows.length > 8) this.addControls();
    this.show();
  }

  // Add the rows that come after the first page.
  async load() {
    const more = this.table.parentElement.querySelector("script");
    if (!more || !this.heads) return;
    const { kinds, forms, columns } = await unpacked(more);
    const packets = columns[forms?.indexOf("packets")] ?? [];
    const cellAt = (cell, column, row) => {
      if (forms) return [written(cell, forms[column], packets[row]), kinds[column]];
      if (!Array.isArray(cell)) return [cell, kinds[column]];
      if (typeof cell[0] !== "number") return cell;
      const [port, first, last] = cell;
      return [`tcp.port == ${port} && frame.number in {${first}, ${last}}`, "filter"];
    };
    for (let row = 0; row < (columns[0] ?? []).length; row += 1) {
      this.rows.push(columns.map((cells, column) => cellAt(cells[row], column, row)));
    }
    if (!this.search) this.addControls();
    this.filter();
  }

  addControls() {
    const caption = this.table.caption ? this.table.caption.textContent : "";
    this.search = element("input", { type: "search", placeholder: "search", ariaLabel: `search in ${caption}` });
    this.search.addEventListener("input", () => this.filter());
    this.before = element("button", { type: "button", textContent: "previous" });
    this.after = element("button", { type: "button", textContent: "next" });
    this.before.addEventListener("click", () => { this.page -= 1; this.show(); });
    this.after.addEventListener("click", () => { this.page += 1; this.show(); });
    this.count = element("span", { role: "status" });
    const controls = element("div", { className: "controls" }, this.search, this.count, this.before, this.after);
    this.table.parentElement.before(controls);
  }

  text(row) { return Array.isArray(row) ? row.map((cell) => cell[0]) : [...row.cells].map((cell) => cell.innerText); }

  // Times of the rows in milliseconds, of the first column that has some.
  times() {
    if (this.moments) return this.moments;
    const read = (text) => Date.parse(`${text.trim().replace(" ", "T")}Z`);
    const column = this.rows.length ? this.text(this.rows[0]).findIndex((text) => MOMENT.test(text)) : -1;
    this.moments = new Map(column < 0 ? [] : this.rows.map((row) => [row, read(this.text(row)[column])]));
    return this.moments;
  }

  // Show only rows of an interval (milliseconds since 1970), of all again where it is null.
  within(interval) {
    if (!this.times().size) return;
    this.interval = interval;
    this.filter();
  }

  filter() {
    const wanted = this.search ? this.search.value.toLowerCase() : "";
    const [begin, end] = this.interval ?? [-Infinity, Infinity];
    this.found = this.rows.filter((row) =>
      (!this.interval || (this.times().get(row) >= begin && this.times().get(row) <= end))
      && (!wanted || this.text(row).some((text) => text.toLowerCase().includes(wanted))));
    this.page = 0;
    this.show();
    if (!this.note) this.table.after(this.note = element("p", { className: "note", role: "status" }));
    this.note.textContent = this.interval ? `${this.found.length} of ${this.rows.length} rows in the interval shown above` : "";
  }

  sort(column) {
    const head = this.heads[column];
    const down = head.ariaSort !== "descending";
    for (const each of this.heads) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = this.found.map((row) => {
      const text = this.text(row)[column].trim();
      return [valueOf(text), text, row];
    });
    const order = ([a, s], [b, t]) =>
      a !== null && b !== null ? a - b : a !== null ? 1 : b !== null ? -1 : s < t ? -1 : Number(s > t);
    keyed.sort((one, other) => (down ? order(other, one) : order(one, other)));
    this.found = keyed.map((each) => each[2]);
    this.page = 0;
    this.show();
  }

  show() {
    const last = Math.max(Math.ceil(this.found.length / this.size) - 1, 0);
    this.page = Math.min(Math.max(this.page, 0), last);
    const begin = this.page * this.size;
    const shown = this.found.slice(begin, begin + this.size);
    this.body.replaceChildren(...shown.map((row) =>
      Array.isArray(row) ? element("tr", {}, ...row.map(cellOf)) : row));
    if (!this.count) return;
    this.count.textContent = `${begin + Math.min(1, shown.length)} to ${begin + shown.length} of ${this.found.length}`;
    this.before.disabled = this.page === 0;
    this.after.disabled = this.page === last;
  }
}
const tables = [...document.querySelectorAll("table[data-page]")].map((table) => new Rows(table));

// ------------------------------------------------------------------ sections that are folded
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const fold = target && target.querySelector("details.fold");
  if (fold) fold.open = true;
}
addEventListener("hashchange", unfold);
addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("details.fold")) fold.open = true; });
unfold();

// ------------------------------------------------------------------ lanes: one cursor, zoom, list of messages
class Lanes {
  constructor(box, data) {
    this.box = box;
    Object.assign(this, data);
    this.low = Number(data.low);
    this.from = 0;
    this.to = 1;
    this.at = null;
    for (const curve of this.lanes.flat()) {
      let t = 0;
      curve.t = curve.t.map((step) => (t += step));
    }
    this.plots = [...box.querySelectorAll(".plot")];
    this.readout = box.querySelector(".readout");
    this.list = box.querySelector(".messages");
    this.ticks = box.querySelector(".x");
    this.firstTicks = [...this.ticks.childNodes];
    this.cursors = this.plots.map((plot) => plot.appendChild(element("b", { className: "cursor", hidden: true })));
    this.bands = this.plots.map((plot) => plot.appendChild(element("b", { className: "band", hidden: true })));
    for (const plot of this.plots) this.listen(plot);
    box.addEventListener("keydown", (event) => this.key(event));
    this.reset = element("button", { type: "button", textContent: "show all", hidden: true });
    this.reset.addEventListener("click", () => this.zoom(0, 1));
    this.hint = element("span", { textContent: "Drag to zoom, click for messages, double click for all." });
    this.readout.after(element("p", { className: "hint" }, this.reset, " ", this.hint));
    this.readout.textContent = "\u00a0";
  }

  // Between shares of the axis and microseconds since the begin: stretches that are skipped lie between knots.
  timeOf(share) { return this.bend(share, this.shares, this.knots); }

  shareOf(time) { return this.bend(time, this.knots, this.shares); }

  bend(value, from, to) {
    let i = 1;
    while (i < from.length - 1 && value > from[i]) i += 1;
    const part = (value - from[i - 1]) / (from[i] - from[i - 1] || 1);
    return to[i - 1] + Math.min(Math.max(part, 0), 1) * (to[i] - to[i - 1]);
  }

  clock(time, step) {
    const moment = new Date(Math.floor((this.low + time) / 1000)).toISOString().slice(11, 19);
    const digits = step >= 1e6 ? 0 : step >= 1e3 ? 3 : 6;
    const rest = String((this.low + Math.round(time)) % 1e6).padStart(6, "0").slice(0, digits);
    return digits ? `${moment}.${rest}` : moment;
  }

  listen(plot) {
    const share = (event) => {
      const box = plot.getBoundingClientRect();
      const part = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      return this.from + part * (this.to - this.from);
    };
    let begun = null;
    plot.addEventListener("pointermove", (event) => {
      this.point(share(event));
      if (begun !== null) this.band(begun, share(event));
    });
    plot.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.pointerType !== "touch") {
        begun = share(event);
        plot.setPointerCapture(event.pointerId);
      }
    });
    plot.addEventListener("pointerup", (event) => {
      const end = share(event);
      const first = begun ?? end;
      begun = null;
      this.band(0, 0);
      if (Math.abs(end - first) > 0.01 * (this.to - this.from)) this.zoom(Math.min(first, end), Math.max(first, end));
      else this.messages(end);
    });
    plot.addEventListener("pointercancel", () => { begun = null; this.band(0, 0); });
    plot.addEventListener("pointerleave", () => { if (begun === null) this.point(null); });
    plot.addEventListener("dblclick", () => this.zoom(0, 1));
  }

  key(event) {
    const span = this.to - this.from;
    const at = this.at ?? this.from + span / 2;
    const step = span / 100;
    const actions = {
      ArrowLeft: () => this.point(at - step), ArrowRight: () => this.point(at + step),
      Home: () => this.point(this.from), End: () => this.point(this.to),
      "+": () => this.zoom(at - span / 4, at + span / 4), "-": () => this.zoom(at - span, at + span),
      0: () => this.zoom(0, 1), Escape: () => this.zoom(0, 1), Enter: () => this.messages(at),
    };
    const action = event.target === this.box && actions[event.key === "=" ? "+" : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  place(share) { return `${100 * (share - this.from) / (this.to - this.from)}%`; }

  band(begin, end) {
    for (const band of this.bands) {
      band.hidden = begin === end;
      band.style.left = this.place(Math.min(begin, end));
      band.style.width = `${100 * Math.abs(end - begin) / (this.to - this.from)}%`;
    }
  }

  point(share) {
    this.at = share === null ? null : Math.min(Math.max(share, this.from), this.to);
    for (const cursor of this.cursors) {
      cursor.hidden = share === null;
      if (share !== null) cursor.style.left = this.place(this.at);
    }
    if (share === null) return;
    const time = this.timeOf(this.at);
    const near = (this.timeOf(Math.min(this.at + 0.006 * (this.to - this.from), 1)) - time) || 1;
    const parts = [this.clock(time, near)];
    for (const curve of this.lanes.flat()) {
      let value = null;
      if (curve.p) {
        let best = near;
        this.between(curve, time - near, time + near, (i) => {
          const away = Math.abs(curve.t[i] - time);
          if (away <= best) { best = away; value = duration(1000 * curve.v[i]); }
        });
      } else {
        let i = curve.t.findLastIndex((t) => t <= time);
        value = i < 0 ? null : curve.unit === "count" ? `${curve.v[i]}` : `${Math.round(curve.v[i])} ${curve.unit}`;
      }
      if (value !== null) parts.push(`${curve.name} ${value}`);
    }
    this.readout.textContent = parts.join("  \u00b7  ");
  }

  between(curve, begin, end, each) {
    let low = 0, high = curve.t.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (curve.t[middle] < begin) low = middle + 1; else high = middle;
    }
    for (let i = low; i < curve.t.length && curve.t[i] <= end; i += 1) each(i);
  }

  zoom(from, to) {
    this.from = Math.max(from, 0);
    this.to = Math.min(to, 1);
    if (this.to - this.from < 1e-5) this.to = this.from + 1e-5;
    for (const svg of this.box.querySelectorAll(".plot svg")) {
      svg.setAttribute("viewBox", `${this.from * WIDTH} 0 ${(this.to - this.from) * WIDTH} ${HEIGHT}`);
    }
    for (const timed of document.querySelectorAll(".timed")) {
      timed.style.setProperty("--from", this.from);
      timed.style.setProperty("--to", this.to);
    }
    const all = this.from === 0 && this.to === 1;
    this.reset.hidden = all;
    this.box.classList.toggle("zoomed", !all);
    if (all) this.ticks.replaceChildren(...this.firstTicks);
    else this.label();
    const interval = [this.from, this.to].map((share) => (this.low + this.timeOf(share)) / 1000);
    for (const table of tables) table.within(all ? null : interval);
    this.point(this.at);
  }

  label() {
    const begin = this.timeOf(this.from), end = this.timeOf(this.to);
    let step = 1;
    while (step * 7 < end - begin) step *= String(step)[0] === "2" ? 2.5 : 2;
    const labels = [];
    let last = -1;
    for (let time = Math.ceil((this.low + begin) / step) * step - this.low; time <= end; time += step) {
      const share = this.shareOf(time);
      if (share - last < 0.09 * (this.to - this.from)) continue;
      last = share;
      const label = element("span", { textContent: this.clock(time, step) });
      label.style.left = this.place(share);
      if (share - this.from > 0.95 * (this.to - this.from)) label.className = "end";
      labels.push(label);
    }
    this.ticks.replaceChildren(...labels);
  }

  // The messages whose answers or deliveries lie near a place, or within an interval: the slowest first.
  messages(share, until = share) {
    const reach = share === until ? 0.01 * (this.to - this.from) : 0;
    const begin = this.timeOf(Math.max(share - reach, 0)), end = this.timeOf(Math.min(until + reach, 1));
    const found = [];
    for (const curve of this.lanes.flat()) {
      if (curve.p) this.between(curve, begin, end, (i) => found.push([curve, i]));
    }
    found.sort(([one, i], [other, j]) => other.v[j] - one.v[i]);
    const rows = found.slice(0, MOST_LISTED).map(([curve, i]) => {
      const packets = [curve.p[0][i], curve.p[1][i]].filter((packet) => packet !== null);
      const several = new Set(packets).size > 1;
      const filter = several ? `frame.number in {${packets.join(", ")}}` : `frame.number == ${packets[0]}`;
      const file = this.captures[curve.c.length ? curve.c[i] : 0];
      return [
        [this.clock(curve.t[i], 1), "text"], [curve.name, "text"], [duration(1000 * curve.v[i]), "number"],
        [packets.join(" \u2026 "), "number"], [packets.length ? filter : "", "filter"],
        ...(this.captures.length > 1 ? [[file, "text"]] : []),
      ];
    });
    const heads = ["time (UTC)", "what", "took", "packets", "Wireshark filter", ...(this.captures.length > 1 ? ["file"] : [])];
    const title = element("h3", { textContent: rows.length
      ? `${found.length > rows.length ? `Slowest ${rows.length} of ${found.length}` : found.length} message${found.length === 1 ? "" : "s"} from ${this.clock(begin, 1)} to ${this.clock(end, 1)}`
      : `No messages from ${this.clock(begin, 1)} to ${this.clock(end, 1)}` });
    const close = element("button", { type: "button", textContent: "close" });
    close.addEventListener("click", () => { this.list.hidden = true; this.box.focus(); });
    title.append(" ", close);
    const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col", textContent: text })));
    const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map(cellOf)))));
    this.list.replaceChildren(title, ...(rows.length ? [element("div", { className: "scroll", tabIndex: 0 }, table)] : []));
    this.list.hidden = false;
  }

  show(begin, end) {
    const from = this.shareOf(begin), to = this.shareOf(end);
    const margin = Math.max((to - from) / 8, 0.004);
    this.zoom(from - margin, to + margin);
    this.messages(from, to);
    this.box.scrollIntoView({ block: "nearest" });
    this.box.focus({ preventScroll: true });
  }
}

async function start() {
  const box = document.getElementById("lanes");
  const buttons = document.querySelectorAll("button.show");
  if (box) {
    const lanes = new Lanes(box, await unpacked(document.getElementById("lanes-data")));
    for (const button of buttons) {
      button.addEventListener("click", () => lanes.show(Number(button.dataset.begin), Number(button.dataset.end)));
    }
  } else {
    for (const button of buttons) button.remove();
  }
  for (const table of tables) await table.load();
  document.documentElement.dataset.ready = "yes";
}
start();

// ------------------------------------------------------------------ connections: search
const swimlanes = document.getElementById("swimlanes");
if (swimlanes && swimlanes.querySelectorAll(".swimlane").length > 8) {
  const search = element("input", { type: "search", placeholder: "search", ariaLabel: "search in connections" });
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    for (const group of swimlanes.querySelectorAll(".group")) {
      const client = group.querySelector("h3").textContent.toLowerCase();
      let any = false;
      for (const lane of group.querySelectorAll(".swimlane")) {
        lane.hidden = !client.includes(wanted) && !lane.querySelector(".who").textContent.toLowerCase().includes(wanted);
        any ||= !lane.hidden;
      }
      group.hidden = !any;
    }
  });
  swimlanes.querySelector(".legend").before(element("div", { className: "controls" }, search));
}
