// The fleet's page with the real collector, nodes that the test invents, and a real browser.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { join } from "node:path";
import { launch, repository } from "./browser.mjs";
import { collect, ns, report, send } from "./fleet.mjs";
import { ask, look, settled, until } from "./view.mjs";

const ZONES = ["zone-a", "zone-b", "zone-c"], IMAGES = ["ami-good", "ami-bad", "ami-old"];
const HOUR = 3600, KEY = "zombie-memcgs:agent.service";
// The sick fell sick three hours ago, after a day in which nothing was wrong.
const now = Math.floor(Date.now() / 60_000) * 60, onset = now - 3 * HOUR, first = now - 24 * HOUR;
// Nodes that go by their machine id are shown by their host name.
const id = number => number.toString(16).padStart(32, "0");
const EVIL = "<img src=x onerror=alert(1)>";
let browser, fleet, hostile;

const problem = (key, title, began, severity = "critical") => ({ key, code: key.split(":")[0], subject_kind: "unit", subject: "agent.service", severity, certainty: "proven", title, began_real_ns: ns(began), ended_real_ns: null });
const diagnosis = (boot_id, from, until, problems) => ({ kind: "diagnosis", boot_id, from_real_ns: ns(from), until_real_ns: ns(until), diagnoses: 1, conclusion: problems.length ? "cause found" : "nothing wrong", problems });

function rows(number) {
  const boot_id = `boot-${number}`, isSick = number % 3 === 1 && number < 90, boot = now - (2 + number % 9) * 24 * HOUR;
  const minutes = [];
  for (let at = first; at <= now - 60; at += 30 * 60) minutes.push(at);
  minutes.push(now - 120, now - 60);
  return [
    { kind: "batch", schema: "coroner.report/1", node: id(number), stream: "s", sequence: 1, boot_id, sealed: ns(first), version: "test" },
    { kind: "node", host: `node-${number}`, boot_id, booted: ns(boot), cluster: "test", labels: { pool: number % 2 ? "gpu" : "cpu" }, attributes: { zone: ZONES[Math.floor(number / 3) % 3], image_id: IMAGES[number % 3], kernel: "6.8" } },
    ...minutes.map(at => ({ kind: "minute", minute: ns(at), cores: 8, busy_mean: 0.3, worst_core_system: isSick && at >= onset ? 0.97 : 0.1, zombies_dead: isSick ? Math.floor((at - boot) / 36) : 3, zombies_live: 40, unit_restarts: at % 3600 ? 0 : 1 })),
    { kind: "stacks", from: ns(now - 1800), until: ns(now - 1200), samples: 100, stacks: [{ stack: isSick ? "kubelet;read;mem_cgroup_iter_[k]" : "train;forward", samples: 90 }] },
    diagnosis(boot_id, first, onset - 60, []),
    diagnosis(boot_id, onset, now - 30, isSick ? [problem(KEY, `${number + 1000} dead memory cgroups; run \`coroner zombies\``, onset + number * 10)] : []),
    ...(number === 4 ? [{ kind: "incident", schema: "coroner.incident/1", number: 1, code: "nic-reset", key: "nic-reset:ena", subject: "eth0", text: "NIC eth0 was reset", triggered_real_ns: ns(now - HOUR), from_real_ns: ns(now - HOUR - 300), until_real_ns: ns(now - HOUR + 300), state: "complete", repeats: 2, error: null }] : []),
  ];
}

before(async () => {
  [browser, fleet, hostile] = await Promise.all([launch(), collect(), collect()]);
  for (let number = 0; number < 120; number++) await report(fleet, id(number), rows(number));
  const bidi = "a\u202eb\u200b", escape = "\u001b[2J";
  await report(hostile, EVIL, [
    { kind: "batch", schema: "coroner.report/1", node: EVIL, stream: "s", sequence: 1, boot_id: EVIL, sealed: ns(now), version: EVIL },
    { kind: "node", host: EVIL, booted: ns(now - HOUR), cluster: bidi, labels: { [EVIL]: EVIL }, attributes: { zone: bidi, image_id: `'"><script>alert(2)</script>${escape}`, __proto__x: "constructor" } },
    { kind: "minute", minute: ns(now - 60), zombies_dead: 5 },
    diagnosis(EVIL, now - 600, now, [{ ...problem(`x:${EVIL}&#"'`, `${EVIL}${bidi}${escape} \`rm -rf /\``, now - 300), severity: EVIL }]),
    { kind: "incident", schema: "coroner.incident/1", number: 1, code: EVIL, subject: EVIL, text: `${EVIL}${bidi}`, triggered_real_ns: ns(now - 60), from_real_ns: ns(now - 90), until_real_ns: ns(now), state: "open", repeats: 0, error: EVIL },
  ]);
  await report(hostile, "other", [
    { kind: "batch", schema: "coroner.report/1", node: "other", stream: "s", sequence: 1, boot_id: "b", sealed: ns(now), version: "1" },
    { kind: "node", host: "javascript:alert(3)", attributes: { zone: "b" } },
  ]);
});
after(async () => { await Promise.all([browser?.close(), fleet?.close(), hostile?.close()]); });

