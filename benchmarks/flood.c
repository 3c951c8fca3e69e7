/* More load than a broker can take, and what its clients see of it. One thread, epoll, MQTT 5.0 or
 * 3.1.1, 127.0.0.1 only.
 *
 *   flood --port P [--name value]...
 *
 * All clients connect, and {"event": "ready", ...} is printed. Then each line on stdin is a phase:
 *
 *   open    RATE         ACTIVE SECONDS   ACTIVE flooders publish RATE messages per second together,
 *                                         whether or not the broker keeps up
 *   closed  OUTSTANDING  ACTIVE SECONDS   each has that many on their way, all the time
 *   idle    0            0      SECONDS   nobody but the background pairs publishes
 *   release 0            0      SECONDS   idle, and slow subscribers read as fast as they can
 *
 * A publisher honours the Receive Maximum of its CONNACK (and --limit, its own), and never writes
 * to a socket that has not taken its last message. Latency counts from the write of the PUBLISH.
 * Each second prints {"event": "second", ...}, each phase ends with {"event": "phase", ...}; the
 * end of stdin ends the program with {"event": "result", ...}.
 * Exit status: 0 a result was printed, 2 wrong usage or no resources. */
#include "crowd.h"

#include <poll.h>
#include <signal.h>

static const struct option {
    const char *name;
    double *value, min, max;
} options[] = {
    {"port", &port, 1, 65535},
    {"subscribers", &subscribers, 0, 10000},
    {"topics", &topics, 1, 10000},
    {"flooders", &flooders, 0, 10000},
    {"probes", &probes, 0, 1000},
    {"probe-rate", &probe_rate, 0.01, 1000},
    {"durable", &durable, 0, 1},
    {"version", &version, V311, V5},
    {"payload", &payload, STAMP_BYTES, 65536},
    {"limit", &limit, 1, ID_MAX},
    {"receive", &receive, 0, ID_MAX},
    {"deadline", &deadline, 0.001, 600},
    {"keep-alive", &keep_alive, 0, 65535},
    {"ping", &ping, 0, 600},
    {"slow", &slow, 0, 10000},
    {"slow-bytes", &slow_bytes, 0, 1e9},
    {"setup-limit", &setup_limit, 1, 300},
    {"broker-pid", &broker_pid, 1, 1e9},
};

/* Something that is done for one client after the other, `rate` times a second for all of them. */
struct rota {
    struct client *first;
    uint32_t count;
    uint64_t started_ns, done;
    double rate;
};

static struct rota flood_rota, probe_rota, ping_rota, slow_rota;

static void rota_start(struct rota *r, struct client *first, uint32_t count, double rate) {
    *r = (struct rota){first, count, now_ns(), 0, count ? rate : 0};
}

/* The next client whose turn has come, NULL: none yet. */
static struct client *rota_next(struct rota *r, uint64_t now) {
    if (r->rate <= 0 || now < r->started_ns) return NULL;
    if ((double)r->done > (double)(now - r->started_ns) / 1e9 * r->rate) return NULL;
    return &r->first[r->done++ % r->count];
}

static void send_ping(struct client *c, uint64_t now) {
    if (c->state != READY || c->pinged_ns || is_blocked(c)) return;
    bytes_append(&c->out, "\xc0\x00", 2);
    c->pinged_ns = now;
    mark_dirty(c);
}

/* What is due, at most BURST of each at once, and then the sockets; waits a millisecond when
 * nothing more is due: open loops come in portions of a millisecond, and leave the core to sleep. */
static void turn(void) {
    uint64_t now = now_ns();
    struct client *c;
    int due = 0;
    while (due < BURST && (c = rota_next(&flood_rota, now))) offer(c, now), due++;
    for (int i = 0; i < BURST && (c = rota_next(&probe_rota, now)); i++) offer(c, now);
    for (int i = 0; i < BURST && (c = rota_next(&ping_rota, now)); i++) send_ping(c, now);
    for (int i = 0; i < BURST && slow > 0 && (c = rota_next(&slow_rota, now)); i++)
        if (c->state == READY) read_some(c, (size_t)(slow_bytes / 10));
    flush_dirty();
    pump(due == BURST ? 0 : 1);
}

/* Connects all, a few at a time; whom the broker turns away comes back half a second later. */
static void connect_all(void) {
    uint64_t end = now_ns() + (uint64_t)(setup_limit * NS_PER_S);
    while (ready < client_count && now_ns() < end) {
        for (uint32_t next = 0; (next < client_count || pending) && now_ns() < end;) {
            for (int i = 0; i < BURST && next < client_count && pending < SETUP_CONCURRENCY; next++)
                if (clients[next].state == NEW || clients[next].state == DEAD) {
                    start_connect(&clients[next]);
                    i++;
                }
            pump(next < client_count && pending < SETUP_CONCURRENCY ? 0 : 50);
        }
        for (uint64_t again = now_ns() + NS_PER_S / 2; ready < client_count && now_ns() < again;)
            pump(50);
    }
    if (ready == client_count) first_error[0] = 0;
    lost = 0;
}

