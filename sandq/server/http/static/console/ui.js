// Components of all views: tables, dialogs, command lines, notifications.

import { fill, h, newId, setText } from "./dom.js";
import { cut, visible } from "./format.js";

// -- notifications ----------------------------------------------------------------------------------------------------

export function say(text, kind = "done") {
  const container = document.getElementById("said");
  const one = h("div", { class: `toast ${kind}` }, h("span", {}, visible(text)));
  const close = () => one.remove();
  one.append(h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: close }, "×"));
  container.append(one);
  while (container.children.length > 4) container.firstElementChild.remove();
  if (kind === "done") setTimeout(close, 6000);
}

export function problemText(error) {
  const mistakes = error.details?.errors?.map((one) => `${one.where}: ${one.problem}`) ?? [];
  const text = mistakes.length ? mistakes.join("; ") : error.message;
  return error.status === 403 ? `Not allowed: ${text}` : text;
}

export function failure(error, again = null) {
  return h(
    "div",
    { class: "failure", role: "alert" },
    h("strong", {}, error.status === 403 ? "Not allowed" : "The request failed"),
    h("p", {}, visible(problemText(error))),
    again && h("button", { type: "button", onclick: again }, "Try again"),
  );
}

// -- command lines -----------------------------------------------------------------------------------------------------

export function commandLine(text, label = "Same command") {
  const code = h("code", { class: "command", tabindex: 0, "aria-label": "Command line" }, text);
  const copy = h(
    "button",
    {
      type: "button",
      class: "quiet",
      "aria-label": "Copy the command line",
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(code.textContent);
          say("Copied");
        } catch {
          getSelection().selectAllChildren(code);
          say("Selected: copy it with your keyboard");
        }
      },
    },
    "Copy",
  );
  const line = h("div", { class: "same" }, h("span", { class: "dim" }, label), code, copy);
  line.update = (now) => setText(code, now);
  return line;
}

// -- fields ------------------------------------------------------------------------------------------------------------

export function field({ name, label, kind = "text", value = "", options, help, required, placeholder, list, rows }) {
  const id = newId(name);
  const helpId = help ? `${id}-help` : null;
  const common = { id, name, required, placeholder, "aria-describedby": helpId, autocomplete: "off", spellcheck: "false" };
  let input;
  if (kind === "select") {
    input = h("select", common, options.map((one) => {
      const [key, text] = Array.isArray(one) ? one : [one, one];
      return h("option", { value: key, selected: String(key) === String(value) }, text);
    }));
  } else if (kind === "textarea") input = h("textarea", { ...common, rows: rows ?? 6, value });
  else if (kind === "checkbox") input = h("input", { ...common, type: "checkbox", checked: Boolean(value) });
  else input = h("input", { ...common, type: kind, value, list });
  const text = h("label", { for: id }, label);
  const parts = kind === "checkbox" ? [input, text] : [text, input];
  return h("div", { class: kind === "checkbox" ? "field checkbox" : kind === "textarea" ? "field whole" : "field" }, parts, help && h("small", { id: helpId }, help));
}

export function valuesOf(form) {
  const found = {};
  for (const input of form.elements) {
    if (!input.name) continue;
    found[input.name] = input.type === "checkbox" ? input.checked : input.value;
  }
  return found;
}

// -- dialogs -----------------------------------------------------------------------------------------------------------

