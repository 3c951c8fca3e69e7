/* The clients of the flood: subscribers, publishers of the flood, and background pairs. */
#ifndef BENCH_CROWD_H
#define BENCH_CROWD_H

#include "measure.h"
#include "mqtt5.h"

/* FLOODER publishes what the phase asks of it; PROBE publishes slowly, one message at a time, to a
 * LISTENER of its own: what everybody else on the broker sees. */
enum role { SUBSCRIBER, LISTENER, FLOODER, PROBE };
enum state { NEW, CONNECTING, WAIT_CONNACK, WAIT_SUBACK, READY, DEAD };
enum { STAMP_BYTES = 16, BURST = 32, SETUP_CONCURRENCY = 64, SOCKET_BYTES = 16 * 1024,
       WRITE_BYTES = 64 * 1024 };

struct client {
    int fd;
    uint8_t role, state;
    bool dirty, slow;
    uint32_t index, topic;
    struct bytes in, out;
    uint32_t allowed;        /* publisher: unacknowledged messages it may have */
    uint32_t unacknowledged; /* of them, now */
    uint32_t next_slot, next_sequence;
    uint64_t *slots;    /* publisher: packet id - 1 -> instant of its PUBLISH, 0: free */
    uint64_t pinged_ns; /* instant of the PINGREQ that waits for its answer, 0: none */
    uint32_t *expected; /* subscriber: next sequence of each publisher of its topic */
    uint32_t receive_maximum;
};

/* Options, with their defaults; times in seconds. */
static double port, subscribers = 4, topics = 4, flooders = 1000, probes = 20, probe_rate = 10,
                    durable = 1, version = V5, payload = 64, limit = ID_MAX, receive, deadline = 1,
                    keep_alive = 600, ping, slow, slow_bytes = 1024, setup_limit = 60, broker_pid;

/* Counted since the start of a second, or of a phase: the same things twice. */
struct tally {
    uint64_t sent, withheld, acknowledged, good, refused, delivered, probe_delivered;
    struct histogram acknowledgement, delivery, probe_acknowledgement, probe_delivery, pong;
};

static struct client *clients, *publishers, *probers;
static uint32_t client_count, ready, pending, lost, disordered, retries;
static uint64_t sent_total, acknowledged_total, refused_total, delivered_total, gaps_total;
static uint32_t refusals[CODES], disconnects[CODES];
static struct tally second, phase;
static struct client **dirty;
static uint32_t dirty_count, closed_limit; /* messages of each active flooder in a closed loop */
static uint32_t active;                    /* flooders that take part in this phase */
static int epoll_fd;
static uint8_t chunk[READ_BYTES], *filler;
static char first_error[160];

static void mark_dirty(struct client *c) {
    if (c->dirty || c->state == DEAD) return;
    c->dirty = true;
    dirty[dirty_count++] = c;
}

static bool is_publisher(const struct client *c) { return c->role >= FLOODER; }

/* The connection is gone, and not by us. Who was not in yet tries again (see connect_all), who was
 * is lost. */
__attribute__((format(printf, 2, 3))) static void fail(struct client *c, const char *format, ...) {
    if (c->state == DEAD) return;
    if (!first_error[0]) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(first_error, sizeof first_error, format, arguments);
        va_end(arguments);
    }
    if (c->state == READY)
        ready--, lost++;
    else if (c->state != NEW)
        pending--, retries++;
    c->state = DEAD;
    close(c->fd);
    bytes_free(&c->in);
    bytes_free(&c->out);
}

/* --- connecting ------------------------------------------------------------------------------ */

static void start_connect(struct client *c) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    int small = SOCKET_BYTES;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) die("socket: %s (descriptor limit?)", strerror(errno));
    set_nodelay(c->fd);
    /* A device has no megabytes to hide what the broker does not read. */
    if (is_publisher(c)) setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    if (c->slow) setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    c->state = CONNECTING;
    pending++;
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        fail(c, "connect: %s", strerror(errno));
    else if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event))
        die("epoll_ctl: %s", strerror(errno));
}

/* The sink, which shows the ceiling of this program, knows "b/NNNNNN" only. */
static void topic_of(const struct client *c, char *text, size_t size) {
    bool background = c->role == LISTENER || c->role == PROBE;
    snprintf(text, size, "%c/%06u", background ? 'p' : 'b', c->topic);
}

static void send_connect(struct client *c) {
    char id[40];
    uint8_t packet[256];
    snprintf(id, sizeof id, "bench-%d-%c%07u", (int)getpid(), "slfp"[c->role], c->index);
    bytes_append(&c->out, packet,
                 put_connect(packet, (int)version, id, (uint16_t)keep_alive,
                             durable && !is_publisher(c), (uint16_t)receive));
    c->state = WAIT_CONNACK;
    mark_dirty(c);
}

