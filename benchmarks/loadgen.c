/* MQTT 3.1.1 load generator: one thread, epoll, prebuilt packets. Connects to 127.0.0.1 only.
 *
 *   loadgen SCENARIO --port P [--name value]...
 *
 *   pairs    count publishers, each with its own subscriber and topic
 *   fanout   1 publisher -> count subscribers
 *   fanin    count publishers -> 1 subscriber
 *   storm    count connects at once: time from connect() to CONNACK
 *   idle     count connections with one subscription each, held until stdin ends or SIGTERM
 *
 * Closed loop: a publisher has at most `w` publishes without PUBACK (QoS 1) and `e` messages that
 * did not reach all their subscribers, so a broker that keeps up never has a reason to drop one.
 * Open loop, with `rate` r: r messages per second over all pairs, at random times (Poisson), however
 * late the broker is; the latency of each counts from the time when it was due.
 * With `topics` t each message of a publisher is for another of t topics, in turn. With `beside` r
 * there is one more pair, durable, which has r messages per second.
 * `numbers FILE`: a line for each connection, first those of subscribers, with the number in its
 * client id; else this is its index.
 * Topics have numbers from `first-topic` on.
 * Subscribers connect to `subscriber-port` if there is one. The processor time of a second broker,
 * `other-broker-pid`, is added to that of the first.
 * With `tls 1` and `ws 1` there is TLS, WebSocket, or one on the other below MQTT (stream.h).
 * Per wake-up a socket is read once and written once. With `durable 1` nobody asks for a clean
 * session: what is not acknowledged must survive, both ways.
 *
 * Prints {"event": "start"} and {"event": "end"} around the measured window, or {"event": "ready"},
 * and ends with one {"event": "result", ...} line.
 * Exit status: 0 a result was printed, 2 wrong usage or no resources. */
#include "clients.h"

#include <signal.h>
#include <sys/prctl.h>

static const struct option {
    const char *name;
    double *value, min, max;
} options[] = {
    {"port", &port, 1, 65535},
    {"subscriber-port", &subscriber_port, 1, 65535},
    {"count", &count, 1, 30000},
    {"qos", &qos, 0, 1},
    {"w", &w, 1, 10000},
    {"e", &e, 1, 10000},
    {"payload", &payload, MIN_PAYLOAD, 65536},
    {"durable", &durable, 0, 1},
    {"topics", &topics, 1, 100},
    {"first-topic", &first_topic, 0, 30000},
    {"rate", &rate, 0, 1e6},
    {"beside", &beside, 0, 1000},
    {"tls", &tls, 0, 1},
    {"ws", &ws, 0, 1},
    {"warmup", &warmup, 0, 60},
    {"seconds", &seconds, 0.1, 600},
    {"setup-limit", &setup_limit, 1, 300},
    {"drain-limit", &drain_limit, 0, 60},
    {"hold-limit", &hold_limit, 1, 600},
    {"broker-pid", &broker_pid, 1, 1e9},
    {"other-broker-pid", &other_broker_pid, 1, 1e9},
};

static const char *numbers_path;

static struct snapshot brokers_now(void) {
    struct snapshot now = snapshot_take((pid_t)broker_pid);
    now.broker_cpu_ns += process_cpu_ns((pid_t)other_broker_pid);
    return now;
}

static void on_sigterm(int signal_number) {
    (void)signal_number;
    stopping = true;
}

/* Connects all, at most `concurrency` at a time. Returns false when some are not ready in time. */
static bool connect_all(uint32_t concurrency) {
    uint64_t end = after_s(setup_limit);
    for (uint32_t next = 0; (next < conn_count || pending) && !stopping && now_ns() < end;) {
        for (uint32_t i = 0; i < BURST && next < conn_count && pending < concurrency; i++) {
            struct conn *c = &conns[next++];
            if (c->fd < 0) open_socket(c);
            start_connect(c);
        }
        pump(next < conn_count && pending < concurrency ? 0 : 50);
    }
    return ready == conn_count;
}

