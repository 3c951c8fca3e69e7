// MQTT.js proves a password by SCRAM-SHA-256 with the hashes of Node [RFC 5802, 7677]:
// node scram.cjs PACKAGE URL CA USER PASSWORD; prints what came of it.
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const [, , module_, url, ca, user, password] = process.argv;
const hmac = (key, text) => crypto.createHmac("sha256", key).update(text).digest();
const authenticationMethod = "SCRAM-SHA-256";
const bare = `n=${user},r=${crypto.randomBytes(18).toString("base64")}`;
let signature;

const client = require(module_).connect(url, {
  ca: fs.readFileSync(ca),
  protocolVersion: 5,
  reconnectPeriod: 0,
  connectTimeout: 900_000, // However busy the machine is.
  properties: { authenticationMethod, authenticationData: Buffer.from(`n,,${bare}`) },
});

client.handleAuth = (packet, done) => {
  const asked = packet.properties.authenticationData.toString();
  const said = Object.fromEntries(asked.split(",").map((part) => [part[0], part.slice(2)]));
  const salt = Buffer.from(said.s, "base64");
  const salted = crypto.pbkdf2Sync(password, salt, Number(said.i), 32, "sha256");
  const key = hmac(salted, "Client Key");
  const withoutProof = `c=biws,r=${said.r}`;
  const whole = [bare, asked, withoutProof].join(",");
  const stored = crypto.createHash("sha256").update(key).digest();
  const proof = hmac(stored, whole).map((byte, at) => byte ^ key[at]);
  signature = hmac(hmac(salted, "Server Key"), whole).toString("base64");
  const authenticationData = Buffer.from(`${withoutProof},p=${proof.toString("base64")}`);
  done(null, { cmd: "auth", reasonCode: 0x18, properties: { authenticationMethod, authenticationData } });
};

client.on("error", (error) => {
  console.log(`refused ${error.code}`);
  process.exit(0);
});
client.on("connect", async (connack) => {
  console.log(connack.properties.authenticationData.toString() === `v=${signature}`);
  await client.publishAsync("other", "no", { qos: 1 }).catch((error) => console.log(error.code));
  await client.publishAsync(`${user}/x`, "hello", { qos: 1 });
  client.end(false, () => process.exit(0));
});
