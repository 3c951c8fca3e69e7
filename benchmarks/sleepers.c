/* Sessions that sleep and come back, and what that takes. One thread, epoll, MQTT 3.1.1 with
 * sessions that stay, 127.0.0.1 only.
 *
 *   sleepers --port P [--name value]...
 *
 * Each line on stdin is a phase, which all of them go through:
 *
 *   sleep 0    SECONDS   connect, subscribe to `fleet/#`, and go
 *   wake  EACH SECONDS   connect again, and acknowledge what comes: until everybody has had EACH
 *                        messages and an answer to a PINGREQ behind the last PUBACK, or time is up
 *
 * and ends with {"event": "phase", ...}; who is connected stays so, and goes on reading between the
 * phases. Whom the broker turns away comes back a quarter of a second later. Latency counts from the first connect() to the first PUBLISH. The end of stdin ends the
 * program.
 * Exit status: 0, 2 wrong usage or no resources. */
#include "measure.h"
#include "mqtt5.h"

#include <poll.h>
#include <signal.h>

enum state { AWAY, CONNECTING, WAIT_CONNACK, WAIT_SUBACK, AWAKE, DONE, LOST };

struct sleeper {
    int fd;
    uint8_t state;
    bool dirty;
    uint32_t index, received;
    uint64_t began_ns, refused_ns;
    struct bytes in, out;
};

static double port, sessions = 1000, at_once = 64, broker_pid;
static const struct option {
    const char *name;
    double *value, min, max;
} options[] = {
    {"port", &port, 1, 65535},
    {"sessions", &sessions, 1, 20000},
    {"at-once", &at_once, 1, 20000},
    {"broker-pid", &broker_pid, 1, 1e9},
};

enum { AGAIN_NS = NS_PER_S / 4 };

static struct sleeper *sleepers, **dirty, **refused;
static uint32_t dirty_count, pending, finished, lost, each;
static uint64_t refusals, retried; /* a ring, as long as there are sleepers */
static uint64_t received;
static struct histogram first;
static int epoll_fd;
static bool is_waking;
static uint8_t chunk[READ_BYTES];
static char first_error[160];

static void mark_dirty(struct sleeper *s) {
    if (s->dirty) return;
    s->dirty = true;
    dirty[dirty_count++] = s;
}

/* The connection is over: by us, if the state says so. */
static void leave(struct sleeper *s, uint8_t state) {
    if (s->state < AWAKE) pending--;
    s->state = state;
    close(s->fd);
    bytes_free(&s->in);
    bytes_free(&s->out);
}

static void lose(struct sleeper *s, const char *why) {
    if (!first_error[0])
        snprintf(first_error, sizeof first_error, "%s in state %u", why, s->state);
    lost++;
    leave(s, LOST);
}

static void start(struct sleeper *s) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = s};
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (s->fd < 0) die("socket: %s (descriptor limit?)", strerror(errno));
    set_nodelay(s->fd);
    s->state = CONNECTING;
    pending++;
    if (connect(s->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        lose(s, strerror(errno));
    else if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, s->fd, &event))
        die("epoll_ctl: %s", strerror(errno));
}

static void send_connect(struct sleeper *s) {
    char id[16];
    uint8_t packet[64];
    snprintf(id, sizeof id, "s%07u", s->index);
    bytes_append(&s->out, packet, put_connect(packet, V311, id, 600, true, 0));
    s->state = WAIT_CONNACK;
    mark_dirty(s);
}

static void subscribe(struct sleeper *s) {
    uint8_t packet[64];
    bytes_append(&s->out, packet, put_subscribe(packet, V311, "fleet/#", 1));
    s->state = WAIT_SUBACK;
    mark_dirty(s);
}

static bool take(struct sleeper *s, const uint8_t *p, uint32_t header, uint32_t length) {
    uint32_t id_at;
    if (!publish_payload(p, header, length, V311, &id_at) || (p[0] & 0x06) != 2) return false;
    uint8_t answer[6] = {PUBACK << 4, 2, p[id_at], p[id_at + 1], PINGREQ << 4, 0};
    if (!s->received) histogram_add(&first, now_ns() - s->began_ns);
    s->received++;
    received++;
    bytes_append(&s->out, answer, s->received == each ? 6 : 4);
    mark_dirty(s);
    return true;
}

