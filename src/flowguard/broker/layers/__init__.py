"""Layers between a socket and MQTT.

- `layer`         the interface of a layer, as the reactor uses it
- `layer_gate`    a bound on handshakes of layers in process
- `tls`           TLS
- `websocket`     WebSocket
- `proxied`       PROXY protocol: the address of the client
- `certificates`  files with an expired certificate
"""
