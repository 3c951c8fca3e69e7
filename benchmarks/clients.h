/* The clients of the load generator: they connect, publish in a closed loop, receive. */
#ifndef BENCH_CLIENTS_H
#define BENCH_CLIENTS_H

#include "measure.h"
#include "stream.h"

#include <math.h>
#include <poll.h>

enum scenario { PAIRS, FANOUT, FANIN, STORM, IDLE };
static const char *const scenario_names[] = {"pairs", "fanout", "fanin", "storm", "idle"};

enum role { PUBLISHER, SUBSCRIBER, CONNECT_ONLY };
enum state { NEW, CONNECTING, SHAKING, WAIT_CONNACK, WAIT_SUBACK, READY, DEAD };
enum { TOPIC_BYTES = 8, MIN_PAYLOAD = 16, BURST = 32, SETUP_CONCURRENCY = 64, KEEP_ALIVE_S = 600 };

struct conn {
    int fd;
    uint8_t role, state;
    bool dirty;
    uint32_t index;
    struct stream stream;
    struct bytes in, out;
    uint64_t started_ns, connack_ns;
    uint32_t next_sequence;     /* publisher: of its next message */
    /* Of the next delivery: in the subscriber (fan-out) or in the publisher (otherwise). */
    uint32_t expected_sequence;
    uint32_t unacknowledged, undelivered;
    uint16_t packet_id, acknowledged_id; /* publisher: the last used, the last acknowledged */
};

/* Options, with their defaults; times in seconds. */
static double port, count = 100, qos, w = 10, e = 100, payload = MIN_PAYLOAD, durable, topics = 1, first_topic,
                    rate, beside, tls, ws, warmup = 1, seconds = 4, setup_limit = 30, drain_limit = 15,
                    hold_limit = 120, broker_pid, other_broker_pid, subscriber_port;
static enum scenario scenario;
static struct conn *conns, *publishers, *subscribers;
static uint32_t conn_count, publisher_count, subscriber_count;
static struct conn **dirty;
static uint32_t dirty_count;
static int epoll_fd;
static SSL_CTX *context; /* NULL: no TLS */
static uint8_t chunk[READ_BYTES];
static uint8_t *publish; /* the prebuilt PUBLISH; topic, packet id and payload head are patched */
static uint32_t publish_bytes, payload_at;
static uint32_t *passed; /* fan-out: subscribers that each of the last `e` messages has passed */

static bool publishing, measuring;
static volatile bool stopping; /* set by SIGTERM */
static uint32_t pending, ready;
static uint64_t sent, acknowledged, delivered, missing, disordered; /* since start */
static uint32_t refused, broken;
static char first_error[160];
static struct histogram latency;
static uint64_t next_ns;        /* open loop: when the next message is due, whoever's it is */
static uint64_t beside_next_ns; /* when the next one of the durable pair is due */
static uint32_t *numbers; /* of each connection, in its client id; NULL: its index */

/* The durable pair beside all others is the last one. */
static bool is_beside(const struct conn *c) {
    return beside > 0 && c->role != CONNECT_ONLY && c->index == (uint32_t)count;
}

static void mark_dirty(struct conn *c) {
    if (c->dirty || c->state == DEAD) return;
    c->dirty = true;
    dirty[dirty_count++] = c;
}

__attribute__((format(printf, 2, 3))) static void fail(struct conn *c, const char *format, ...) {
    if (c->state == DEAD) return;
    if (!first_error[0]) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(first_error, sizeof first_error, format, arguments);
        va_end(arguments);
    }
    if (c->state == READY) ready--;
    if (c->state != READY && c->state != NEW) pending--;
    c->state = DEAD;
    broken++;
    stream_free(&c->stream);
    close(c->fd);
    c->fd = -1;
    bytes_free(&c->in);
    bytes_free(&c->out);
}

/* --- connecting ------------------------------------------------------------------------------ */

static void open_socket(struct conn *c) {
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) die("socket: %s (descriptor limit?)", strerror(errno));
    set_nodelay(c->fd);
    stream_start(&c->stream, c->fd, context, NULL, ws > 0);
}

