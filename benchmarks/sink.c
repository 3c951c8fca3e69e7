/* The trivial relay that shows the generator's own ceiling. Not a broker: it copies each PUBLISH
 * unchanged to the subscribers of its exact topic "b/NNNNNN", acknowledges it at once and forgets
 * it. Prints "listening on 127.0.0.1:PORT" and runs until SIGTERM. */
#include "wire.h"

enum { TOPIC_COUNT = 32768, TOPIC_BYTES = 8 };

struct conn {
    int fd;
    bool dirty;
    struct bytes in, out;
    uint32_t topic; /* of its last subscription; TOPIC_COUNT: none */
};

struct topic {
    struct conn **subscribers;
    uint32_t count, capacity;
};

static struct topic topics[TOPIC_COUNT];
static struct conn **dirty;
static uint32_t dirty_count, dirty_capacity;
static uint8_t chunk[READ_BYTES];
static int epoll_fd;

static void mark_dirty(struct conn *c) {
    if (c->dirty) return;
    if (dirty_count == dirty_capacity) {
        dirty_capacity = dirty_capacity ? 2 * dirty_capacity : 1024;
        dirty = realloc(dirty, dirty_capacity * sizeof *dirty);
        if (!dirty) die("out of memory");
    }
    c->dirty = true;
    dirty[dirty_count++] = c;
}

static void reply(struct conn *c, const void *data, uint32_t count) {
    bytes_append(&c->out, data, count);
    mark_dirty(c);
}

/* The number in "b/NNNNNN", or TOPIC_COUNT for any other topic. */
static uint32_t topic_number(const uint8_t *name, uint32_t length) {
    uint32_t number = 0;
    if (length != TOPIC_BYTES || name[0] != 'b' || name[1] != '/') return TOPIC_COUNT;
    for (uint32_t i = 2; i < TOPIC_BYTES; i++) number = 10 * number + (uint32_t)(name[i] - '0');
    return number < TOPIC_COUNT ? number : TOPIC_COUNT;
}

static void subscribe(struct conn *c, uint32_t number) {
    struct topic *t = &topics[number];
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 1;
        t->subscribers = realloc(t->subscribers, t->capacity * sizeof *t->subscribers);
        if (!t->subscribers) die("out of memory");
    }
    t->subscribers[t->count++] = c;
    c->topic = number;
}

static void unsubscribe(struct conn *c) {
    if (c->topic == TOPIC_COUNT) return;
    struct topic *t = &topics[c->topic];
    for (uint32_t i = 0; i < t->count; i++)
        if (t->subscribers[i] == c) t->subscribers[i--] = t->subscribers[--t->count];
}

static bool handle_packet(void *owner, const uint8_t *p, uint32_t header, uint32_t length) {
    struct conn *c = owner;
    const uint8_t *body = p + header;
    switch (p[0] >> 4) {
        case CONNECT: reply(c, "\x20\x02\x00\x00", 4); return true;
        case PINGREQ: reply(c, "\xd0\x00", 2); return true;
        case PUBACK: return true;
        case SUBSCRIBE: {
            if (length < header + 5 + TOPIC_BYTES) return false;
            uint32_t number = topic_number(body + 4, get_u16(body + 2));
            if (number == TOPIC_COUNT) return false;
            subscribe(c, number);
            uint8_t suback[5] = {SUBACK << 4, 3, body[0], body[1], body[4 + TOPIC_BYTES]};
            reply(c, suback, sizeof suback);
            return true;
        }
        case PUBLISH: {
            if (length < header + 2 + TOPIC_BYTES + 2) return false;
            uint32_t name = get_u16(body), number = topic_number(body + 2, name);
            if (number == TOPIC_COUNT) return false;
            struct topic *t = &topics[number];
            for (uint32_t i = 0; i < t->count; i++) reply(t->subscribers[i], p, length);
            if (p[0] & 0x06) {
                uint8_t puback[4] = {PUBACK << 4, 2, body[2 + name], body[3 + name]};
                reply(c, puback, sizeof puback);
            }
            return true;
        }
        default: return false;
    }
}

static void drop(struct conn *c) {
    unsubscribe(c);
    close(c->fd);
    bytes_free(&c->in);
    bytes_free(&c->out);
    if (c->dirty)
        c->fd = -1; /* freed when the dirty list is flushed */
    else
        free(c);
}

static void accept_all(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct conn *c = calloc(1, sizeof *c);
        if (!c) die("out of memory");
        c->fd = fd;
        c->topic = TOPIC_COUNT;
        set_nodelay(fd);
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

/* Returns false when the connection has ended. */
static bool serve(struct conn *c, uint32_t events) {
    ssize_t count = 0;
    if (events & (EPOLLIN | EPOLLRDHUP)) do {
            count = recv(c->fd, chunk, sizeof chunk, MSG_DONTWAIT);
            if (count == 0 || (count < 0 && errno != EAGAIN)) return false;
            if (count > 0 && !split_packets(&c->in, chunk, (uint32_t)count, c, handle_packet))
                return false;
        } while (count == sizeof chunk || ((events & EPOLLRDHUP) && count > 0));
    if (events & (EPOLLERR | EPOLLHUP)) return false;
    if ((events & EPOLLOUT) && c->out.end > c->out.start) mark_dirty(c);
    return true;
}

int main(void) {
    raise_descriptor_limit();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096))
        die("listen: %s", strerror(errno));
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);

    epoll_fd = epoll_create1(0);
    struct epoll_event add = {.events = EPOLLIN, .data.ptr = NULL}, events[MAX_EVENTS];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &add);
    for (;;) {
        int count = epoll_wait(epoll_fd, events, MAX_EVENTS, -1);
        for (int i = 0; i < count; i++) {
            struct conn *c = events[i].data.ptr;
            if (!c)
                accept_all(listener);
            else if (!serve(c, events[i].events))
                drop(c);
        }
        for (uint32_t i = 0; i < dirty_count; i++) {
            struct conn *c = dirty[i];
            c->dirty = false;
            if (c->fd < 0)
                free(c);
            else if (!bytes_send(&c->out, c->fd))
                shutdown(c->fd, SHUT_RDWR); /* its event drops it */
        }
        dirty_count = 0;
    }
}
