// Sign in with a token, which this tab keeps until it is closed.

import { fill, h } from "./dom.js";
import { commandLine, field, problemText, valuesOf } from "./ui.js";

export function loginView(why, enter) {
  const wrong = h("p", { class: "wrong", role: "alert" }, why);
  const form = h("form", {},
    h("h1", {}, "Sign in"),
    h("p", { class: "dim" }, "This cluster requires a token."),
    field({ name: "token", label: "Token", kind: "password", required: true, help: "This tab keeps it until it is closed. It is sent only to this node, and never in a URL." }),
    wrong,
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Sign in")),
    commandLine("sandctl token create NAME --grant reader --expires 30d", "Create a token with"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    fill(wrong);
    try {
      await enter(valuesOf(form).token.trim());
    } catch (error) {
      fill(wrong, error.status === 401 ? "This token is not valid." : problemText(error));
    }
  });
  return h("div", { class: "card login" }, form);
}