static void start_connect(struct conn *c) {
    double to = subscriber_port > 0 && c->role == SUBSCRIBER ? subscriber_port : port;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)to),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    c->state = CONNECTING;
    pending++;
    c->started_ns = now_ns();
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        fail(c, "connect: %s", strerror(errno));
    else if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event))
        die("epoll_ctl: %s", strerror(errno));
}

static void send_connect(struct conn *c) {
    char id[16];
    uint32_t number = numbers ? numbers[c - conns] : c->index;
    int id_bytes = snprintf(id, sizeof id, "%c%07u", "psc"[c->role], number);
    uint8_t packet[64];
    uint32_t n = put_header(packet, CONNECT << 4, 12 + (uint32_t)id_bytes);
    memcpy(packet + n, "\0\4MQTT\4", 7); /* 3.1.1 */
    packet[n + 7] = durable || is_beside(c) ? 0 : 2; /* clean session */
    put_u16(packet + n + 8, KEEP_ALIVE_S);
    put_u16(packet + n + 10, (uint16_t)id_bytes);
    memcpy(packet + n + 12, id, (size_t)id_bytes);
    c->state = WAIT_CONNACK;
    bytes_append(&c->out, packet, n + 12 + (uint32_t)id_bytes);
    mark_dirty(c);
}

/* One topic for fan-out and fan-in, one per connection otherwise, or `topics` in turn. */
static void put_topic(uint8_t *p, uint32_t index, uint32_t sequence) {
    char text[16];
    index += (uint32_t)first_topic;
    if (topics > 1)
        snprintf(text, sizeof text, "%05u/%02u", index, sequence % (uint32_t)topics);
    else
        snprintf(text, sizeof text, "b/%06u", scenario == FANOUT || scenario == FANIN ? 0 : index);
    memcpy(p, text, TOPIC_BYTES);
}

static void send_subscribe(struct conn *c) {
    uint8_t packet[2 + 5 + TOPIC_BYTES] = {SUBSCRIBE << 4 | 2};
    uint8_t filter_bytes = TOPIC_BYTES;
    put_topic(packet + 6, c->index, 0);
    if (topics > 1) packet[6 + --filter_bytes - 1] = '+'; /* all of this connection's */
    packet[1] = 5 + filter_bytes;
    packet[3] = 1;
    packet[5] = filter_bytes;
    packet[6 + filter_bytes] = (uint8_t)qos;
    c->state = WAIT_SUBACK;
    bytes_append(&c->out, packet, 2U + packet[1]);
    mark_dirty(c);
}

static void become_ready(struct conn *c) {
    c->state = READY;
    ready++;
    pending--;
}

/* --- messages -------------------------------------------------------------------------------- */

static void build_publish(void) {
    uint32_t remaining = 2 + TOPIC_BYTES + (qos ? 2 : 0) + (uint32_t)payload;
    publish = calloc(1, remaining + 5);
    if (!publish) die("out of memory");
    payload_at = put_header(publish, (uint8_t)(PUBLISH << 4 | (int)qos << 1), remaining);
    publish_bytes = payload_at + remaining;
    put_u16(publish + payload_at, TOPIC_BYTES);
    memset(publish + publish_bytes - (uint32_t)payload, 'x', (size_t)payload);
    payload_at = publish_bytes - (uint32_t)payload;
}

static uint16_t next_id(uint16_t id) { return id == UINT16_MAX ? 1 : (uint16_t)(id + 1); }

/* Appends a message; `stamp`: since when it is on its way. */
static void publish_one(struct conn *p, uint64_t stamp) {
    static uint32_t put_for = UINT32_MAX;
    uint32_t sequence = p->next_sequence++;
    if (topics > 1 || put_for != p->index)
        put_topic(publish + payload_at - (qos ? 2 : 0) - TOPIC_BYTES, p->index, sequence);
    put_for = p->index;
    memcpy(publish + payload_at, &stamp, 8);
    memcpy(publish + payload_at + 8, &sequence, 4);
    memcpy(publish + payload_at + 12, &p->index, 4);
    if (qos) put_u16(publish + payload_at - 2, p->packet_id = next_id(p->packet_id));
    if (passed) passed[sequence % (uint32_t)e] = 0;
    bytes_append(&p->out, publish, publish_bytes);
    p->undelivered++;
    if (qos) p->unacknowledged++;
    sent++;
}

