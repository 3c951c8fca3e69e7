/* What the load generator and the sink share: clocks, buffers, MQTT lengths, sockets. */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CONNECT = 1,
    CONNACK,
    PUBLISH,
    PUBACK,
    SUBSCRIBE = 8,
    SUBACK,
    PINGREQ = 12,
    DISCONNECT = 14
};
enum { READ_BYTES = 256 * 1024, MAX_EVENTS = 64, NS_PER_S = 1000000000 };

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(2);
}

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t)) return 0;
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Raises the soft descriptor limit to the hard one and returns it. */
static inline uint64_t raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) die("getrlimit: %s", strerror(errno));
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit: %s", strerror(errno));
    return limit.rlim_cur;
}

static inline void set_nodelay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Bytes waiting for one socket, or the unfinished packet read from one. */
struct bytes {
    uint8_t *data;
    uint32_t start, end, capacity;
};

/* Room for `count` more bytes at the end; the caller advances `end`. */
static inline uint8_t *bytes_room(struct bytes *b, uint32_t count) {
    if (b->start == b->end) b->start = b->end = 0;
    if (b->end + count > b->capacity && b->start) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
    }
    if (b->end + count > b->capacity) {
        uint32_t capacity = b->capacity ? b->capacity : 64;
        while (capacity < b->end + count) capacity *= 2;
        b->data = realloc(b->data, capacity);
        if (!b->data) die("out of memory");
        b->capacity = capacity;
    }
    return b->data + b->end;
}

static inline void bytes_append(struct bytes *b, const void *data, uint32_t count) {
    memcpy(bytes_room(b, count), data, count);
    b->end += count;
}

static inline void bytes_free(struct bytes *b) {
    free(b->data);
    *b = (struct bytes){0};
}

/* One send of all that waits. Returns false when the connection is broken; a full socket is no
 * error. */
static inline bool bytes_send(struct bytes *b, int fd) {
    ssize_t sent = send(fd, b->data + b->start, b->end - b->start, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    b->start += (uint32_t)sent;
    return true;
}

/* Length of the whole packet at `p` and of its fixed header; 0: more bytes needed, -1: malformed.
 */
static inline int64_t packet_length(const uint8_t *p, size_t available, uint32_t *header) {
    uint32_t remaining = 0;
    for (uint32_t i = 0; i < 4; i++) {
        if (available < i + 2) return 0;
        remaining |= (uint32_t)(p[i + 1] & 0x7f) << (7 * i);
        if (!(p[i + 1] & 0x80)) {
            *header = i + 2;
            return (int64_t)remaining + *header;
        }
    }
    return -1;
}

/* Writes the fixed header and returns its length. */
static inline uint32_t put_header(uint8_t *p, uint8_t first, uint32_t remaining) {
    uint32_t n = 0;
    p[n++] = first;
    do {
        p[n++] = (uint8_t)((remaining & 0x7f) | (remaining > 0x7f ? 0x80 : 0));
        remaining >>= 7;
    } while (remaining);
    return n;
}

static inline void put_u16(uint8_t *p, uint16_t value) {
    p[0] = (uint8_t)(value >> 8);
    p[1] = (uint8_t)value;
}

static inline uint16_t get_u16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

/* Calls `handle` for each whole packet of (part + chunk) and keeps the rest in `part`.
 * Stops early, returning false, when `handle` does or a length is malformed. */
typedef bool (*packet_handler)(void *owner, const uint8_t *packet, uint32_t header,
                               uint32_t length);

static inline bool split_packets(struct bytes *part, const uint8_t *chunk, uint32_t count,
                                 void *owner, packet_handler handle) {
    bool joined = part->end > part->start;
    if (joined) {
        bytes_append(part, chunk, count);
        chunk = part->data + part->start;
        count = part->end - part->start;
    }
    uint32_t done = 0;
    while (done < count) {
        uint32_t header;
        int64_t length = packet_length(chunk + done, count - done, &header);
        if (length < 0) return false;
        if (length == 0 || length > (int64_t)(count - done)) break;
        if (!handle(owner, chunk + done, header, (uint32_t)length)) return false;
        done += (uint32_t)length;
    }
    if (joined)
        part->start += done;
    else if (done < count)
        bytes_append(part, chunk + done, count - done);
    return true;
}

#endif