// A dialog for an action: its description, its fields, how many objects it affects, and the equivalent command line.
//
// title, about: text; fields: as for `field`; command(values): text; run(values): does it, and may return a message;
// count(values): the affected objects, as text, which must be known first; typed: a name that the user must type first;
// danger: it cannot be undone; preview(values): an element; failed(error): shows an error elsewhere, and returns whether it did.
export function act({ title, about, fields = [], command, run, count, typed, danger, verb, preview, done, failed }) {
  const form = h("form", { method: "dialog", novalidate: false });
  const titleId = newId("dialog");
  const dialog = h("dialog", { class: danger ? "danger" : null, "aria-labelledby": titleId }, form);
  const extent = h("p", { class: "extent", "aria-live": "polite" });
  const wrong = h("div", { class: "wrong", role: "alert" });
  const shown = h("div", { class: "preview", "aria-live": "polite" });
  const line = command ? commandLine("") : null;
  const doIt = h("button", { type: "submit", class: danger ? "danger" : "primary" }, verb ?? title.replace(/…$/, ""));
  const stop = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const name = typed && field({ name: "typed", label: `Type ${typed} to confirm`, placeholder: typed, required: true });
  const inputs = fields.map(field);
  let counted = !count;
  let requested = 0;

  const values = () => valuesOf(form);
  const check = () => {
    doIt.disabled = !counted || (typed !== undefined && ![typed, visible(typed)].includes(values().typed));
  };
  const refresh = () => {
    // Hide fields that do not apply to the other values.
    fields.forEach((one, index) => { if (one.shownIf) inputs[index].hidden = !one.shownIf(values()); });
    if (line) line.update(command(values()));
    if (preview) fill(shown, preview(values()));
    check();
  };
  async function recount() {
    if (!count) return;
    counted = false;
    check();
    const mine = (requested += 1);
    setText(extent, "Counting…");
    try {
      const text = await count(values());
      if (mine !== requested) return;
      setText(extent, visible(text));
      counted = true;
    } catch (error) {
      if (mine === requested) setText(extent, `Counting failed: ${visible(problemText(error))}`);
    }
    check();
  }

  let waiting = null;
  form.addEventListener("input", (event) => {
    refresh();
    if (event.target.name === "typed") return;
    clearTimeout(waiting);
    if (count) {
      counted = false;
      requested += 1; // ignore the count in progress: it is for other values
      check();
      waiting = setTimeout(recount, 300);
    }
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (doIt.disabled || !form.reportValidity()) return;
    doIt.disabled = true;
    fill(wrong);
    try {
      const message = await run(values());
      dialog.close();
      if (message) say(message);
      if (done) done();
    } catch (error) {
      if (failed?.(error)) return dialog.close();
      fill(wrong, visible(problemText(error)));
      check();
    }
  });
  dialog.addEventListener("close", () => {
    clearTimeout(waiting);
    dialog.remove();
  });
  append(form, [
    h("h2", { id: titleId }, title),
    about && h("p", {}, about),
    fields.length > 0 && h("div", { class: "fields" }, inputs),
    count && extent,
    preview && shown,
    name,
    line,
    wrong,
    h("div", { class: "buttons" }, stop, doIt),
  ]);
  document.body.append(dialog);
  refresh();
  recount();
  dialog.showModal();
  const first = form.querySelector("input, select, textarea") ?? stop;
  first.focus();
  return dialog;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) if (child) element.append(child);
}

// A button for an action. Users without the right see it disabled, with the reason.
export function button(text, onclick, { allowed = true, reason = "", kind = "" } = {}) {
  if (allowed) return h("button", { type: "button", class: kind, onclick }, text);
  return h("button", { type: "button", class: kind, "aria-disabled": "true", title: reason, onclick: () => say(reason, "note") }, text);
}

// Sort keys that compare numbers in texts by value. A Collator could do it, but takes ten times as long.
const ordered = (value) => (typeof value === "string" ? value.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(20, "0")) : value);
function compare(one, other) {
  if (typeof one === "string" || typeof other === "string") [one, other] = [String(one ?? ""), String(other ?? "")];
  else [one, other] = [one ?? -1, other ?? -1];
  return one < other ? -1 : one > other ? 1 : 0;
}

// -- tables ------------------------------------------------------------------------------------------------------------