/* As many messages as the closed loop allows; the pair beside has one when it is due. */
static void fill(struct conn *p) {
    uint32_t credit = p->undelivered < (uint32_t)e ? (uint32_t)e - p->undelivered : 0;
    if (qos && credit > (uint32_t)w - p->unacknowledged) credit = (uint32_t)w - p->unacknowledged;
    if (!credit) return;
    uint64_t stamp = now_ns();
    if (is_beside(p)) {
        if (stamp < beside_next_ns) return;
        beside_next_ns = stamp + (uint64_t)(NS_PER_S / beside);
        credit = 1;
    }
    while (credit--) publish_one(p, stamp);
}

/* Open loop: all that is due, each for a publisher by chance, the times between them exponential.
 * A message is on its way from the time when it was due, sent late or not. */
static void publish_due(void) {
    for (uint64_t now = now_ns(); next_ns <= now;) {
        struct conn *p = &publishers[(uint32_t)(drand48() * publisher_count)];
        if (p->state == READY) publish_one(p, next_ns);
        mark_dirty(p);
        next_ns += (uint64_t)(-log(1 - drand48()) / rate * NS_PER_S);
    }
}

static void return_credit(struct conn *p) {
    p->undelivered--;
    mark_dirty(p);
}

/* Message `sequence` of `p` has passed one subscriber, delivered or lost. */
static void pass(struct conn *p, uint32_t sequence) {
    if (!passed || ++passed[sequence % (uint32_t)e] == subscriber_count) return_credit(p);
}

static bool handle_publish(struct conn *c, const uint8_t *p, uint32_t header, uint32_t length) {
    uint32_t body = header + 2 + TOPIC_BYTES + (qos ? 2 : 0), index, sequence;
    uint64_t stamp;
    if ((p[0] & 0x06) >> 1 != (int)qos || length != body + (uint32_t)payload ||
        get_u16(p + header) != TOPIC_BYTES) {
        fail(c, "a PUBLISH came back with another QoS, topic or size (0x%02x, %u bytes)", p[0],
             length);
        return false;
    }
    memcpy(&stamp, p + body, 8);
    memcpy(&sequence, p + body + 8, 4);
    memcpy(&index, p + body + 12, 4);
    if (qos) {
        uint8_t puback[4] = {PUBACK << 4, 2, p[body - 2], p[body - 1]};
        bytes_append(&c->out, puback, sizeof puback);
        mark_dirty(c);
    }
    if (index >= publisher_count || (scenario == PAIRS && index != c->index) ||
        sequence >= publishers[index].next_sequence) {
        fail(c, "a message came back that was never sent to this subscriber");
        return false;
    }
    struct conn *publisher = &publishers[index];
    uint32_t *expected = scenario == FANOUT ? &c->expected_sequence : &publisher->expected_sequence;
    if (sequence < *expected) {
        disordered++; /* twice, or later than a younger one: not a delivery */
        return true;
    }
    for (; *expected < sequence; ++*expected, missing++) pass(publisher, *expected);
    pass(publisher, (*expected)++);
    delivered++;
    if (measuring) histogram_add(&latency, now_ns() - stamp);
    return true;
}

static bool handle_puback(struct conn *c, const uint8_t *p) {
    uint16_t id = get_u16(p + 2), wanted = next_id(c->acknowledged_id);
    if (!c->unacknowledged) {
        fail(c, "a PUBACK came for nothing");
        return false;
    }
    if (id != wanted) disordered++;
    c->acknowledged_id = wanted;
    c->unacknowledged--;
    acknowledged++;
    mark_dirty(c);
    return true;
}

