// MQTT.js through a door: node doors.cjs PACKAGE URL USER OPTIONS; prints what it received.
"use strict";

const fs = require("fs");
const [, , module_, url, user, said] = process.argv;
const options = JSON.parse(said);
for (const file of ["ca", "cert", "key"]) {
  if (options[file]) options[file] = fs.readFileSync(options[file]);
}
const times = { reconnectPeriod: 0, connectTimeout: 900_000 }; // However busy the machine is.
const client = require(module_).connect(url, { ...options, ...times, protocolVersion: 5 });

client.on("error", (error) => {
  console.log(`refused ${error.code}`);
  process.exit(0);
});
client.on("connect", async () => {
  const granted = await client.subscribeAsync(`${user}/#`, { qos: 1 });
  client.on("message", (topic, payload) => {
    console.log(`${granted[0].qos} ${topic} ${payload}`);
    client.end(false, () => process.exit(0));
  });
  await client.publishAsync("other", "no", { qos: 1 }).catch((error) => console.log(error.code));
  await client.publishAsync(`${user}/x`, "hello", { qos: 1 });
});
