// Build the equivalent sandctl command line. Pure functions.

import { UNSEEN } from "./format.js";

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;
const ODD = new RegExp(`${UNSEEN.source}|[\\t\\n\\r]`, "g");
const two = (code) => code.toString(16).padStart(2, "0");

// Quote a word for bash and zsh. Invisible and control characters are escaped. `text`: a string, or bytes that are not
// UTF-8. A word must not contain a null character.
export function quoted(text) {
  if (text instanceof Uint8Array) {
    const shown = Array.from(text, (one) => (one > 31 && one < 127 && !"'\\!".includes(String.fromCharCode(one)) ? String.fromCharCode(one) : `\\x${two(one)}`));
    return `$'${shown.join("")}'`;
  }
  const word = String(text);
  if (PLAIN.test(word)) return word;
  if (word.search(ODD) < 0) return `'${word.replaceAll("'", "'\\''")}'`;
  const escaped = word.replaceAll(/['\\!]/g, (one) => `\\x${two(one.charCodeAt(0))}`).replaceAll(ODD, (one) => {
    const code = one.charCodeAt(0);
    if (one === "\n") return "\\n";
    if (one === "\t") return "\\t";
    return code < 128 ? `\\x${two(code)}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
  return `$'${escaped}'`;
}

const hasZero = (word) => (word instanceof Uint8Array ? word.includes(0) : String(word).includes("\0"));
const isDashed = (word) => (word instanceof Uint8Array ? word[0] === 45 : String(word).startsWith("-"));

// `options`: by name without dashes; true: a flag; a list: repeated; null or false: left out.
export function sandctl(words, positionals = [], options = {}) {
  const given = [];
  if ([...positionals, ...Object.values(options).flat()].some(hasZero)) return `# sandctl ${words}: a command line cannot contain a null character`;
  for (const [name, value] of Object.entries(options)) {
    const dashes = name.length === 1 ? `-${name}` : `--${name}`;
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one === null || one === undefined || one === false || one === "") continue;
      given.push(one === true ? dashes : `${dashes} ${quoted(one)}`);
    }
  }
  const places = positionals.map(quoted);
  const needsDashes = positionals.some(isDashed);
  const parts = needsDashes ? [...given, "--", ...places] : [...places, ...given];
  return ["sandctl", words, ...parts].join(" ");
}

const none = (value) => (value === null ? "none" : value);

// Return settings as options of `topic create`, `topic update` and `group update`.
export function settingOptions(settings) {
  const options = {};
  for (const [name, value] of Object.entries(settings)) {
    const option = name.replaceAll("_", "-");
    if (name === "backoff" && value && typeof value === "object") {
      for (const [part, of] of Object.entries(value)) {
        if (part === "kind") options.backoff = of;
        else options[`backoff-${part.replace("_percent", "")}`] = none(of);
      }
    } else if (name === "delete_on_ack") options[value ? "delete-on-ack" : "retain"] = true;
    else if (name === "push_targets") options[value ? "push-targets" : "no-push-targets"] = true;
    else if (name === "retain") options["retain-for"] = none(value);
    else if (name === "tenants") options.tenants = JSON.stringify(value ?? {});
    else options[option] = name === "precision" ? value ?? "auto" : none(value);
  }
  return options;
}