// Opens the page as somebody who has logged in, with no complaint at the end.
async function visit(collector, hash, use) {
  await browser.context.clearCookies();
  await browser.context.request.post(`${collector.url}api/v1/session`, { headers: { authorization: `Bearer ${collector.token}` } });
  const { page, complaints } = await look(browser.context, collector.url, hash);
  try {
    await page.locator(".map canvas, [aria-label=Incidents]").first().waitFor();
    await settled(page);
    await use(page);
    assert.deepEqual(complaints, []);
  } finally {
    await page.close();
  }
}
const map = page => page.locator(".map canvas");
const label = page => map(page).getAttribute("aria-label");
const drawer = page => page.locator(".drawer");
const hash = page => new URL(page.url()).hash;

test("without the token there is only the question for it; with it, a cookie that no script can read", async () => {
  await browser.context.clearCookies();
  const page = await browser.context.newPage();
  try {
    await page.goto(`${fleet.url}#v=map&by=zone`);
    const field = page.getByLabel("Token");
    await field.fill("not-the-token-of-anybody");
    await page.getByRole("button", { name: "Open" }).click();
    await page.getByText("not this collector's user token").waitFor();
    await field.fill(fleet.agents);
    await page.getByRole("button", { name: "Open" }).click();
    await page.getByText("not this collector's user token").waitFor();
    assert.equal(await map(page).count(), 0);
    await field.fill(fleet.token);
    await page.keyboard.press("Enter");
    await map(page).waitFor();
    assert.match(hash(page), /by=zone/);
    assert.equal(await page.evaluate(() => document.cookie + JSON.stringify(localStorage)), "{}");
    // A token in the address moves into the cookie.
    await browser.context.clearCookies();
    await page.goto(`${fleet.url}?token=${fleet.token}#by=image_id`);
    await map(page).waitFor();
    assert.equal(page.url(), `${fleet.url}#by=image_id`);
    await browser.context.clearCookies();
    await page.goto(`${fleet.url}?token=${fleet.agents}`);
    await page.getByText("The token in the address is not this collector's").waitFor();
    assert.ok(!page.url().includes(fleet.agents));
  } finally {
    await page.close();
  }
  assert.ok(!fleet.said.includes(fleet.token), "a service's log has no token");
});

test("the page is public, the data are not; other sites' requests are refused; the policy is strict", async () => {
  const session = await fetch(`${fleet.url}api/v1/session`, { method: "POST", headers: { authorization: `Bearer ${fleet.token}` } });
  assert.equal(session.status, 204);
  const set = session.headers.get("set-cookie");
  assert.match(set, /HttpOnly; SameSite=Strict/);
  assert.ok(!set.includes(fleet.token));
  const cookie = set.split(";")[0];
  for (const path of ["map", "history", "problem?code=x", "nodes/node-1/minutes", "status", "why", "incidents"]) {
    assert.equal((await ask(fleet.port, `/api/v1/${path}`)).status, 401, path);
    assert.equal((await ask(fleet.port, `/api/v1/${path}`, { cookie })).status, 200, path);
    assert.equal((await ask(fleet.port, `/api/v1/${path}`, { cookie, "sec-fetch-site": "cross-site" })).status, 401, path);
    assert.equal((await ask(fleet.port, `/api/v1/${path}`, { authorization: `Bearer ${fleet.agents}` })).status, 401, path);
  }
  for (const [path, said] of [["map?at=yesterday", "seconds"], ["map?numbers=colour", "zombies"], ["problem", "code"], ["nodes/node-1/minutes?from=-5", "seconds"]]) {
    const answer = await ask(fleet.port, `/api/v1/${path}`, { cookie });
    assert.ok(answer.status === 400 && JSON.parse(answer.body).error.includes(said), `${path}: ${answer.status} ${answer.body}`);
  }
  assert.equal((await ask(fleet.port, "/api/v1/nodes/nobody/minutes", { cookie })).status, 404);
  for (const path of ["/", "/api/v1/status", "/assets/../index.html", "/assets/x.js"]) {
    const { headers } = await ask(fleet.port, path);
    assert.match(headers["content-security-policy"], /default-src 'none'; script-src 'self'; style-src 'self';.*frame-ancestors 'none'/, path);
    assert.ok(headers["x-content-type-options"] === "nosniff" && headers["x-frame-options"] === "DENY" && headers["referrer-policy"] === "no-referrer", path);
  }
  assert.equal((await ask(fleet.port, "/assets/..%2f..%2fCargo.toml")).status, 404);
});

