// Schedules a message, takes and acks it, and cancels another one, by a client whose types are generated:
//
//     npm ci
//     npx openapi-typescript http://localhost:2108/openapi.json -o sandq.d.ts
//     npx tsc
//     node main.js http://localhost:2108

import createClient from "openapi-fetch";
import type { components, paths } from "./sandq.js";

type Problem = components["schemas"]["Problem"];

// Without authentication, no token is needed.
const token = process.env["SANDQ_TOKEN"];
const sandq = createClient<paths>({
  baseUrl: process.argv[2] ?? "http://localhost:2108",
  headers: token === undefined ? {} : { Authorization: `Bearer ${token}` },
});
const topic = "reminders";
const group = "mailer";

/** What was answered; a problem becomes an error that says what to do. */
function answered<T>({ data, error }: { data?: T; error?: Problem }): T {
  if (error !== undefined) throw new Error(`${error.code}: ${error.detail}`);
  return data as T;
}

/** Produce one message, and tell its id. */
async function schedule(to: string, delay: string): Promise<string> {
  const params = { path: { topic } };
  const stored = answered(await sandq.POST("/topics/{topic}", { params, body: { json: { to }, delay } }));
  if (!("id" in stored)) throw new Error("one message was sent, and many were answered");
  return stored.id;
}

const created = await sandq.POST("/topics", { body: { name: topic } });
if (created.error?.code !== "TOPIC_EXISTS") answered(created);

const params = { path: { topic, group } };
// A group has what comes after it: it is there before the first message.
answered(await sandq.POST("/topics/{topic}/groups/{group}/lease", { params, body: {} }));

const soon = await schedule("ada@example.org", "1s");
const never = await schedule("bob@example.org", "1h");
console.log("scheduled 2 messages");

answered(
  await sandq.DELETE("/topics/{topic}/messages/{message}", { params: { path: { topic, message: never } } }),
);
console.log("cancelled the one to bob@example.org");

const { messages } = answered(
  await sandq.POST("/topics/{topic}/groups/{group}/lease", { params, body: { wait: "30s", lease: "1m" } }),
);
for (const { id, attempt, deliver_at, lease_token, offset, json } of messages) {
  if (id !== soon || Date.now() < Date.parse(deliver_at)) throw new Error(`${id} came, or came early`);
  console.log(`took ${JSON.stringify(json)}, attempt ${attempt}`);
  const { settled } = answered(
    await sandq.POST("/topics/{topic}/groups/{group}/ack", { params, body: { lease_token, offset } }),
  );
  console.log(`acked ${settled}`);
}
