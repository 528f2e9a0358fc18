/* worker.mjs -- the smallest worker of jobq in Node, on the package pg: sql/optional/protocol.sql.
 *
 *     npm install pg && node worker.mjs "postgres://localhost/app"     until SIGTERM or SIGINT
 *
 * It runs one job at a time and polls. examples/python/worker.py has what it lacks: threads, LISTEN,
 * reconnecting. If a connection is lost it exits, and others rescue its job; let systemd restart it. */
import pg from "pg";

const handlers = {
    mail: {
        welcome: async job => ({ greeted: job.payload.to }),
        bounce: async job => { throw new Error("no such user: " + job.payload.to); },
    },
};

const config = process.argv[2].includes("://") ? { connectionString: process.argv[2] }
    : JSON.parse(process.argv[2]);
const [takes, beats] = [new pg.Client(config), new pg.Client(config)];
for (const client of [takes, beats]) {
    client.on("error", error => { console.error(error.message); process.exit(1); });
    await client.connect();
}
const call = async (client, text, ...values) => (await client.query("SELECT * FROM jobq." + text, values)).rows;
const kinds = Object.fromEntries(Object.entries(handlers).map(([q, k]) => [q, Object.keys(k)]));
const mono_us = () => String(process.hrtime.bigint() / 1000n);
const nap = ms => new Promise(done => setTimeout(done, ms));

let stopping = false, watched = {};
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => { stopping = true; });
const [{ worker }] = await call(takes, "work_join($1)", JSON.stringify(kinds)); /* bigint: a string */

const beat = setInterval(async () => {
    const [news] = await call(beats, "work_heartbeat($1, $2, $3)", worker, mono_us(), watched);
    if (!news.alive) { console.error("declared dead"); process.exit(1); }
    watched = news.watched;
    await call(beats, "work_rescue($1, $2, $3)", worker, mono_us(), watched);
}, 5000);

for (let number = 1; !stopping; number++) {
    const [job] = await call(takes, "work_take($1, $2)", worker, number);
    if (!job) { await nap(200); continue; }
    try {
        const result = await handlers[job.queue][job.kind](job);
        await call(takes, "work_done($1, $2, $3, $4)", worker, number, job.id, JSON.stringify(result ?? null));
    } catch (error) {
        if (error.code === "JQ001") console.error(error.message); /* another worker has it */
        else await call(takes, "work_fail($1, $2, $3, $4)", worker, number, job.id, String(error.message));
    }
}
clearInterval(beat);
await call(takes, "work_leave($1)", worker);
await Promise.all([takes.end(), beats.end()]);
