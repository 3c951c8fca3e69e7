// MQTT.js through a door: node doors.cjs PACKAGE URL CA USER PASSWORD; prints what it received.
"use strict";

const fs = require("fs");
const [, , module_, url, ca, username, password] = process.argv;
const client = require(module_).connect(url, {
  ca: fs.readFileSync(ca),
  username,
  password,
  protocolVersion: 5,
  reconnectPeriod: 0,
});

client.on("error", (error) => {
  console.log(`refused ${error.code}`);
  process.exit(0);
});
client.on("connect", async () => {
  const granted = await client.subscribeAsync(`${username}/#`, { qos: 1 });
  client.on("message", (topic, payload) => {
    console.log(`${granted[0].qos} ${topic} ${payload}`);
    client.end(false, () => process.exit(0));
  });
  await client.publishAsync("other", "no", { qos: 1 }).catch((error) => console.log(error.code));
  await client.publishAsync(`${username}/x`, "hello", { qos: 1 });
});