test("every node is a cell, grouped by any attribute, and opens", () => visit(fleet, "", async page => {
  assert.match(await page.locator(".sums").textContent(), /120 nodes30 sick/);
  assert.match(await label(page), /^120 nodes, 30 sick/);
  await page.getByLabel("Group by").selectOption("image_id");
  await until(page, () => document.querySelector(".map canvas").getAttribute("aria-label").includes("ami-bad: 30 of 40"));
  assert.match(await label(page), /120 nodes in 3 groups by image id, 30 sick\. ami-bad: 30 of 40; ami-good: 0 of 40; ami-old: 0 of 40/);
  assert.match(hash(page), /by=image_id/);
  // The first cell of the first group is its first node, and it is red.
  const [box, cell] = [await map(page).boundingBox(), Number(await map(page).getAttribute("data-cell"))];
  const red = await map(page).evaluate((canvas, at) => { const ratio = canvas.width / canvas.clientWidth, [r, g, b] = canvas.getContext("2d").getImageData(at * ratio, (20 + at) * ratio, 1, 1).data; return r - Math.max(g, b); }, Math.floor(cell / 2));
  assert.ok(red > 90, `${red}`);
  await page.mouse.move(box.x + cell / 2, box.y + 20 + cell / 2);
  await page.locator(".tip", { hasText: "node-1" }).waitFor();
  assert.match(await page.locator(".tip").textContent(), new RegExp(`critical: ${KEY}`));
  await page.mouse.down();
  await page.mouse.up();
  await drawer(page).getByText("1001 dead memory cgroups").waitFor();
  await settled(page);
  assert.match(await drawer(page).locator("canvas").first().getAttribute("aria-label"), /dead cgroups: between/);
  assert.match(await drawer(page).textContent(), /ami-bad/);
  // All that are like it in one attribute.
  await drawer(page).locator("tr", { hasText: "pool (label)" }).getByRole("button", { name: "alike" }).click();
  await until(page, () => document.querySelector(".map canvas").dataset.nodes === "60");
  assert.match(hash(page), /find=label%3Apool%3Dgpu/);
  // Back: the node, then the groups, then nothing.
  await page.goBack();
  await drawer(page).waitFor();
  await page.goBack();
  await drawer(page).waitFor({ state: "detached" });
  assert.match(await label(page), /in 3 groups/);
  await page.goBack();
  await until(page, () => !document.querySelector(".map canvas").getAttribute("aria-label").includes("groups"));
}));

test("with keys alone: groups, colours, search, a node, a problem, help", () => visit(fleet, "", async page => {
  await page.keyboard.press("g");
  await until(page, () => /by=cluster|by=image_id|by=label/.test(location.hash));
  await page.keyboard.press("c");
  await until(page, () => location.hash.includes("colour=up"));
  await page.keyboard.press("/");
  await page.keyboard.type("zone=zone-b");
  await until(page, () => document.querySelector(".map canvas").dataset.nodes === "39");
  await page.keyboard.press("Escape");
  await until(page, () => document.querySelector(".map canvas").dataset.nodes === "120");
  await map(page).focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  await drawer(page).waitFor();
  await page.keyboard.press("Escape");
  await drawer(page).waitFor({ state: "detached" });
  await page.keyboard.press("j");
  await page.locator(".problem").waitFor();
  await page.keyboard.press("Escape");
  await page.locator(".problem").waitFor({ state: "detached" });
  await page.keyboard.press("?");
  await page.locator("dialog.help[open]").waitFor();
  await page.keyboard.press("Escape");
  await page.locator("dialog.help[open]").waitFor({ state: "detached" });
}));