static bool handle_packet(void *owner, const uint8_t *p, uint32_t header, uint32_t length) {
    struct conn *c = owner;
    uint8_t type = p[0] >> 4;
    if (type == PUBLISH && c->state == READY && c->role == SUBSCRIBER)
        return handle_publish(c, p, header, length);
    if (type == PUBACK && c->state == READY && length == 4) return handle_puback(c, p);
    if (type == CONNACK && c->state == WAIT_CONNACK && length == 4) {
        if (p[3]) {
            refused++;
            fail(c, "CONNACK with return code %u", p[3]);
            return false;
        }
        c->connack_ns = now_ns();
        if (c->role == SUBSCRIBER)
            send_subscribe(c);
        else
            become_ready(c);
        return true;
    }
    if (type == SUBACK && c->state == WAIT_SUBACK && length == 5) {
        if (p[4] == (int)qos) {
            become_ready(c);
            return true;
        }
        fail(c, "SUBACK with code 0x%02x", p[4]);
        return false;
    }
    fail(c, "unexpected packet of type %u (state %u, %u bytes)", type, c->state, length);
    return false;
}

/* --- the loop -------------------------------------------------------------------------------- */

static void serve(struct conn *c, uint32_t events) {
    static const char *const where[] = {
        "", "while connecting", "in a handshake", "before CONNACK", "before SUBACK",
        "when connected", ""};
    if (c->state == CONNECTING && !(events & (EPOLLERR | EPOLLHUP))) c->state = SHAKING;
    if (c->state == SHAKING) {
        int done = stream_shake(&c->stream, c->fd);
        if (done < 0) return fail(c, "%s: %s", where[c->state], strerror(errno));
        if (!done) return;
        send_connect(c);
    }
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP)) {
        ssize_t n;
        do {
            n = stream_recv(&c->stream, c->fd, chunk, sizeof chunk);
            if (n == 0) return fail(c, "closed by the broker %s", where[c->state]);
            if (n < 0 && errno != EAGAIN)
                return fail(c, "%s: %s", where[c->state], strerror(errno));
            if (n > 0 && !split_packets(&c->in, chunk, (uint32_t)n, c, handle_packet))
                return fail(c, "malformed packet");
        } while (n > 0 && (n == sizeof chunk || events & EPOLLRDHUP || c->stream.ws));
    } /* edge triggered: a short read means empty, unless headers were taken out of it */
    if ((events & EPOLLOUT) && stream_waits(&c->stream, &c->out)) mark_dirty(c);
}

/* Open loop: waits for something to read until the next message is due, to the microsecond. */
static void wait_until_due(void) {
    uint64_t now = now_ns(), left = next_ns > now ? next_ns - now : 0;
    struct timespec timeout = {(time_t)(left / NS_PER_S), (long)(left % NS_PER_S)};
    struct pollfd readable = {.fd = epoll_fd, .events = POLLIN};
    ppoll(&readable, 1, &timeout, NULL);
    publish_due();
}

static void pump(int timeout_ms) {
    struct epoll_event events[MAX_EVENTS];
    bool open_loop = publishing && rate > 0;
    if (open_loop) wait_until_due();
    if (publishing && beside > 0 && now_ns() >= beside_next_ns) mark_dirty(&publishers[(int)count]);
    int n = epoll_wait(epoll_fd, events, MAX_EVENTS, open_loop ? 0 : timeout_ms);
    for (int i = 0; i < n; i++) {
        struct conn *c = events[i].data.ptr;
        if (c->state != DEAD) serve(c, events[i].events);
    }
    for (uint32_t i = 0; i < dirty_count; i++) {
        struct conn *c = dirty[i];
        c->dirty = false;
        if (c->state == DEAD) continue;
        if (publishing && !open_loop && c->role == PUBLISHER) fill(c);
        if (stream_waits(&c->stream, &c->out) && !stream_send(&c->stream, c->fd, &c->out))
            fail(c, "send: %s", strerror(errno));
    }
    dirty_count = 0;
}

static uint64_t after_s(double s) { return now_ns() + (uint64_t)(s * NS_PER_S); }

static void pump_for(double s) {
    for (uint64_t end = after_s(s); now_ns() < end && !stopping;) pump(10);
}

#endif
