/* A crowd that comes by TLS at once, and residents that are in already. One thread, epoll, MQTT
 * 5.0, 127.0.0.1 only.
 *
 *   tls_crowd crowd     --port P [--name value]...
 *   tls_crowd residents --port P [--name value]...
 *
 * crowd: `count` clients connect at once, and come again until each has a CONNACK with code 0.
 * With `resume 1` each has shaken hands before, and offers its session. With `users 1` it says a
 * user name, uNNNNN, and the password `secret`. `dead` more come first, say their ClientHello and are gone. Who was
 * turned away comes again after 2 s, then 4, up to 30, the second half of it by chance. Prints
 * {"event": "ready"}, waits for a line on stdin, comes, and prints {"event": "result"} when all are
 * in, or `limit` is over.
 *
 * residents: `count` connections that publish at `rate` each to themselves, at random times. Each
 * line on stdin prints {"event": "latency"}: from the time when a message was due until it was
 * back, since the line before. The end of stdin ends it.
 *
 * Exit status: 0 a result was printed, 2 wrong usage or no resources. */
#include "measure.h"
#include "mqtt5.h"
#include "stream.h"

#include <math.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>

enum state { AWAY, CONNECTING, SHAKING, WAIT_SESSION, WAIT_CONNACK, WAIT_SUBACK, IN };
enum { TOPIC_BYTES = 9, KEEP_ALIVE_S = 600, VISITS_AT_ONCE = 32, SETUP_LIMIT_S = 60 };
static const double RETRY_S = 2, RETRY_MAX_S = 30;

struct client {
    int fd;
    uint8_t state;
    bool dead;        /* says its ClientHello and is gone */
    uint32_t index, attempts;
    struct stream stream;
    struct bytes in, out;
    SSL_SESSION *session;
    uint64_t began_ns; /* of this attempt; AWAY: when the next one begins */
    uint64_t in_ns;
};

/* Options, with their defaults; times in seconds. */
static double port, count = 5000, dead, tls = 1, resume, users, patience = 60, limit = 300,
                    rate = 10, broker_pid;
static const struct option {
    const char *name;
    double *value, min, max;
} options[] = {
    {"port", &port, 1, 65535},     {"count", &count, 1, 30000},
    {"dead", &dead, 0, 30000},     {"tls", &tls, 0, 1},
    {"resume", &resume, 0, 1},     {"users", &users, 0, 1},
    {"patience", &patience, 1, 600}, {"limit", &limit, 1, 3600},
    {"rate", &rate, 0.01, 1000},   {"broker-pid", &broker_pid, 1, 1e9},
};

static bool residents, visiting, coming;
static struct client *clients;
static uint32_t client_count, inside, visited, resumed, gone;
static uint32_t resets, closed, unanswered, refused[CODES];
static char first_error[160];
static SSL_CTX *context;
static int epoll_fd;
static uint8_t chunk[READ_BYTES];
static struct histogram latency;

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    if (first_error[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(first_error, sizeof first_error, format, arguments);
    va_end(arguments);
}

static void leave(struct client *c) {
    if (c->fd < 0) return;
    if (c->state == IN) inside--;
    stream_free(&c->stream);
    close(c->fd);
    c->fd = -1;
    c->in.start = c->in.end = c->out.start = c->out.end = 0;
    c->state = AWAY;
    c->began_ns = UINT64_MAX;
}

/* Turned away: it comes again, later each time. */
static void retry(struct client *c) {
    double after_s = fmin(RETRY_MAX_S, RETRY_S * (1U << (c->attempts < 8 ? c->attempts : 8)));
    leave(c);
    c->attempts++;
    c->began_ns = now_ns() + (uint64_t)((0.5 + drand48() / 2) * after_s * NS_PER_S);
}

static void broken(struct client *c, ssize_t n) {
    static const char *const where[] = {"away", "connecting", "in the handshake", "before a session",
                                        "before CONNACK", "before SUBACK", "inside"};
    note("%s %s", n ? strerror(errno) : "closed", where[c->state]);
    if (n) resets++; else closed++;
    retry(c);
}

static void begin(struct client *c) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) die("socket: %s (descriptor limit?)", strerror(errno));
    set_nodelay(c->fd);
    c->state = CONNECTING;
    c->began_ns = now_ns();
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        broken(c, -1);
    else if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event))
        die("epoll_ctl: %s", strerror(errno));
}