static void become_ready(struct client *c) {
    c->state = READY;
    ready++;
    pending--;
    mark_dirty(c);
}

static bool handle_connack(struct client *c, const uint8_t *p, uint32_t header, uint32_t length) {
    if (length < header + 2) return false;
    uint8_t code = p[header + 1];
    if (code) {
        fail(c, "CONNACK with code 0x%02x", code);
        return false;
    }
    uint32_t announced = ID_MAX;
    if ((int)version == V5) announced = receive_maximum(p + header + 2, length - header - 2);
    if (!announced) {
        fail(c, "a CONNACK with malformed properties");
        return false;
    }
    c->receive_maximum = announced;
    if (is_publisher(c)) {
        c->allowed = announced < (uint32_t)limit ? announced : (uint32_t)limit;
        free(c->slots); /* of an attempt before */
        c->slots = calloc(c->allowed, sizeof *c->slots);
        if (!c->slots) die("out of memory");
        become_ready(c);
        return true;
    }
    char topic[32];
    uint8_t packet[64];
    topic_of(c, topic, sizeof topic);
    bytes_append(&c->out, packet, put_subscribe(packet, (int)version, topic, 1));
    c->state = WAIT_SUBACK;
    mark_dirty(c);
    return true;
}

/* --- messages -------------------------------------------------------------------------------- */

static bool may_publish(const struct client *c, uint32_t at_most) {
    return c->state == READY && c->unacknowledged < at_most && c->unacknowledged < c->allowed;
}

static bool is_blocked(const struct client *c) { return c->out.end > c->out.start; }

static void publish(struct client *c, uint64_t now) {
    char topic[32];
    topic_of(c, topic, sizeof topic);
    uint32_t topic_bytes = (uint32_t)strlen(topic), gap = (int)version == V5;
    uint32_t remaining = 2 + topic_bytes + 2 + gap + (uint32_t)payload;
    uint8_t *p = bytes_room(&c->out, remaining + 5);
    uint32_t n = put_header(p, PUBLISH << 4 | 2, remaining);
    put_u16(p + n, (uint16_t)topic_bytes);
    memcpy(p + n + 2, topic, topic_bytes);
    n += 2 + topic_bytes;
    while (c->slots[c->next_slot]) c->next_slot = (c->next_slot + 1) % c->allowed;
    put_u16(p + n, (uint16_t)(c->next_slot + 1));
    n += 2;
    if (gap) p[n++] = 0;
    memcpy(p + n, &now, 8);
    memcpy(p + n + 8, &c->next_sequence, 4);
    memcpy(p + n + 12, &c->index, 4);
    memcpy(p + n + STAMP_BYTES, filler, (uint32_t)payload - STAMP_BYTES);
    c->out.end += n + (uint32_t)payload;
    c->slots[c->next_slot] = now;
    c->next_slot = (c->next_slot + 1) % c->allowed;
    c->next_sequence++;
    c->unacknowledged++;
    if (c->role == FLOODER) second.sent++, phase.sent++, sent_total++;
    mark_dirty(c);
}

/* An open loop: who may not write what it has measured withholds it, as a device does that has
 * one reading to tell and a younger one soon. */
static void offer(struct client *c, uint64_t now) {
    if (may_publish(c, c->role == PROBE ? 1 : ID_MAX) && !is_blocked(c))
        publish(c, now);
    else if (c->role == FLOODER)
        second.withheld++, phase.withheld++;
}

/* A closed loop: as many as phase and broker allow; one send carries them all. */
static void fill(struct client *c) {
    if (is_blocked(c)) return;
    uint64_t now = now_ns();
    while (may_publish(c, closed_limit) && c->out.end - c->out.start < WRITE_BYTES) publish(c, now);
}

static bool handle_puback(struct client *c, const uint8_t *p, uint32_t header, uint32_t length) {
    uint32_t id = length >= header + 2 ? get_u16(p + header) : 0;
    if (!is_publisher(c) || !id || id > c->allowed || !c->slots[id - 1]) {
        fail(c, "a PUBACK came for nothing");
        return false;
    }
    uint64_t took = now_ns() - c->slots[id - 1];
    uint8_t code = length > header + 2 ? p[header + 2] : 0;
    c->slots[id - 1] = 0;
    c->unacknowledged--;
    if (c->role == PROBE) {
        histogram_add(&second.probe_acknowledgement, took);
        histogram_add(&phase.probe_acknowledgement, took);
        return true;
    }
    if (code >= 0x80) {
        refusals[code]++, refused_total++;
        second.refused++, phase.refused++;
    } else {
        bool good = (double)took <= deadline * NS_PER_S;
        acknowledged_total++;
        second.acknowledged++, phase.acknowledged++;
        second.good += good, phase.good += good;
        histogram_add(&second.acknowledgement, took);
        histogram_add(&phase.acknowledgement, took);
    }
    if (closed_limit && c->index < active) mark_dirty(c);
    return true;
}

