// The command line of sandctl that does the same. Pure.

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;
const CONTROL = /[\u0000-\u001f\u007f]/;

export function quoted(text) {
  const word = String(text);
  if (PLAIN.test(word)) return word;
  if (!CONTROL.test(word)) return `'${word.replaceAll("'", "'\\''")}'`;
  const escaped = Array.from(word, (one) => {
    if (one === "'" || one === "\\") return `\\${one}`;
    if (one === "\n") return "\\n";
    if (one === "\t") return "\\t";
    return CONTROL.test(one) ? `\\x${one.charCodeAt(0).toString(16).padStart(2, "0")}` : one;
  });
  return `$'${escaped.join("")}'`;
}

// `options`: by name without its dashes; true: a flag; a list: given again and again; null, false: not given.
export function sandctl(words, positionals = [], options = {}) {
  const given = [];
  for (const [name, value] of Object.entries(options)) {
    const dashes = name.length === 1 ? `-${name}` : `--${name}`;
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one === null || one === undefined || one === false || one === "") continue;
      given.push(one === true ? dashes : `${dashes} ${quoted(one)}`);
    }
  }
  const places = positionals.map(quoted);
  const needsDashes = positionals.some((one) => String(one).startsWith("-"));
  const parts = needsDashes ? [...given, "--", ...places] : [...places, ...given];
  return ["sandctl", words, ...parts].join(" ");
}

const none = (value) => (value === null ? "none" : value);

// Settings as options of `topic create`, `topic update` and `group update`.
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
    else if (name === "retain") options["retain-for"] = none(value);
    else if (name === "tenants") options.tenants = JSON.stringify(value ?? {});
    else options[option] = none(value);
  }
  return options;
}
