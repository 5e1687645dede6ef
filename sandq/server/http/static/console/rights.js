// The rights of the user. Nodes enforce them; the page only disables actions that would be refused.

let grants = null; // null: everything

export function setGrants(texts) {
  grants = texts === null || texts === undefined ? null : texts.map(parse);
}

function parse(text) {
  const [right, where = ""] = split(text, ":");
  const [topics, groups] = split(where, "/");
  return { right, topics: matcher(topics || "*"), groups: matcher(groups || "*") };
}

function split(text, at) {
  const position = text.indexOf(at);
  return position < 0 ? [text, undefined] : [text.slice(0, position), text.slice(position + 1)];
}

// `*`: any characters; `?`: one; `[ab]`: one of these; `[!ab]`: one that is not among these.
function matcher(pattern) {
  const source = pattern.replace(/\[!?[^\]]*\]|[^]/g, (part) => {
    if (part === "*") return "[^]*";
    if (part === "?") return "[^]";
    if (part.length > 1) return part.replace(/^\[!/, "[^").replaceAll("\\", "\\\\");
    return part.replace(/[.+^${}()|\\[\]]/g, "\\$&");
  });
  return new RegExp(`^${source}$`);
}

export function may(right, topic = null, group = null) {
  if (grants === null) return true;
  return grants.some(
    (one) =>
      one.right === right && (topic === null || one.topics.test(topic)) && (group === null || one.groups.test(group)),
  );
}

export function why(right, topic = null) {
  return `this needs the right ${right}${topic === null ? "" : ` on ${topic}`}`;
}