test("a problem tells what its nodes have in common, in words, as a table and as curves; the link shows the same", () => visit(fleet, "#by=zone", async page => {
  const row = page.locator(".problems button", { hasText: KEY });
  assert.match(await row.textContent(), /30 nodes · since [23] h.*new/);
  await row.click();
  const open = page.locator(".problem");
  await open.getByText("Cohorts").waitFor();
  await settled(page);
  const told = JSON.parse((await ask(fleet.port, `/api/v1/why?condition=${encodeURIComponent(KEY)}&since=604800`, { authorization: `Bearer ${fleet.token}` })).body);
  assert.equal((await open.locator(".said-why p").first().textContent()).replace(/\s+/g, " "), told.words[0].replaceAll("`", ""));
  assert.match(await open.locator(".cohorts tbody tr").first().textContent(), /image id ami-bad30 of 400 of 80/);
  assert.match(await open.locator(".charts canvas").last().getAttribute("aria-label"), /120 nodes by uptime and dead cgroups; .* Median growth: sick [\d.,]+ an hour/);
  // Those without it step back on the map.
  assert.match(await page.locator(".map .legend").textContent(), /without this problem/);
  const [before, said] = [hash(page), await open.textContent()];
  await page.reload();
  await settled(page);
  assert.equal(hash(page), before);
  assert.equal(await page.locator(".problem").textContent(), said);
  await page.locator(".problem").getByRole("button", { name: "Show these" }).first().click();
  await until(page, () => document.querySelector(".map canvas").dataset.nodes === "40");
  await page.goBack();
  await page.goBack();
  await page.locator(".problem").waitFor({ state: "detached" });
}));

test("where sick nodes spend their time is a picture, which opens with its colours and works by itself", () => visit(fleet, `#problem=${encodeURIComponent(KEY)}`, async page => {
  await page.getByRole("button", { name: "Flame graph: sick against healthy nodes" }).click();
  const image = page.locator(".flame-part img");
  await image.waitFor();
  await until(page, () => { const image = document.querySelector(".flame-part img"); return image.complete && image.naturalWidth > 100; });
  const [opened, complaints] = [await page.context().newPage(), []];
  opened.on("console", said => { if (said.type() === "error") complaints.push(said.text()); });
  try {
    await opened.goto(await page.locator(".flame-part a").evaluate(link => link.href));
    await opened.locator("svg").first().waitFor();
    const fills = await opened.evaluate(() => [...document.querySelectorAll("rect")].map(rect => getComputedStyle(rect).fill));
    assert.ok(fills.length > 3 && fills.every(fill => fill !== "rgb(0, 0, 0)"), fills.join(" "));
    assert.match(await opened.locator("svg").first().textContent(), /mem_cgroup_iter/);
    assert.deepEqual(complaints, []);
  } finally {
    await opened.close();
  }
}));

test("the fleet as it was then, and live again with one key", () => visit(fleet, "#by=image_id", async page => {
  assert.match(await page.locator(".sums").textContent(), /30 sick/);
  await page.goto(`${fleet.url}#by=image_id&at=${onset - HOUR}`);
  await until(page, () => document.querySelector(".sums")?.textContent.includes("0 sick") && !document.querySelector(".sums").textContent.includes("30 sick"));
  await settled(page);
  assert.match(await page.locator(".strip").textContent(), /as of \d{4}-\d\d-\d\d \d\d:\d\d UTC · 4 h/);
  assert.match(await page.locator(".side-part").textContent(), /Nothing is wrong on 120 diagnosed nodes.*No incidents in this time/);
  // Forward, hour by hour, until they are sick.
  for (let hour = 0; hour < 2; hour++) await page.keyboard.press("ArrowRight");
  await until(page, () => document.querySelector(".sums").textContent.includes("30 sick"));
  await page.goBack();
  await page.keyboard.press("l");
  await page.locator(".selection .live").waitFor();
  await until(page, () => document.querySelector(".sums").textContent.includes("30 sick"));
  assert.ok(!hash(page).includes("at="));
  // A click on the strip.
  const strip = page.locator("canvas.slider"), box = await strip.boundingBox();
  await page.mouse.click(box.x + 176 + (box.width - 188) * 0.5, box.y + 50);
  await until(page, () => /at=\d+/.test(location.hash));
  const at = Number(/at=(\d+)/.exec(hash(page))[1]);
  assert.ok(at > first - HOUR && at < now, `${at}`);
  await strip.focus();
  await page.keyboard.press("End");
  await until(page, () => !location.hash.includes("at="));
}));

