/* MQTT 5.0 (and 3.1.1) for clients that measure: packets out, what matters of packets in. */
#ifndef BENCH_MQTT5_H
#define BENCH_MQTT5_H

#include "wire.h"

enum { V311 = 4, V5 = 5, PINGRESP = 13, ID_MAX = 65535, CODES = 256 };
enum { SESSION_EXPIRY_S = 300 }; /* what a killed run leaves behind is gone after five minutes */

static inline void put_u32(uint8_t *p, uint32_t value) {
    put_u16(p, (uint16_t)(value >> 16));
    put_u16(p + 2, (uint16_t)value);
}

/* A variable byte integer at `p`; returns its length, 0: not within `available`. */
static inline uint32_t get_varint(const uint8_t *p, uint32_t available, uint32_t *value) {
    *value = 0;
    for (uint32_t i = 0; i < 4 && i < available; i++) {
        *value |= (uint32_t)(p[i] & 0x7f) << (7 * i);
        if (!(p[i] & 0x80)) return i + 1;
    }
    return 0;
}

/* The bytes a property takes after its identifier; 0: malformed, or none that CONNACK may hold. */
static inline uint32_t property_bytes(const uint8_t *p, const uint8_t *end) {
    uint32_t left = (uint32_t)(end - p), first;
    switch (p[-1]) {
        case 0x24: case 0x25: case 0x28: case 0x29: case 0x2a: return left < 1 ? 0 : 1;
        case 0x13: case 0x21: case 0x22: return left < 2 ? 0 : 2;
        case 0x11: case 0x27: return left < 4 ? 0 : 4;
        case 0x12: case 0x15: case 0x16: case 0x1a: case 0x1c: case 0x1f:
            return left < 2 || left - 2 < get_u16(p) ? 0 : 2 + (uint32_t)get_u16(p);
        case 0x26: /* a pair of strings */
            if (left < 2 || left - 2 < get_u16(p)) return 0;
            first = 2 + (uint32_t)get_u16(p);
            if (left - first < 2 || left - first - 2 < get_u16(p + first)) return 0;
            return first + 2 + get_u16(p + first);
        default: return 0;
    }
}

/* Receive Maximum of a CONNACK's properties [MQTT 5.0, 3.2.2.3.3]; 0: malformed. */
static inline uint32_t receive_maximum(const uint8_t *p, uint32_t available) {
    uint32_t count, maximum = ID_MAX, n = get_varint(p, available, &count);
    if (!n || count > available - n) return 0;
    const uint8_t *end = p + n + count;
    for (p += n; p < end;) {
        uint8_t identifier = *p++;
        uint32_t size = property_bytes(p, end);
        if (!size) return 0;
        if (identifier == 0x21) maximum = get_u16(p);
        p += size;
    }
    return maximum;
}

/* CONNECT: a fresh session, which outlives its connection if `durable`. `receive` 0: no limit. */
static inline uint32_t put_connect(uint8_t *p, int version, const char *id, uint16_t keep_alive_s,
                                   bool durable, uint16_t receive) {
    uint8_t body[128], properties[16];
    uint32_t n = 0, id_bytes = (uint32_t)strlen(id), used = 0;
    memcpy(body, "\0\4MQTT", 6);
    body[6] = (uint8_t)version;
    body[7] = version == V5 || !durable ? 2 : 0; /* clean start */
    put_u16(body + 8, keep_alive_s);
    n = 10;
    if (version == V5) {
        if (durable) {
            properties[used++] = 0x11;
            put_u32(properties + used, SESSION_EXPIRY_S);
            used += 4;
        }
        if (receive) {
            properties[used++] = 0x21;
            put_u16(properties + used, receive);
            used += 2;
        }
        body[n++] = (uint8_t)used;
        memcpy(body + n, properties, used);
        n += used;
    }
    put_u16(body + n, (uint16_t)id_bytes);
    memcpy(body + n + 2, id, id_bytes);
    n += 2 + id_bytes;
    uint32_t header = put_header(p, CONNECT << 4, n);
    memcpy(p + header, body, n);
    return header + n;
}

static inline uint32_t put_subscribe(uint8_t *p, int version, const char *filter, uint8_t qos) {
    uint32_t filter_bytes = (uint32_t)strlen(filter), gap = version == V5;
    uint32_t header = put_header(p, SUBSCRIBE << 4 | 2, 2 + gap + 2 + filter_bytes + 1);
    uint8_t *body = p + header;
    put_u16(body, 1);
    if (gap) body[2] = 0;
    put_u16(body + 2 + gap, (uint16_t)filter_bytes);
    memcpy(body + 4 + gap, filter, filter_bytes);
    body[4 + gap + filter_bytes] = qos;
    return header + 5 + gap + filter_bytes;
}

/* Offset of the payload of a QoS 1 PUBLISH, and where its packet id is; 0: malformed. */
static inline uint32_t publish_payload(const uint8_t *p, uint32_t header, uint32_t length,
                                       int version, uint32_t *id_at) {
    if (length < header + 4) return 0;
    uint32_t at = header + 2 + get_u16(p + header), properties;
    *id_at = at;
    at += 2;
    if (at > length) return 0;
    if (version == V5) {
        uint32_t n = get_varint(p + at, length - at, &properties);
        if (!n || properties > length - at - n) return 0;
        at += n + properties;
    }
    return at;
}

#endif