/* Waits until all that was sent has arrived, or nothing moves for 2 s. */
static void drain(void) {
    uint32_t copies = scenario == FANOUT ? subscriber_count : 1;
    uint64_t end = after_s(drain_limit), seen = 0, quiet = after_s(2);
    publishing = false;
    while (now_ns() < end && now_ns() < quiet &&
           (delivered + missing < sent * copies || (qos && acknowledged < sent))) {
        pump(10);
        if (seen != delivered + acknowledged) quiet = after_s(2);
        seen = delivered + acknowledged;
    }
    missing = sent * copies - delivered;
}

static void print_head(void) {
    printf(
        "{\"event\": \"result\", \"scenario\": \"%s\", \"count\": %u, \"ready\": %u, \"errors\": "
        "%u, \"first_error\": \"%s\"",
        scenario_names[scenario], (uint32_t)count, ready, broken, first_error);
}

static void announce(const char *event) {
    printf("{\"event\": \"%s\", \"ready\": %u}\n", event, ready);
    fflush(stdout);
}

/* --- scenarios ------------------------------------------------------------------------------- */

static void run_messages(void) {
    struct snapshot from = {0}, to = {0};
    uint64_t accepted_from = 0, accepted = 0, delivered_from = 0, delivered_to = 0;
    if (!connect_all(SETUP_CONCURRENCY)) {
        if (!first_error[0])
            snprintf(first_error, sizeof first_error, "only %u of %u connections ready in time",
                     ready, conn_count);
        broken += !broken;
    } else {
        publishing = true;
        next_ns = now_ns();
        for (uint32_t i = 0; i < publisher_count; i++) mark_dirty(&publishers[i]);
        pump_for(warmup);
        announce("start");
        from = brokers_now();
        accepted_from = qos ? acknowledged : sent;
        delivered_from = delivered;
        measuring = true;
        pump_for(seconds);
        measuring = false;
        to = brokers_now();
        accepted = (qos ? acknowledged : sent) - accepted_from;
        delivered_to = delivered - delivered_from;
        announce("end");
        drain();
    }
    print_head();
    printf(
        ", \"qos\": %d, \"w\": %u, \"e\": %u, \"payload\": %u, \"accepted\": %llu, \"delivered\": "
        "%llu, \"sent_total\": %llu, "
        "\"delivered_total\": %llu, \"lost\": %llu, \"disordered\": %llu, "
        "\"latency_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"p999\": %.3f, \"max\": %.3f}",
        (int)qos, (uint32_t)w, (uint32_t)e, (uint32_t)payload, (unsigned long long)accepted,
        (unsigned long long)delivered_to, (unsigned long long)sent, (unsigned long long)delivered,
        (unsigned long long)missing, (unsigned long long)disordered, histogram_ms(&latency, 0.5),
        histogram_ms(&latency, 0.99), histogram_ms(&latency, 0.999), (double)latency.max / 1e6);
    print_usage(&from, &to);
    printf("}\n");
}

static void run_storm(void) {
    for (uint32_t i = 0; i < conn_count; i++) open_socket(&conns[i]);
    struct histogram *times = calloc(1, sizeof *times);
    if (!times) die("out of memory");
    announce("start");
    struct snapshot from = brokers_now();
    connect_all(conn_count);
    struct snapshot to = brokers_now();
    announce("end");
    uint32_t failed = broken - refused, connected = 0;
    uint64_t last = from.wall_ns, issued = from.wall_ns;
    for (uint32_t i = 0; i < conn_count; i++) {
        if (conns[i].started_ns > issued) issued = conns[i].started_ns;
        if (conns[i].state != READY) continue;
        connected++;
        histogram_add(times, conns[i].connack_ns - conns[i].started_ns);
        if (conns[i].connack_ns > last) last = conns[i].connack_ns;
    }
    uint32_t broken_then = broken;
    pump_for(0.3);
    uint32_t closed_later = connected - (ready < connected ? ready : connected);
    print_head();
    printf(
        ", \"connected\": %u, \"refused\": %u, \"failed\": %u, \"timed_out\": %u, "
        "\"closed_later\": %u, \"issue_s\": %.6f, "
        "\"storm_s\": %.6f, \"connack_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}",
        connected, refused, failed, conn_count - connected - broken_then, closed_later,
        (double)(issued - from.wall_ns) / 1e9, (double)(last - from.wall_ns) / 1e9,
        histogram_ms(times, 0.5), histogram_ms(times, 0.99), (double)times->max / 1e6);
    print_usage(&from, &to);
    printf("}\n");
}