test("incidents of all nodes lead to their node", () => visit(fleet, "#v=incidents", async page => {
  await page.locator("#main").getByText("NIC eth0 was reset").click();
  await drawer(page).waitFor();
  await settled(page);
  assert.match(await drawer(page).locator("h2").textContent(), /^node-4$/);
  assert.match(await drawer(page).textContent(), /nic-reset.*complete · 2 repeats/);
}));

test("an incident opens in the node's own page, brought from its node", () => visit(fleet, "#node=node-4", async page => {
  const head = { kind: "batch", schema: "coroner.report/1", node: id(4), stream: "later", boot_id: "boot-4", sealed: ns(now), version: "test" };
  assert.deepEqual((await report(fleet, id(4), [{ ...head, sequence: 1 }])).wanted ?? [], []);
  await drawer(page).getByRole("button", { name: "open its recording" }).click();
  await drawer(page).getByText("waiting for the node's next report").waitFor();
  assert.deepEqual((await report(fleet, id(4), [{ ...head, sequence: 2 }])).wanted, [{ incident: 1 }]);
  await send(fleet, id(4), 1, join(repository, "golden", "cgroup-dir-leak.coroner"));
  await page.getByText("4,654 empty cgroups that nobody removed").first().waitFor();
  assert.equal(new URL(page.url()).pathname, `/incidents/${id(4)}/1/`);
  // Every view has its data from there.
  await page.keyboard.press("2");
  await settled(page);
  assert.equal(await page.getByText(/not found|token is required|does not respond/).count(), 0);
  await page.goBack();
  for (const path of [`/incidents/${id(4)}/1/api/v1/source`, `/incidents/${id(4)}/1/api/v1/diagnosis`]) assert.equal((await ask(fleet.port, path)).status, 401, path);
  const headers = { authorization: `Bearer ${fleet.token}` };
  for (const path of [`/incidents/${id(4)}/1/..%2f..%2fapi`, `/incidents/${id(4)}/1/a%3fb`, `/incidents/${id(5)}/1/`, "/incidents/nobody/1/"]) assert.equal((await ask(fleet.port, path, headers)).status, 404, path);
}));

test("names of hostile nodes are text", () => visit(hostile, "#by=zone", async page => {
  assert.equal(await page.locator("img, script:not([src]), iframe").count(), 0);
  const text = await page.locator("body").innerText();
  assert.ok(text.includes(EVIL), text);
  assert.ok(!/[\u202e\u200b\u001b]/.test(text));
  assert.ok(!/[\u202e\u200b\u001b]/.test(await label(page)));
  await page.locator(".problems button").click();
  await page.locator(".problem h2").waitFor();
  await settled(page);
  assert.ok((await page.locator(".problem h2").textContent()).includes(EVIL));
  await page.evaluate(evil => { location.hash = `#node=${encodeURIComponent(evil)}`; }, EVIL);
  await drawer(page).getByText("Wrong now").waitFor();
  await settled(page);
  const all = await page.locator("body").innerText();
  assert.ok(all.includes("<script>alert(2)</script>") && !/[\u202e\u200b\u001b]/.test(all), all);
  assert.equal(await page.locator(".drawer img, .drawer script").count(), 0);
  for (const bad of ["#by=__proto__&colour=constructor", `#problem=nic-reset&find=${encodeURIComponent('"=x __proto__=y')}`]) {
    await page.evaluate(bad => { location.hash = bad; }, bad);
    await settled(page);
    await page.locator("h1", { hasText: "Fleet" }).waitFor();
  }
}));

test("both themes, and a phone's width without scrolling sideways", () => visit(fleet, `#by=image_id&problem=${encodeURIComponent(KEY)}`, async page => {
  const fits = async () => assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "it scrolls sideways");
  const ground = () => page.evaluate(() => getComputedStyle(document.body.parentElement).backgroundColor);
  const light = await ground();
  await page.setViewportSize({ width: 360, height: 740 });
  await settled(page);
  await fits();
  await page.keyboard.press("t");
  assert.notEqual(await ground(), light);
  await page.goto(`${fleet.url}#node=node-1`);
  await drawer(page).getByText("1001 dead").waitFor();
  await settled(page);
  await fits();
  const { x, width } = await drawer(page).boundingBox();
  assert.ok(x >= 0 && width <= 360, `from ${x}, ${width} wide`);
}));

test("an empty fleet says how to fill it", async () => {
  const empty = await collect();
  try {
    await visit(empty, "", async page => {
      assert.match(await page.locator("body").innerText(), /No node has reported yet/);
    });
  } finally {
    await empty.close();
  }
});
