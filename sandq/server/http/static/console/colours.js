// Return the colours of the style sheet, for drawing on a canvas.

export function sandqColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["text", "dim", "line", "past", "due", "planned", "warn", "late", "good"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
