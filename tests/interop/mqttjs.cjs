// Drives MQTT.js for mqttjs_peer.py: commands come in and events go out as lines of JSON.
"use strict";

const mqtt = require(process.argv[2]);
const clients = new Map();

const say = (said) => process.stdout.write(`${JSON.stringify(said)}\n`);

// JSON has no bytes: correlation data travels as {base64: ...}.
function fromJson(properties) {
  const result = { ...properties };
  if (result.correlationData) {
    result.correlationData = Buffer.from(result.correlationData.base64, "base64");
  }
  return result;
}

function toJson(properties) {
  const result = { ...properties };
  if (result.correlationData) {
    result.correlationData = { base64: result.correlationData.toString("base64") };
  }
  return result;
}

function optionsOf(message, is5) {
  const options = { qos: message.qos, retain: message.retain };
  if (is5) options.properties = fromJson(message.properties);
  return options;
}

const commands = {
  connect({ handle, options, will }) {
    const is5 = options.protocolVersion === 5;
    if (will) {
      options.will = {
        ...optionsOf(will, is5),
        topic: will.topic,
        payload: Buffer.from(will.payload, "base64"),
      };
    }
    // Retransmission is ours to test, so nothing may be hidden by reconnecting.
    // And a CONNACK may take long on a busy machine.
    const times = { reconnectPeriod: 0, connectTimeout: 900_000 };
    const client = mqtt.connect({ ...options, ...times, resubscribe: false });
    clients.set(handle, client);
    client.on("message", (topic, payload, packet) => {
      say({
        handle,
        event: "message",
        topic,
        payload: payload.toString("base64"),
        qos: packet.qos,
        retain: packet.retain,
        properties: toJson(packet.properties),
      });
    });
    let reason = null;
    client.on("disconnect", (packet) => {
      reason = packet.reasonCode;
    });
    client.on("close", () => say({ handle, event: "ended", reason }));
    return new Promise((resolve, reject) => {
      client.once("connect", (connack) => resolve(connack.sessionPresent));
      client.on("error", reject);
    });
  },

  async subscribe({ handle, subscriptions, properties }) {
    const client = clients.get(handle);
    const options = properties ? { properties } : {};
    const granted = await client.subscribeAsync(subscriptions, options);
    return granted.map((each) => each.qos);
  },

  async unsubscribe({ handle, filter }) {
    await clients.get(handle).unsubscribeAsync(filter);
    return null;
  },

  async publish({ handle, messages }) {
    const client = clients.get(handle);
    const is5 = client.options.protocolVersion === 5;
    await Promise.all(
      messages.map((message) => {
        const payload = Buffer.from(message.payload, "base64");
        return client.publishAsync(message.topic, payload, optionsOf(message, is5));
      }),
    );
    return null;
  },

  async disconnect({ handle }) {
    await clients.get(handle).endAsync();
    return null;
  },

  cut({ handle }) {
    clients.get(handle).stream.destroy();
    return null;
  },
};

require("node:readline")
  .createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const command = JSON.parse(line);
    try {
      const result = await commands[command.do](command);
      say({ answer: command.number, result });
    } catch (error) {
      say({ answer: command.number, error: String(error && error.stack) });
    }
  })
  .on("close", () => process.exit(0));