// Sorted and filtered rows in pages; visible rows are updated in place.
//
// columns: {key, label, text(row), sort(row), kind: "number" | "time" | "code", named: show the column name on phones, too, wide: left out on phones, cell(row): an element,
// title(row), optional: hidden if no row of the current page has a text there}; `key(row)` identifies a row.
export function table({ columns, key, caption, sort, page = 50, empty = "Nothing here.", filterLabel, href, select }) {
  let rows = [];
  let shownPage = 0;
  let wanted = "";
  let empties = new Set(); // optional columns that are empty on the current page
  let [by, down] = sort ?? [columns[0].key, false];
  const known = new Map();
  const chosen = new Set();
  const body = h("tbody");
  const headers = columns.map((column) => {
    const name = column.sort || column.text ? h("button", { type: "button", onclick: () => sortBy(column) }, column.label) : column.label;
    return h("th", { scope: "col", class: classOf(column) }, name);
  });
  const all = select && h("input", { type: "checkbox", "aria-label": "Select all rows of this page", onchange: () => chooseAll(all.checked) });
  const element = h(
    "table",
    { class: "cards", role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, select && h("th", { scope: "col", class: "choose" }, all), headers)),
    body,
  );
  const range = h("span", { class: "dim", role: "status" });
  const before = h("button", { type: "button", onclick: () => go(-1), "aria-label": "Previous page" }, "‹");
  const after = h("button", { type: "button", onclick: () => go(1), "aria-label": "Next page" }, "›");
  const filter = filterLabel && h("input", {
    type: "search", placeholder: filterLabel, "aria-label": filterLabel, class: "filter",
    oninput: () => {
      wanted = filter.value.trim().toLowerCase();
      shownPage = 0;
      show();
    },
  });
  const foot = h("div", { class: "pager" }, range, before, after);
  const root = h("div", { class: "tabled" }, filter, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, element), foot);

  function classOf(column) {
    return [column.kind, column.wide && "wide"].filter(Boolean).join(" ") || null;
  }
  function sortBy(column) {
    if (by === column.key) down = !down;
    else [by, down] = [column.key, column.kind === "number"];
    shownPage = 0;
    show();
  }
  function go(step) {
    shownPage += step;
    show();
  }
  function chooseAll(is) {
    for (const line of body.children) if (line.rowKey !== undefined) is ? chosen.add(line.rowKey) : chosen.delete(line.rowKey);
    show();
  }
  function line(row) {
    const name = key(row);
    let found = known.get(name);
    if (!found) {
      const cells = columns.map((column, index) => {
        // On phones rows are displayed as cards, so the roles must be explicit.
        const cell = index === 0 ? h("th", { scope: "row", role: "rowheader", class: classOf(column), data: column.named ? { label: column.label } : {} }) : h("td", { role: "cell", class: classOf(column), data: { label: column.label } });
        if (index === 0 && href) {
          cell.inner = h("a", {});
          cell.append(cell.inner);
        } else cell.inner = cell;
        return cell;
      });
      const box = select && h("input", { type: "checkbox", "aria-label": `Select ${cut(name, 40)}`, onchange: (event) => {
        event.target.checked ? chosen.add(name) : chosen.delete(name);
        if (select.onchange) select.onchange(chosen);
      } });
      found = h("tr", { role: "row" }, select && h("td", { class: "choose", role: "cell" }, box), cells);
      found.cells2 = cells;
      found.box = box;
      found.rowKey = name;
      known.set(name, found);
    }
    if (found.box) found.box.checked = chosen.has(name);
    columns.forEach((column, index) => {
      const cell = found.cells2[index];
      if (column.cell) {
        const mark = column.mark ? column.mark(row) : JSON.stringify(row);
        if (cell.mark !== mark) fill(cell.inner, column.cell(row));
        cell.mark = mark;
      } else setText(cell.inner, column.text(row));
      if (column.optional) cell.hidden = empties.has(column.key);
      const title = column.title?.(row);
      if (title && cell.title !== title) cell.title = title;
      if (index === 0 && href) cell.inner.setAttribute("href", href(row));
      const state = column.state?.(row) ?? "";
      if ((cell.dataset.state ?? "") !== state) cell.dataset.state = state;
    });
    return found;
  }
  function show() {
    const column = columns.find((one) => one.key === by) ?? columns[0];
    const value = column.sort ?? column.text;
    const matching = wanted ? rows.filter((row) => String(key(row)).toLowerCase().includes(wanted)) : rows;
    const sorted = sort === null ? matching : matching.map((row) => [ordered(value(row)), row]).sort(([one], [other]) => {
      const order = compare(one, other);
      return down ? -order : order;
    }).map(([, row]) => row);
    const pages = Math.max(Math.ceil(sorted.length / page), 1);
    shownPage = Math.min(Math.max(shownPage, 0), pages - 1);
    const first = shownPage * page;
    const seen = sorted.slice(first, first + page);
    empties = new Set(columns.filter((one) => one.optional && !seen.some((row) => one.text(row) !== "")).map((one) => one.key));
    columns.forEach((one, index) => { headers[index].hidden = empties.has(one.key); });
    const lines = seen.map(line);
    if (!lines.length) lines.push(h("tr", {}, h("td", { class: "empty", colspan: columns.length + (select ? 1 : 0) }, wanted ? "Nothing matches the filter." : empty)));
    const same = lines.length === body.children.length && lines.every((one, index) => one === body.children[index]);
    if (!same) body.replaceChildren(...lines);
    if (known.size > 4 * page + rows.length) known.clear();
    setText(range, sorted.length <= page ? `${sorted.length} of ${rows.length}` : `${first + 1}–${first + lines.length} of ${sorted.length}`);
    foot.hidden = rows.length <= page && !wanted;
    before.disabled = shownPage === 0;
    after.disabled = shownPage >= pages - 1;
    headers.forEach((one, index) => {
      if (sort === null) return;
      one.setAttribute("aria-sort", columns[index].key === by ? (down ? "descending" : "ascending") : "none");
    });
    if (all) {
      const here = lines.filter((one) => one.rowKey !== undefined);
      const count = here.filter((one) => chosen.has(one.rowKey)).length;
      all.checked = count > 0 && count === here.length;
      all.indeterminate = count > 0 && count < here.length;
      select.onchange?.(chosen);
    }
  }
  return {
    element: root,
    chosen,
    set(found) {
      rows = found;
      if (select) {
        const names = new Set(found.map(key));
        for (const one of [...chosen]) if (!names.has(one)) chosen.delete(one);
      }
      show();
    },
  };
}