static void run_idle(void) {
    connect_all(SETUP_CONCURRENCY);
    announce("ready");
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (uint64_t end = after_s(hold_limit); now_ns() < end && !stopping;) {
        char byte;
        if (poll(&input, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0) break;
        pump(100);
    }
    print_head();
    printf("}\n");
}

static void parse_options(int argc, char **argv) {
    if (argc < 2 || argc % 2) die("usage: loadgen SCENARIO --port P [--name value]...");
    while (scenario <= IDLE && strcmp(argv[1], scenario_names[scenario])) scenario++;
    if (scenario > IDLE) die("unknown scenario %s", argv[1]);
    for (int i = 2; i < argc; i += 2) {
        const struct option *o = options, *end = options + sizeof options / sizeof *options;
        if (!strcmp(argv[i], "--numbers")) {
            numbers_path = argv[i + 1];
            continue;
        }
        while (o < end && (strncmp(argv[i], "--", 2) || strcmp(argv[i] + 2, o->name))) o++;
        if (o == end) die("unknown option %s", argv[i]);
        char *rest;
        *o->value = strtod(argv[i + 1], &rest);
        if (*rest || *o->value < o->min || *o->value > o->max)
            die("%s: %s is not in %g..%g", argv[i], argv[i + 1], o->min, o->max);
    }
    if (!port) die("--port is missing");
    if (rate > 0 && (scenario != PAIRS || beside > 0)) die("--rate is of pairs alone");
    if (beside > 0 && scenario != PAIRS) die("--beside is of pairs");
}

static void make_connections(void) {
    publisher_count = scenario == FANOUT                       ? 1
                      : scenario == PAIRS || scenario == FANIN ? (uint32_t)count
                                                               : 0;
    subscriber_count = scenario == FANIN ? 1 : scenario == STORM ? 0 : (uint32_t)count;
    if (scenario == PAIRS && beside > 0) subscriber_count = ++publisher_count;
    conn_count = scenario == STORM ? (uint32_t)count : publisher_count + subscriber_count;
    conns = calloc(conn_count, sizeof *conns);
    dirty = calloc(conn_count, sizeof *dirty);
    if (scenario == FANOUT) passed = calloc((size_t)e, sizeof *passed);
    if (!conns || !dirty || (scenario == FANOUT && !passed)) die("out of memory");
    subscribers = conns;
    publishers = conns + subscriber_count;
    for (uint32_t i = 0; i < conn_count; i++) {
        bool subscriber = i < subscriber_count;
        conns[i].fd = -1;
        conns[i].role = scenario == STORM ? CONNECT_ONLY : subscriber ? SUBSCRIBER : PUBLISHER;
        conns[i].index = subscriber || scenario == STORM ? i : i - subscriber_count;
    }
}

static void read_numbers(void) {
    FILE *f = fopen(numbers_path, "r");
    numbers = calloc(conn_count, sizeof *numbers);
    if (!f || !numbers) die("%s: %s", numbers_path, strerror(errno));
    for (uint32_t i = 0; i < conn_count; i++)
        if (fscanf(f, "%u", &numbers[i]) != 1) die("%s: fewer lines than connections", numbers_path);
    fclose(f);
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    make_connections();
    if (numbers_path) read_numbers();
    if (raise_descriptor_limit() < conn_count + 16)
        die("the descriptor limit is too low for %u connections", conn_count);
    signal(SIGTERM, on_sigterm);
    alarm((unsigned)(setup_limit + warmup + seconds + drain_limit + hold_limit) +
          10); /* whatever happens, it ends */
    epoll_fd = epoll_create1(0);
    if (tls > 0) context = tls_context();
    prctl(PR_SET_TIMERSLACK, 1); /* ns: else each wait of the open loop is 50 us longer */
    build_publish();
    if (scenario == STORM)
        run_storm();
    else if (scenario == IDLE)
        run_idle();
    else
        run_messages();
    return 0;
}