/* --- output ---------------------------------------------------------------------------------- */

static void print_latency(const char *name, const struct histogram *h) {
    printf(", \"%s_ms\": {\"count\": %llu, \"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}", name,
           (unsigned long long)h->count, histogram_ms(h, 0.5), histogram_ms(h, 0.99),
           (double)h->max / 1e6);
}

static void print_tally(const char *event, const struct tally *t, double took_s) {
    uint64_t outstanding = 0;
    uint32_t blocked = 0, unanswered = 0;
    for (uint32_t i = 0; i < (uint32_t)flooders; i++) {
        outstanding += publishers[i].unacknowledged;
        blocked += publishers[i].state == READY && is_blocked(&publishers[i]);
    }
    for (uint32_t i = 0; i < client_count; i++) unanswered += clients[i].pinged_ns != 0;
    printf(
        "{\"event\": \"%s\", \"at_s\": %.3f, \"took_s\": %.6f, \"sent\": %llu, \"withheld\": %llu, "
        "\"acknowledged\": %llu, \"good\": %llu, \"refused\": %llu, \"delivered\": %llu, "
        "\"delivered_all\": %llu, \"probe_delivered\": %llu, \"outstanding\": %llu, "
        "\"blocked\": %u, \"unanswered_pings\": %u, \"lost_connections\": %u",
        event, (double)now_ns() / 1e9, took_s, (unsigned long long)t->sent,
        (unsigned long long)t->withheld, (unsigned long long)t->acknowledged,
        (unsigned long long)t->good, (unsigned long long)t->refused,
        (unsigned long long)t->delivered, (unsigned long long)delivered_total,
        (unsigned long long)t->probe_delivered,
        (unsigned long long)outstanding, blocked, unanswered, lost);
    print_latency("acknowledgement", &t->acknowledgement);
    print_latency("delivery", &t->delivery);
    print_latency("probe_acknowledgement", &t->probe_acknowledgement);
    print_latency("probe_delivery", &t->probe_delivery);
    print_latency("pong", &t->pong);
}

static void print_second(uint64_t *since_ns) {
    uint64_t now = now_ns();
    print_tally("second", &second, (double)(now - *since_ns) / 1e9);
    printf("}\n");
    fflush(stdout);
    memset(&second, 0, sizeof second);
    *since_ns = now;
}

static void print_codes(const char *name, const uint32_t *counts) {
    const char *comma = "";
    printf(", \"%s\": {", name);
    for (uint32_t code = 0; code < CODES; code++)
        if (counts[code]) {
            printf("%s\"0x%02x\": %u", comma, code, counts[code]);
            comma = ", ";
        }
    printf("}");
}

static void print_ready(void) {
    uint32_t least = ID_MAX, most = 0;
    for (uint32_t i = 0; i < (uint32_t)flooders; i++) {
        if (publishers[i].state != READY) continue;
        if (publishers[i].receive_maximum < least) least = publishers[i].receive_maximum;
        if (publishers[i].receive_maximum > most) most = publishers[i].receive_maximum;
    }
    printf(
        "{\"event\": \"ready\", \"clients\": %u, \"ready\": %u, \"retries\": %u, "
        "\"receive_maximum\": [%u, %u], \"first_error\": \"%s\"}\n",
        client_count, ready, retries, least, most, first_error);
    fflush(stdout);
}

static void print_result(void) {
    printf(
        "{\"event\": \"result\", \"sent\": %llu, \"acknowledged\": %llu, \"refused\": %llu, "
        "\"delivered\": %llu, \"gaps\": %llu, \"disordered\": %u, \"lost_connections\": %u, "
        "\"first_error\": \"%s\"",
        (unsigned long long)sent_total, (unsigned long long)acknowledged_total,
        (unsigned long long)refused_total, (unsigned long long)delivered_total,
        (unsigned long long)gaps_total, disordered, lost, first_error);
    print_codes("refusals", refusals);
    print_codes("disconnects", disconnects);
    printf("}\n");
}

/* --- phases ---------------------------------------------------------------------------------- */

static void release_slow(void) {
    slow = 0;
    for (uint32_t i = 0; i < client_count; i++)
        if (clients[i].slow && clients[i].state == READY) read_all(&clients[i], false);
}