static void flush(struct client *c) {
    if (!stream_send(&c->stream, c->fd, &c->out)) broken(c, -1);
}

static void send_connect(struct client *c) {
    uint8_t packet[256];
    char id[24], user[16];
    snprintf(id, sizeof id, "%s-%05u", residents ? "in" : "crowd", c->index);
    uint32_t n = put_connect(packet, V5, id, KEEP_ALIVE_S, false, 0);
    if (users > 0) { /* its user name and password follow the client id */
        snprintf(user, sizeof user, "u%05u", c->index % 100000);
        const char *said[] = {user, "secret"};
        for (int i = 0; i < 2; i++) {
            put_u16(packet + n, 6);
            memcpy(packet + n + 2, said[i], 6);
            n += 8;
        }
        packet[1] = (uint8_t)(n - 2);
        packet[9] |= 0xc0;
    }
    c->state = WAIT_CONNACK;
    bytes_append(&c->out, packet, n);
    flush(c);
}

static void topic_of(const struct client *c, char *text, size_t size) {
    snprintf(text, size, "in/%06u", c->index % 1000000);
}

static void come_in(struct client *c) {
    c->state = IN;
    c->in_ns = now_ns();
    inside++;
}

static bool handle_packet(void *owner, const uint8_t *p, uint32_t header, uint32_t length) {
    struct client *c = owner;
    uint8_t type = p[0] >> 4;
    if (type == CONNACK && c->state == WAIT_CONNACK && length >= header + 2) {
        uint8_t code = p[header + 1];
        if (code) {
            refused[code]++;
            retry(c);
            return false;
        }
        if (!residents) {
            come_in(c);
            return true;
        }
        char topic[16];
        uint8_t packet[64];
        topic_of(c, topic, sizeof topic);
        bytes_append(&c->out, packet, put_subscribe(packet, V5, topic, 0));
        c->state = WAIT_SUBACK;
        flush(c);
        return c->fd >= 0;
    }
    if (type == SUBACK && c->state == WAIT_SUBACK) come_in(c);
    if (type == PUBLISH && length >= header + 8) {
        uint64_t due;
        memcpy(&due, p + length - 8, 8);
        histogram_add(&latency, now_ns() - due);
    }
    if (type == DISCONNECT) note("DISCONNECT with code 0x%02x", length > header ? p[header] : 0);
    return true;
}

static void serve(struct client *c, uint32_t events) {
    if (c->state == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        if (events & (EPOLLERR | EPOLLHUP)) {
            getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
            errno = error;
            return broken(c, -1);
        }
        stream_start(&c->stream, c->fd, context, c->session, false);
        if (context) SSL_set_app_data(c->stream.ssl, c);
        c->state = SHAKING;
    }
    if (c->state == SHAKING) {
        int done = stream_shake(&c->stream, c->fd);
        if (c->dead) {
            gone++;
            return leave(c);
        }
        if (done < 0) return broken(c, errno ? -1 : 0);
        if (!done) return;
        if (coming && c->stream.ssl && SSL_session_reused(c->stream.ssl)) resumed++;
        if (visiting)
            c->state = WAIT_SESSION;
        else
            send_connect(c);
    }
    while (c->fd >= 0) {
        ssize_t n = stream_recv(&c->stream, c->fd, chunk, sizeof chunk);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) return broken(c, n);
        if (!split_packets(&c->in, chunk, (uint32_t)n, c, handle_packet) && c->fd >= 0)
            die("a malformed packet came");
    }
    if (c->fd >= 0 && stream_waits(&c->stream, &c->out)) flush(c);
    if (visiting && c->session && c->fd >= 0) {
        visited++;
        leave(c);
    }
}

