"""Define checks of accessible names and of contrast, which run as scripts in the browser."""

from __future__ import annotations

from typing import Final

LABELS: Final = """
const wrong = [];
const named = (one) => (one.getAttribute("aria-label") ?? one.innerText ?? "").trim()
  || one.labels?.length || one.title || one.getAttribute("aria-labelledby");
const all = "button, a[href], input, select, textarea, [role=img], [role=region], dialog";
for (const one of document.querySelectorAll(all))
  if (!named(one)) wrong.push(one.outerHTML.slice(0, 200));
for (const one of document.querySelectorAll("table"))
  if (!one.caption || ![...one.tHead.rows[0].cells].every((cell) => cell.scope === "col"))
    wrong.push(one.outerHTML.slice(0, 200));
for (const place of ["main", "header", "nav", "[aria-live]"])
  if (!document.querySelector(place)) wrong.push(place);
if (!document.documentElement.lang) wrong.push("lang");
return wrong;
"""
"""Script that lists the elements without a name for a screen reader, and missing landmarks."""
CONTRAST: Final = """
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const linear = (one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const behind = (one) => {
  for (; one; one = one.parentElement) {
    const found = parts(getComputedStyle(one).backgroundColor);
    if (found.length < 4 || found[3] > 0.9) return found;
  }
};
const wrong = [];
const texts = "h1, p, td, th, a, button:not(:disabled), dd, dt";
for (const one of document.querySelectorAll(`main :is(${texts}), nav a`)) {
  if (!one.innerText?.trim() || !one.offsetParent) continue;
  const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push([one.innerText.slice(0, 40), (a + 0.05) / (b + 0.05)]);
}
return wrong;
"""
"""Script that lists texts with a contrast below 4.5 to 1 (WCAG 2 AA)."""
SITE_CONTRAST: Final = """
const parts = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
const linear = (one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const behind = (one) =>
  one ? over(parts(getComputedStyle(one).backgroundColor), behind(one.parentElement)) : [255, 255, 255];
const wrong = [];
let checked = 0;
for (const one of document.querySelectorAll("body *")) {
  const hasText = [...one.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  if (!hasText || !one.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
  const back = behind(one), text = over(parts(getComputedStyle(one).color), back);
  const [a, b] = [light(text), light(back)].sort((x, y) => y - x);
  checked += 1;
  if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push([one.innerText.slice(0, 40), (a + 0.05) / (b + 0.05)]);
}
return { checked, wrong };
"""
"""Script that checks the contrast of all visible texts, also of transparent colors, and returns how many it checked."""
