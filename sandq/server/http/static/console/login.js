// Who looks says so by a token, which this tab keeps until it is closed.

import { fill, h } from "./dom.js";
import { commandLine, field, problemText, valuesOf } from "./ui.js";

export function loginView(why, enter) {
  const wrong = h("p", { class: "wrong", role: "alert" }, why);
  const form = h("form", {},
    h("h1", {}, "Who looks?"),
    h("p", { class: "dim" }, "This cluster lets in who shows a token."),
    field({ name: "token", label: "Token", kind: "password", required: true, help: "This tab keeps it until it is closed; it goes to this node alone, and into no URL." }),
    wrong,
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Sign in")),
    commandLine("sandctl token create NAME --grant reader --expires 30d", "A token is made by"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    fill(wrong);
    try {
      await enter(valuesOf(form).token.trim());
    } catch (error) {
      fill(wrong, error.status === 401 ? "Nobody is known by this token." : problemText(error));
    }
  });
  return h("div", { class: "card login" }, form);
}