static bool handle_packet(void *owner, const uint8_t *p, uint32_t header, uint32_t length) {
    struct sleeper *s = owner;
    uint8_t type = p[0] >> 4;
    if (type == CONNACK && s->state == WAIT_CONNACK && length == 4 && p[3]) {
        leave(s, AWAY);
        s->refused_ns = now_ns();
        refused[refusals++ % (uint32_t)sessions] = s;
        return false;
    }
    if (type == CONNACK && s->state == WAIT_CONNACK && length == 4) {
        if (is_waking) {
            s->state = AWAKE;
            pending--;
        } else {
            subscribe(s);
        }
        return true;
    }
    if (type == SUBACK && s->state == WAIT_SUBACK && p[length - 1] == 1) {
        bytes_append(&s->out, "\xe0\x00", 2);
        bytes_send(&s->out, s->fd);
        finished++;
        leave(s, AWAY);
        return false;
    }
    if (type == PINGRESP && s->state == AWAKE) {
        s->state = DONE;
        finished++;
        return true;
    }
    if (type == PUBLISH && s->state >= AWAKE) return take(s, p, header, length);
    return false;
}

static void serve(struct sleeper *s, uint32_t events) {
    if (s->state == CONNECTING && !(events & (EPOLLERR | EPOLLHUP))) send_connect(s);
    while (s->state != AWAY && s->state != LOST && events & ~EPOLLOUT) {
        ssize_t n = recv(s->fd, chunk, sizeof chunk, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            lose(s, n ? strerror(errno) : "closed");
        } else if (!split_packets(&s->in, chunk, (uint32_t)n, s, handle_packet)) {
            if (s->state != AWAY) lose(s, "unexpected packet");
        }
    }
    if (s->state != AWAY && s->state != LOST && events & EPOLLOUT) mark_dirty(s);
}

static void pump(int timeout_ms) {
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(epoll_fd, events, MAX_EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) serve(events[i].data.ptr, events[i].events);
    for (uint32_t i = 0; i < dirty_count; i++) {
        struct sleeper *s = dirty[i];
        s->dirty = false;
        if (s->state == AWAY || s->state == LOST) continue;
        if (s->out.end > s->out.start && !bytes_send(&s->out, s->fd)) lose(s, strerror(errno));
    }
    dirty_count = 0;
}

static void run_phase(const char *kind, double count, double limit_s) {
    uint32_t next = 0, all = (uint32_t)sessions;
    is_waking = !strcmp(kind, "wake");
    each = (uint32_t)count;
    finished = 0;
    received = refusals = retried = 0;
    memset(&first, 0, sizeof first);
    struct snapshot from = snapshot_take((pid_t)broker_pid), to;
    uint64_t began = now_ns(), end = began + (uint64_t)(limit_s * NS_PER_S);
    while (finished + lost < all && now_ns() < end) {
        for (int i = 0; i < 64 && next < all && pending < (uint32_t)at_once; i++, next++) {
            sleepers[next].received = 0;
            sleepers[next].began_ns = now_ns();
            start(&sleepers[next]);
        }
        while (retried < refusals && pending < (uint32_t)at_once) {
            struct sleeper *s = refused[retried % all];
            if (now_ns() - s->refused_ns < AGAIN_NS) break;
            start(s);
            retried++;
        }
        pump(next < all && pending < (uint32_t)at_once ? 0 : 1);
    }
    to = snapshot_take((pid_t)broker_pid);
    printf("{\"event\": \"phase\", \"took_s\": %.6f, \"finished\": %u, \"lost\": %u, \"received\": "
           "%llu, \"refusals\": %llu, \"first_error\": \"%s\", \"first_ms\": {\"count\": %llu, "
           "\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}",
           (double)(to.wall_ns - began) / 1e9, finished, lost, (unsigned long long)received,
           (unsigned long long)refusals, first_error, (unsigned long long)first.count, histogram_ms(&first, 0.5),
           histogram_ms(&first, 0.99), (double)first.max / 1e6);
    print_usage(&from, &to);
    printf("}\n");
    fflush(stdout);
}

/* Goes on reading until there is a line; false: the end of stdin. */
static bool next_line(char *line, size_t size) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (size_t used = 0; used + 1 < size;) {
        if (poll(&input, 1, 0) <= 0) {
            pump(5);
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

int main(int argc, char **argv) {
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
    if (raise_descriptor_limit() < (uint64_t)sessions + 16)
        die("the descriptor limit is too low for %.0f connections", sessions);
    signal(SIGPIPE, SIG_IGN);
    sleepers = calloc((size_t)sessions, sizeof *sleepers);
    dirty = calloc((size_t)sessions, sizeof *dirty);
    refused = calloc((size_t)sessions, sizeof *refused);
    if (!sleepers || !dirty || !refused) die("out of memory");
    for (uint32_t i = 0; i < (uint32_t)sessions; i++) sleepers[i].index = i;
    epoll_fd = epoll_create1(0);
    char line[128], kind[16];
    double count, limit_s;
    while (next_line(line, sizeof line)) {
        if (sscanf(line, "%15s %lf %lf", kind, &count, &limit_s) != 3) die("not a phase: %s", line);
        run_phase(kind, count, limit_s);
    }
    return 0;
}
