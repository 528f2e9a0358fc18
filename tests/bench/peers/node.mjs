// node.mjs graphile|boss ROW -- measures graphile-worker or pg-boss with no-op jobs on the
// database that PGHOST, PGUSER ... name. ROW is drain, groups (pg-boss only: a drain of 1,000
// groups, of each of which 10 jobs run at a time), enqueue or latency. Prints lines of a key and a
// figure for peers.sh.
//
// graphile-worker deletes completed jobs, and pg-boss keeps them. The settings are those that their
// documentation gives for speed: graphile-worker's page on performance, and pg-boss' bursts and
// notifications. For latency graphile-worker runs without its local queue, which delays.
import { setTimeout as sleep } from "node:timers/promises";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { PgBoss } from "pg-boss";
import pg from "pg";

const [, , system, row] = process.argv;
const env = (name) => Number(process.env[name]);
const groups = row === "groups";
const job = (n) => ({ n: 100000000 + n, text: "x".repeat(75) }); // 100 bytes of JSON
const fail = (error) => { throw error; };
const pool = new pg.Pool({ max: 20 }).on("error", fail).on("connect", (db) => db.on("error", fail));
const count = async (sql) => Number((await pool.query(sql)).rows[0].count);

// Each opens a queue: one and many enqueue, start works until stop is called, left counts.
const systems = {
  async graphile() {
    const logger = new Logger(() => () => {});
    const utils = await makeWorkerUtils({ pgPool: pool, logger });
    await utils.migrate();
    let runner;
    const batches = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
    return {
      one: (n) => utils.addJob("noop", job(n)),
      many: (from) => utils.addJobs(Array.from({ length: 1000 },
        (_, i) => ({ identifier: "noop", payload: job(from + i) }))),
      async start(handler) {
        const worker = { concurrentJobs: 24, maxPoolSize: 25, ...(row === "drain" && batches) };
        const preset = { worker: { connectionString: "postgres:///", logger, ...worker } };
        runner = await run({ preset, taskList: { noop: handler }, noHandleSignals: true });
      },
      stop: () => runner.stop(),
      kept: "drain",
      left: () => count("SELECT count(*) FROM graphile_worker._private_jobs"),
      done: async () => 0,
    };
  },
  async boss() {
    const boss = new PgBoss({ host: process.env.PGHOST, user: process.env.PGUSER,
      database: process.env.PGDATABASE, max: 20, useListenNotify: true });
    boss.on("error", fail);
    await boss.start();
    await boss.createQueue("noop", { notify: true });
    const counted = "SELECT count(*) FROM pgboss.job WHERE name = 'noop'";
    const batches = { batchSize: 1000, localConcurrency: 4, burstWhenBatchFull: true,
      ...(groups && { groupConcurrency: 10 }) };
    const group = (n) => groups && { group: { id: `tenant-${n % 1000}` } };
    return {
      one: (n) => boss.send("noop", job(n)),
      many: (from) => boss.insert("noop",
        Array.from({ length: 1000 }, (_, i) => ({ data: job(from + i), ...group(i) }))),
      start: (handler) => boss.work("noop", groups || row === "drain" ? batches : {},
        async (jobs) => jobs.forEach(handler)),
      stop: () => boss.stop({ graceful: false }),
      kept: groups ? "groups" : "drain-kept",
      left: () => count(`${counted} AND state < 'completed'`),
      done: () => count(`${counted} AND state = 'completed'`),
    };
  },
};

// Calls step again and again, as many calls at a time as producers. Returns calls a second.
async function gang(producers, calls, ms, step) {
  const began = performance.now();
  let taken = 0, made = 0;
  await Promise.all(Array.from({ length: producers }, async () => {
    while (taken < calls && performance.now() - began < ms) { await step(taken++); made++; }
  }));
  return (1000 * made) / (performance.now() - began);
}

const jobs = env("PEERS_JOBS"), samples = env("PEERS_SAMPLES"), minute = 60000;
const queue = await systems[system]();
const load = () => gang(2, jobs / 1000, minute, (n) => queue.many(1000 * n));

const rows = {
  async drain() {
    let runs = 0;
    await load();
    await pool.query("VACUUM ANALYZE"); // as autovacuum does in time: without it graphile-worker has
    await pool.query("CHECKPOINT"); // plans for an empty table, and a third of its speed
    const began = performance.now();
    await queue.start(() => { runs++; });
    while (runs < jobs || (await queue.left()) > 0) await sleep(2);
    console.log(queue.kept, (1000 * jobs) / (performance.now() - began));
    const done = await queue.done();
    if (runs !== jobs || (queue.kept !== "drain" && done !== jobs))
      throw new Error(`${jobs} jobs run ${runs} times, ${done} completed`);
  },
  groups: () => rows.drain(),
  async enqueue() {
    await gang(16, 200, minute, queue.one); // opens the connections
    for (const producers of [1, 16])
      console.log(`one-${producers}`, await gang(producers, Infinity, env("PEERS_MS"), queue.one));
    await pool.query("CHECKPOINT");
    console.log("bulk", 1000 * (await load()));
  },
  async latency() {
    let started;
    await queue.start(() => started(performance.now()));
    await sleep(500);
    const ms = [];
    for (let n = 0; n < samples + 10; n++) { // the first ten warm up
      await sleep(20 + 20 * Math.random());
      const run = new Promise((resolve) => { started = resolve; });
      const began = performance.now();
      await queue.one(n);
      ms.push((await run) - began);
    }
    console.log("latency", ms.slice(10).sort((a, b) => a - b)[samples >> 1]);
  },
};
await rows[row]();
if (row !== "enqueue") await queue.stop();
process.exit(0);