static void run_phase(const char *kind, double value, uint32_t some, double length_s) {
    active = some < (uint32_t)flooders ? some : (uint32_t)flooders;
    closed_limit = strcmp(kind, "closed") ? 0 : (uint32_t)value;
    rota_start(&flood_rota, publishers, active, strcmp(kind, "open") ? 0 : value);
    if (!strcmp(kind, "release")) release_slow();
    memset(&phase, 0, sizeof phase);
    memset(&second, 0, sizeof second);
    struct snapshot from = snapshot_take((pid_t)broker_pid), to;
    uint64_t since = now_ns(), start = since, end = start + (uint64_t)(length_s * NS_PER_S);
    if (closed_limit)
        for (uint32_t i = 0; i < active; i++) mark_dirty(&publishers[i]);
    for (uint64_t now = start, next = start + NS_PER_S; now < end; now = now_ns()) {
        turn();
        if (now >= next) {
            print_second(&since);
            next += NS_PER_S;
        }
    }
    if (now_ns() - since > NS_PER_S / 2) print_second(&since);
    closed_limit = 0;
    flood_rota.rate = 0;
    to = snapshot_take((pid_t)broker_pid);
    print_tally("phase", &phase, (double)(now_ns() - start) / 1e9);
    print_usage(&from, &to);
    printf("}\n");
    fflush(stdout);
}

/* Serves the clients until there is a line; false: the end of stdin. */
static bool next_line(char *line, size_t size) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (size_t used = 0; used + 1 < size;) {
        if (poll(&input, 1, 0) <= 0) {
            turn();
            continue;
        }
        if (read(STDIN_FILENO, line + used, 1) <= 0) return false;
        if (line[used++] == '\n') {
            line[used] = 0;
            return true;
        }
    }
    return false;
}

/* --- set-up ---------------------------------------------------------------------------------- */

static void parse_options(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const struct option *o = options, *end = options + sizeof options / sizeof *options;
        while (o < end && (strncmp(argv[i], "--", 2) || strcmp(argv[i] + 2, o->name))) o++;
        if (o == end || i + 1 == argc) die("unknown option, or no value: %s", argv[i]);
        char *rest;
        *o->value = strtod(argv[i + 1], &rest);
        if (*rest || *o->value < o->min || *o->value > o->max)
            die("%s: %s is not in %g..%g", argv[i], argv[i + 1], o->min, o->max);
    }
    if (!port) die("--port is missing");
}

static struct client *make(struct client *c, enum role role, uint32_t count, uint32_t topic_count) {
    for (uint32_t i = 0; i < count; i++, c++) {
        c->role = role;
        c->index = i;
        c->topic = i % topic_count;
        if (role == SUBSCRIBER || role == LISTENER) {
            uint32_t flows = role == LISTENER ? 1 : (uint32_t)(flooders / topics) + 1;
            c->expected = calloc(flows, sizeof *c->expected);
            c->slow = role == SUBSCRIBER && i < (uint32_t)slow;
            if (!c->expected) die("out of memory");
        }
    }
    return c;
}

static void make_clients(void) {
    client_count = (uint32_t)(subscribers + flooders + 2 * probes);
    clients = calloc(client_count + 1, sizeof *clients);
    dirty = calloc(client_count + 1, sizeof *dirty);
    filler = calloc(1, (size_t)payload + 1);
    if (!clients || !dirty || !filler) die("out of memory");
    struct client *next = make(clients, SUBSCRIBER, (uint32_t)subscribers, (uint32_t)topics);
    next = make(next, LISTENER, (uint32_t)probes, (uint32_t)probes + 1);
    publishers = next;
    next = make(next, FLOODER, (uint32_t)flooders, (uint32_t)topics);
    probers = next;
    make(next, PROBE, (uint32_t)probes, (uint32_t)probes + 1);
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    make_clients();
    if (raise_descriptor_limit() < client_count + 16)
        die("the descriptor limit is too low for %u connections", client_count);
    signal(SIGPIPE, SIG_IGN);
    epoll_fd = epoll_create1(0);
    connect_all();
    print_ready();
    rota_start(&probe_rota, probers, (uint32_t)probes, probes * probe_rate);
    rota_start(&ping_rota, clients, client_count, ping > 0 ? client_count / ping : 0);
    rota_start(&slow_rota, clients, (uint32_t)slow, slow_bytes >= 10 ? slow * 10 : 0);
    char line[256], kind[16];
    double value, some, length_s;
    while (next_line(line, sizeof line)) {
        if (sscanf(line, "%15s %lf %lf %lf", kind, &value, &some, &length_s) != 4)
            die("not a phase: %s", line);
        run_phase(kind, value, (uint32_t)some, length_s);
    }
    print_result();
    return 0;
}
