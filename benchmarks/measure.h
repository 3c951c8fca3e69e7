/* What is measured beside the messages: latency histogram, CPU clocks of both processes, the rest
 * of the machine. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "wire.h"

/* Latencies in ns, in buckets 1/32 apart on a log scale: a percentile is at most 3 % too high. */
struct histogram {
    uint64_t buckets[64 * 32], count, max;
};

static inline void histogram_add(struct histogram *h, uint64_t ns) {
    uint32_t exponent = ns < 32 ? 0 : 63 - (uint32_t)__builtin_clzll(ns) - 4;
    h->buckets[exponent * 32 + ((ns >> exponent) & 31)]++;
    h->count++;
    if (ns > h->max) h->max = ns;
}

/* Upper edge, in ms, of the bucket that holds the given share of the values. */
static inline double histogram_ms(const struct histogram *h, double share) {
    uint64_t rank = (uint64_t)(share * (double)h->count), seen = 0;
    for (uint32_t i = 0; i < 64 * 32; i++) {
        seen += h->buckets[i];
        if (seen > rank) {
            uint32_t exponent = i / 32;
            uint64_t edge = ((i % 32) + 1ULL) << exponent;
            return (double)(edge < h->max ? edge : h->max) / 1e6;
        }
    }
    return (double)h->max / 1e6;
}

/* Busy time of all cores in seconds since boot (user, nice, system, irq, softirq, steal), in 10 ms
 * ticks. */
static inline double machine_busy_s(void) {
    double user = 0, nice = 0, system = 0, idle, wait, irq = 0, softirq = 0, steal = 0;
    FILE *f = fopen("/proc/stat", "r");
    if (!f) return 0;
    int fields = fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle,
                        &wait, &irq, &softirq, &steal);
    fclose(f);
    return fields == 8
               ? (user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK)
               : 0;
}

struct snapshot {
    uint64_t wall_ns, own_cpu_ns, broker_cpu_ns;
    double machine_s;
};

/* CPU time of a process (user and system, all threads, also ended ones) and of the processes that
 * its first thread has started, to the nanosecond; 0: unknown. */
static inline uint64_t process_cpu_ns(pid_t pid) {
    clockid_t clock;
    if (pid <= 0 || clock_getcpuclockid(pid, &clock)) return 0;
    uint64_t sum = clock_ns(clock);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE *f = fopen(path, "r");
    pid_t child;
    while (f && fscanf(f, "%d", &child) == 1)
        if (!clock_getcpuclockid(child, &clock)) sum += clock_ns(clock);
    if (f) fclose(f);
    return sum;
}

static inline struct snapshot snapshot_take(pid_t broker) {
    return (struct snapshot){now_ns(), clock_ns(CLOCK_PROCESS_CPUTIME_ID), process_cpu_ns(broker),
                             machine_busy_s()};
}

/* The common tail of each JSON result: window and CPU figures in seconds. */
static inline void print_usage(const struct snapshot *from, const struct snapshot *to) {
    double window = (double)(to->wall_ns - from->wall_ns) / 1e9,
           own = (double)(to->own_cpu_ns - from->own_cpu_ns) / 1e9;
    bool known = from->broker_cpu_ns && to->broker_cpu_ns;
    double broker = known ? (double)(to->broker_cpu_ns - from->broker_cpu_ns) / 1e9 : 0;
    double other = to->machine_s - from->machine_s - own - broker;
    printf(
        ", \"window_s\": %.6f, \"generator_cpu_s\": %.6f, \"other_cpu_s\": %.2f, "
        "\"broker_cpu_s\": ",
        window, own, other > 0 ? other : 0);
    if (known)
        printf("%.6f", broker);
    else
        printf("null");
}

#endif