static bool handle_publish(struct client *c, const uint8_t *p, uint32_t header, uint32_t length) {
    uint32_t id_at, at = publish_payload(p, header, length, (int)version, &id_at), sequence, index;
    uint64_t stamp;
    if (!at || length - at != (uint32_t)payload || (p[0] & 0x06) != 2) {
        fail(c, "a PUBLISH came back with another QoS or size");
        return false;
    }
    memcpy(&stamp, p + at, 8);
    memcpy(&sequence, p + at + 8, 4);
    memcpy(&index, p + at + 12, 4);
    uint8_t puback[4] = {PUBACK << 4, 2, p[id_at], p[id_at + 1]};
    bytes_append(&c->out, puback, sizeof puback);
    mark_dirty(c);
    uint32_t *expected = &c->expected[c->role == LISTENER ? 0 : index / (uint32_t)topics];
    if (sequence < *expected) {
        disordered++; /* twice, or later than a younger one: not a delivery */
        return true;
    }
    uint64_t took = now_ns() - stamp;
    if (c->role == LISTENER) {
        second.probe_delivered++, phase.probe_delivered++;
        histogram_add(&second.probe_delivery, took);
        histogram_add(&phase.probe_delivery, took);
    } else {
        gaps_total += sequence - *expected;
        second.delivered++, phase.delivered++, delivered_total++;
        if (!c->slow) {
            histogram_add(&second.delivery, took);
            histogram_add(&phase.delivery, took);
        }
    }
    *expected = sequence + 1;
    return true;
}

static bool handle_packet(void *owner, const uint8_t *p, uint32_t header, uint32_t length) {
    struct client *c = owner;
    uint8_t type = p[0] >> 4;
    if (type == PUBLISH && c->state == READY && !is_publisher(c))
        return handle_publish(c, p, header, length);
    if (type == PUBACK && c->state == READY) return handle_puback(c, p, header, length);
    if (type == PINGRESP && c->pinged_ns) {
        histogram_add(&second.pong, now_ns() - c->pinged_ns);
        histogram_add(&phase.pong, now_ns() - c->pinged_ns);
        c->pinged_ns = 0;
        return true;
    }
    if (type == CONNACK && c->state == WAIT_CONNACK) return handle_connack(c, p, header, length);
    if (type == SUBACK && c->state == WAIT_SUBACK && p[length - 1] == 1) {
        become_ready(c);
        return true;
    }
    if (type == DISCONNECT && c->state == READY) {
        disconnects[length > header ? p[header] : 0]++;
        return true; /* the end of the stream follows */
    }
    fail(c, "unexpected packet of type %u (state %u, %u bytes)", type, c->state, length);
    return false;
}

/* --- the loop -------------------------------------------------------------------------------- */

/* Reads at most `size` bytes; false: there is no more now, or the connection has ended. */
static bool read_some(struct client *c, size_t size) {
    ssize_t n = recv(c->fd, chunk, size, MSG_DONTWAIT);
    if (n == 0) fail(c, "closed by the broker in state %u", c->state);
    if (n < 0 && errno != EAGAIN) fail(c, "in state %u: %s", c->state, strerror(errno));
    if (n > 0 && !split_packets(&c->in, chunk, (uint32_t)n, c, handle_packet))
        fail(c, "malformed packet");
    return n > 0 && (size_t)n == size && c->state != DEAD;
}

static void read_all(struct client *c, bool ended) {
    while (c->state != DEAD && (read_some(c, sizeof chunk) || ended)) {
    }
}

static void serve(struct client *c, uint32_t events) {
    bool broken = events & (EPOLLERR | EPOLLHUP);
    if (c->state == CONNECTING && !broken) send_connect(c);
    bool held = c->slow && slow && c->state == READY;
    if (broken || (!held && events & (EPOLLIN | EPOLLRDHUP)))
        read_all(c, broken || events & EPOLLRDHUP);
    if ((events & EPOLLOUT) && c->state != DEAD) mark_dirty(c);
}

static void flush_dirty(void) {
    for (uint32_t i = 0; i < dirty_count; i++) {
        struct client *c = dirty[i];
        if (c->state != DEAD && closed_limit && c->role == FLOODER && c->index < active) fill(c);
        if (c->state != DEAD && is_blocked(c) && !bytes_send(&c->out, c->fd))
            fail(c, "send: %s", strerror(errno));
        c->dirty = false; /* only now: what fill() writes is sent in this very round */
    }
    dirty_count = 0;
}

static void pump(int timeout_ms) {
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(epoll_fd, events, MAX_EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        struct client *c = events[i].data.ptr;
        if (c && c->state != DEAD) serve(c, events[i].events);
    }
    flush_dirty();
}

#endif