static void pump(int timeout_ms) {
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(epoll_fd, events, MAX_EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        struct client *c = events[i].data.ptr;
        if (c->fd >= 0) serve(c, events[i].events);
    }
}

/* A few at a time, for what is not measured. */
static void connect_gently(uint32_t *done) {
    uint64_t end = now_ns() + (uint64_t)SETUP_LIMIT_S * NS_PER_S;
    for (uint32_t next = 0; *done < client_count; pump(10)) {
        while (next < client_count && next < *done + VISITS_AT_ONCE) begin(&clients[next++]);
        if (now_ns() > end) die("only %u of %u were served: %s", *done, client_count, first_error);
    }
}

/* TLS 1.3 tells its session after the handshake; OpenSSL hands over the newest. */
static int keep_session(SSL *ssl, SSL_SESSION *session) {
    struct client *c = SSL_get_app_data(ssl);
    if (!visiting || c->session) return 0;
    c->session = session;
    return 1;
}

/* Whose time it is to come again, and who has waited long enough. */
static void look_at_all(void) {
    uint64_t now = now_ns();
    for (uint32_t i = 0; i < client_count; i++) {
        struct client *c = &clients[i];
        if (c->state == AWAY && now >= c->began_ns) {
            begin(c);
        } else if (c->state != AWAY && c->state != IN &&
                   (double)(now - c->began_ns) > patience * NS_PER_S) {
            note("no answer in state %u", c->state);
            unanswered++;
            retry(c);
        }
    }
}

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double share_s(const uint64_t *sorted, uint32_t n, double share, uint64_t from) {
    uint32_t at = (uint32_t)(share * client_count);
    return at < n ? (double)(sorted[at] - from) / 1e9 : -1; /* so many never came in */
}

static void run_crowd(void) {
    uint32_t dead_count = (uint32_t)dead;
    if (resume > 0) {
        visiting = true;
        connect_gently(&visited);
        visiting = false;
        memset(refused, 0, sizeof refused);
        resets = closed = unanswered = 0;
        first_error[0] = 0;
    }
    printf("{\"event\": \"ready\"}\n");
    fflush(stdout);
    if (getchar() == EOF) return;
    coming = true;
    struct snapshot from = snapshot_take((pid_t)broker_pid);
    struct client *dying = calloc(dead_count + 1, sizeof *dying);
    for (uint32_t i = 0; i < dead_count; i++) {
        dying[i].dead = true;
        begin(&dying[i]);
    }
    for (uint32_t i = 0; i < client_count; i++) clients[i].attempts = 0, begin(&clients[i]);
    uint64_t end = from.wall_ns + (uint64_t)(limit * NS_PER_S), look = 0;
    while ((inside < client_count || gone < dead_count) && now_ns() < end) {
        pump(10);
        if (now_ns() < look) continue;
        look = now_ns() + NS_PER_S / 20;
        look_at_all();
    }
    struct snapshot to = snapshot_take((pid_t)broker_pid);
    uint64_t *times = calloc(client_count, sizeof *times);
    uint32_t n = 0, attempts = client_count;
    for (uint32_t i = 0; i < client_count; i++) {
        if (clients[i].state == IN) times[n++] = clients[i].in_ns;
        attempts += clients[i].attempts;
    }
    qsort(times, n, sizeof *times, by_number);
    printf("{\"event\": \"result\", \"connected\": %u, \"attempts\": %u, \"resumed\": %u, "
           "\"reset\": %u, \"closed\": %u, \"unanswered\": %u, \"first_error\": \"%s\", "
           "\"half_s\": %.3f, \"most_s\": %.3f, \"refused\": {",
           n, attempts, resumed, resets, closed, unanswered, first_error,
           share_s(times, n, 0.5, from.wall_ns), share_s(times, n, 0.99, from.wall_ns));
    const char *comma = "";
    for (int code = 0; code < CODES; code++)
        if (refused[code]) {
            printf("%s\"%d\": %u", comma, code, refused[code]);
            comma = ", ";
        }
    printf("}");
    print_usage(&from, &to);
    printf("}\n");
}

