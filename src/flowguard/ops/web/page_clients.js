"use strict";
// Every text of others (client ids, reasons) gets into the document as text, never as markup.

const $ = (id) => document.getElementById(id);
const FOUND_MAX = 50;
const ALL = location.pathname.replace(/workers\/\d+\/$/, ""); // One worker finds the clients of all.
let asked = null;
let searches = 0;

// --- one client: explained each second, ended after a question ------------------------------------

function explain(client) {
  location.hash = client ? `client=${encodeURIComponent(client)}` : "";
  asked = client || null;
  write($("kicked"), "");
  $("acts").hidden = true;
  if (!asked) $("explained").replaceChildren();
  else {
    $("h-explain").scrollIntoView({ block: "nearest" });
    void ask();
  }
}

async function ask() {
  const client = asked;
  let sentences;
  let isHere = false;
  let isGone = false;
  try {
    const answer = await fetch(`${ALL}explain/${encodeURIComponent(client)}`);
    if (answer.status === 503) return; // Too many ask: the next sample asks again.
    const said = await answer.json();
    isHere = Boolean(answer.ok && said.connected);
    isGone = answer.status === 404;
    sentences = answer.ok ? said.sentences : [isGone ? `There is no session of ${client} here.` : said.error];
  } catch { return; } // The feed says that there is no answer.
  if (client !== asked) return;
  if (isGone) asked = null; // One line in the browser's console, not one each second.
  fit($("explained"), sentences.length, () => make("p")).forEach((line, index) => write(line, sentences[index]));
  $("kick").hidden = !isHere;
  $("acts").hidden = !isHere && !$("kicked").textContent;
}

$("kick").addEventListener("click", () => {
  $("sure").client = asked;
  write($("question"), `Disconnect ${asked}? Its session stays, and it may connect again.`);
  $("sure").showModal();
});

$("do-kick").addEventListener("click", async () => {
  const client = $("sure").client;
  let outcome;
  try {
    const answer = await fetch(`${ALL}clients/kick`, {
      method: "POST", headers: { "X-Flowguard": "1" }, body: JSON.stringify({ client_id: client }),
    });
    outcome = answer.ok ? `${client} was disconnected.` : (await answer.json()).error;
  } catch { outcome = "No answer."; }
  if (asked !== null && client !== asked) return;
  write($("kicked"), outcome);
  $("acts").hidden = false;
});

// --- search: pages of the list, until enough are found --------------------------------------------

async function find(part) {
  const search = searches += 1;
  const rows = [];
  let cursor = "";
  explain("");
  $("found").hidden = false;
  write($("looked"), "Looking …");
  table("clients-found", [], " ");
  while (cursor !== null && rows.length < FOUND_MAX) {
    const query = new URLSearchParams({ part, limit: FOUND_MAX - rows.length, cursor });
    let page = { error: "No answer." };
    try { page = await (await fetch(`${ALL}clients?${query}`)).json(); } catch { /* It says so below. */ }
    if (search !== searches) return;
    if (page.error) { write($("looked"), page.error); return; }
    rows.push(...page.clients);
    cursor = page.next;
    const none = cursor === null ? "No client has this in its id, user or address." : "None yet.";
    table("clients-found", rows.map((one) => [one.client_id, one.state, one.user, one.address, number(one.queue_messages)]), none, explain);
    write($("looked"), cursor === null ? `${whole.format(rows.length)} found` : `${whole.format(rows.length)} found, looking for more …`);
  }
  if (cursor !== null) write($("looked"), `The first ${FOUND_MAX}. Type more of it to see others.`);
  else if (rows.length === 1) explain(rows[0].client_id);
}

$("find").addEventListener("submit", (event) => { event.preventDefault(); void find($("client").value.trim()); });