// -- other components ------------------------------------------------------------------------------------------------------------

export function tile(label, hint = "") {
  const value = h("dd", {}, "–");
  const element = h("div", { class: "tile", title: hint }, h("dt", {}, label), value);
  return { element, set: (text, state = "") => { setText(value, text); element.dataset.state = state; } };
}

export function facts(rows) {
  return h("dl", { class: "facts" }, rows.filter((row) => row && row[1] !== undefined && row[1] !== null).map(([name, value]) => [
    h("dt", {}, name),
    h("dd", {}, value instanceof Node ? value : visible(value)),
  ]));
}

export function badge(text, state = "") {
  return h("span", { class: "badge", data: { state } }, text);
}

// Shown instead of a view if the user lacks a right.
// The text with each page of the documentation that it names (docs/NAME.md) as a link to the site.
export function withPages(text) {
  return text.split(/(docs\/[a-z/-]+\.md)/).map((part, at) => (at % 2 ? h("a", { href: `help/${part.slice(5, -3)}/`, target: "_blank", rel: "noopener" }, part) : part));
}

export function denied(right, of) {
  return h("section", { class: "card" }, h("h2", {}, `You need the right ${right}`),
    h("p", {}, `Without the right ${right} nodes do not show ${of}. Ask an administrator of the cluster for it, or sign in with a different token.`));
}

export function loading(text = "Loading…") {
  return h("p", { class: "dim", role: "status" }, text);
}

// The newest load of each element.
const newest = new WeakMap();

// Fill an element with the result of a request, or with its error, unless a newer load has begun. `fresh`: remove what
// the element shows now, because it is about something else.
export async function load(container, work, show, { fresh = false } = {}) {
  const mine = {};
  newest.set(container, mine);
  const isNewest = () => newest.get(container) === mine;
  if (fresh || !container.childNodes.length) fill(container, loading());
  container.setAttribute("aria-busy", "true");
  try {
    const found = await work();
    if (isNewest()) fill(container, show(found));
  } catch (error) {
    if (isNewest() && error.name !== "AbortError") fill(container, failure(error, () => load(container, work, show)));
  } finally {
    if (isNewest()) container.removeAttribute("aria-busy");
  }
}