static void publish(struct client *c, uint64_t due) {
    uint8_t packet[64];
    char topic[16];
    topic_of(c, topic, sizeof topic);
    uint32_t n = put_header(packet, PUBLISH << 4 | 2, 2 + TOPIC_BYTES + 2 + 1 + 8);
    put_u16(packet + n, TOPIC_BYTES);
    memcpy(packet + n + 2, topic, TOPIC_BYTES);
    n += 2 + TOPIC_BYTES;
    put_u16(packet + n, 1 + (uint16_t)(++c->attempts % 60000));
    packet[n + 2] = 0;
    memcpy(packet + n + 3, &due, 8);
    bytes_append(&c->out, packet, n + 11);
    flush(c);
}

static void run_residents(void) {
    struct sched_param first = {.sched_priority = 10};
    sched_setscheduler(0, SCHED_FIFO, &first); /* as root: the crowd's core is the residents', too */
    connect_gently(&inside);
    printf("{\"event\": \"ready\"}\n");
    fflush(stdout);
    double mean_ns = NS_PER_S / (rate * client_count);
    struct pollfd ready[2] = {{.fd = epoll_fd, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    for (uint64_t next = now_ns();;) {
        uint64_t now = now_ns(), left = next > now ? next - now : 0;
        struct timespec timeout = {(time_t)(left / NS_PER_S), (long)(left % NS_PER_S)};
        ppoll(ready, 2, &timeout, NULL);
        for (now = now_ns(); next <= now; next += (uint64_t)(-log(1 - drand48()) * mean_ns)) {
            struct client *c = &clients[(uint32_t)(drand48() * client_count)];
            if (c->state == IN) publish(c, next);
        }
        pump(0);
        if (!(ready[1].revents & (POLLIN | POLLHUP))) continue;
        char line[64];
        if (read(0, line, sizeof line) <= 0) return;
        printf("{\"event\": \"latency\", \"count\": %llu, \"inside\": %u, \"p50_ms\": %.3f, "
               "\"p99_ms\": %.3f, \"max_ms\": %.3f}\n",
               (unsigned long long)latency.count, inside, histogram_ms(&latency, 0.5),
               histogram_ms(&latency, 0.99), (double)latency.max / 1e6);
        fflush(stdout);
        memset(&latency, 0, sizeof latency);
    }
}

int main(int argc, char **argv) {
    if (argc < 2 || argc % 2) die("usage: tls_crowd crowd|residents --port P [--name value]...");
    residents = !strcmp(argv[1], "residents");
    for (int i = 2; i < argc; i += 2) {
        const struct option *o = options, *end = options + sizeof options / sizeof *options;
        while (o < end && (strncmp(argv[i], "--", 2) || strcmp(argv[i] + 2, o->name))) o++;
        if (o == end) die("unknown option %s", argv[i]);
        *o->value = strtod(argv[i + 1], NULL);
        if (*o->value < o->min || *o->value > o->max)
            die("%s: %s is not in %g..%g", argv[i], argv[i + 1], o->min, o->max);
    }
    if (!port) die("--port is missing");
    client_count = (uint32_t)count;
    if (raise_descriptor_limit() < client_count + (uint32_t)dead + 16)
        die("the descriptor limit is too low");
    clients = calloc(client_count, sizeof *clients);
    if (!clients) die("out of memory");
    for (uint32_t i = 0; i < client_count; i++) {
        clients[i].fd = -1;
        clients[i].index = i;
        clients[i].began_ns = UINT64_MAX;
    }
    if (tls > 0) {
        context = tls_context();
        SSL_CTX_sess_set_new_cb(context, keep_session);
    }
    epoll_fd = epoll_create1(0);
    prctl(PR_SET_TIMERSLACK, 1);
    alarm((unsigned)(limit + SETUP_LIMIT_S) + 600); /* whatever happens, it ends */
    if (residents) run_residents(); else run_crowd();
    return 0;
}
