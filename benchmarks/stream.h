/* What a client has between its socket and MQTT: nothing, TLS, WebSocket, or WebSocket on TLS.
 *
 * TLS does not look at the broker's certificate: a crowd that computes more than it has to is late
 * itself. WebSocket masks with a key of zeros, which costs the broker what any other would. */
#ifndef BENCH_STREAM_H
#define BENCH_STREAM_H

#include "wire.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

enum { WS_BINARY = 0x82, WS_MASKED = 0x80, WS_HEADER_MAX = 14, WS_ANSWER_MAX = 1024 };

struct stream {
    SSL *ssl;            /* NULL: no TLS */
    bool ws, asked, open; /* `asked`: for the upgrade; `open`: bytes of MQTT may pass */
    struct bytes wire;   /* WebSocket: frames that the socket has not taken, or part of the answer */
    uint8_t head[WS_HEADER_MAX];
    uint32_t head_bytes;
    uint64_t left;       /* of the payload of the frame that is being read */
};

static inline SSL_CTX *tls_context(void) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context) die("no TLS context");
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    return context;
}

/* On a socket that is connected, or will be; `context` NULL: no TLS; `session` NULL: anew. */
static inline void stream_start(struct stream *s, int fd, SSL_CTX *context, SSL_SESSION *session,
                                bool ws) {
    *s = (struct stream){.ws = ws, .open = !context && !ws};
    if (!context) return;
    s->ssl = SSL_new(context);
    if (!s->ssl || !SSL_set_fd(s->ssl, fd)) die("out of memory for TLS");
    if (session) SSL_set_session(s->ssl, session);
    SSL_set_connect_state(s->ssl);
}

static inline void stream_free(struct stream *s) {
    if (s->ssl) {
        SSL_set_quiet_shutdown(s->ssl, 1); /* else OpenSSL forgets the session */
        SSL_shutdown(s->ssl);
        SSL_free(s->ssl);
    }
    bytes_free(&s->wire);
    *s = (struct stream){0};
}

/* The result of a call of OpenSSL as that of a system call. */
static inline ssize_t tls_result(SSL *ssl, int result) {
    if (result > 0) return result;
    switch (SSL_get_error(ssl, result)) {
        case SSL_ERROR_WANT_READ: case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
        case SSL_ERROR_ZERO_RETURN: return 0;
        case SSL_ERROR_SYSCALL: if (!errno) return 0; return -1;
        default:
            if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return 0;
            errno = EPROTO;
            return -1;
    }
}

static inline ssize_t below_recv(struct stream *s, int fd, uint8_t *to, size_t size) {
    if (!s->ssl) return recv(fd, to, size, MSG_DONTWAIT);
    size_t got = 0;
    while (got < size) { /* a record at a time */
        ERR_clear_error(), errno = 0;
        ssize_t n = tls_result(s->ssl, SSL_read(s->ssl, to + got, (int)(size - got)));
        if (n <= 0) return got ? (ssize_t)got : n;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

static inline ssize_t below_send(struct stream *s, int fd, const uint8_t *from, size_t size) {
    if (!s->ssl) return send(fd, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    ERR_clear_error(), errno = 0;
    return tls_result(s->ssl, SSL_write(s->ssl, from, (int)size));
}

/* Sends what it can of `b`; false: the connection is broken. */
static inline bool below_send_all(struct stream *s, int fd, struct bytes *b) {
    while (b->end > b->start) {
        ssize_t sent = below_send(s, fd, b->data + b->start, b->end - b->start);
        if (sent <= 0) return sent < 0 && (errno == EAGAIN || errno == EINTR);
        b->start += (uint32_t)sent;
        if (!s->ssl) break; /* a record at a time only where there are records */
    }
    return true;
}

/* A step of the handshakes, when the socket has something: 1 when bytes of MQTT may pass, 0 not
 * yet, -1: it has failed, with errno, 0 of which is the end of the stream. */
static inline int stream_shake(struct stream *s, int fd) {
    static const char request[] =
        "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n";
    if (s->open) return 1;
    if (s->ssl && !SSL_is_init_finished(s->ssl)) {
        ERR_clear_error(), errno = 0;
        ssize_t n = tls_result(s->ssl, SSL_do_handshake(s->ssl));
        if (n == 0) errno = 0;
        if (n <= 0) return n < 0 && errno == EAGAIN ? 0 : -1;
    }
    if (s->ws && !s->asked) {
        s->asked = true;
        if (below_send(s, fd, (const uint8_t *)request, sizeof request - 1) !=
            (ssize_t)sizeof request - 1)
            return -1;
    }
    if (s->ws) {
        uint8_t *room = bytes_room(&s->wire, WS_ANSWER_MAX);
        ssize_t n = below_recv(s, fd, room, WS_ANSWER_MAX);
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        s->wire.end += (uint32_t)n;
        uint32_t count = s->wire.end - s->wire.start;
        const uint8_t *answer = s->wire.data + s->wire.start;
        /* A server says nothing after its answer before it has heard MQTT. */
        if (n > 0 && (count < 4 || memcmp(answer + count - 4, "\r\n\r\n", 4))) return 0;
        errno = 0;
        if (count < 12 || memcmp(answer, "HTTP/1.1 101", 12)) return -1;
        s->wire.start = s->wire.end;
    }
    s->open = true;
    return 1;
}

/* Takes the frames' headers out of what has come, in place; returns what is left. */
static inline ssize_t ws_strip(struct stream *s, uint8_t *data, size_t count) {
    size_t to = 0, from = 0;
    while (from < count) {
        if (!s->left) {
            s->head[s->head_bytes++] = data[from++];
            uint32_t length = s->head_bytes > 1 ? s->head[1] & 0x7f : 0;
            uint32_t wanted = 2 + (length == 126 ? 2 : length == 127 ? 8 : 0);
            if (s->head_bytes < 2 || s->head_bytes < wanted) continue;
            s->left = length < 126 ? length : 0;
            for (uint32_t i = 2; i < wanted; i++) s->left = s->left << 8 | s->head[i];
            s->head_bytes = 0;
            continue;
        }
        size_t part = count - from < s->left ? count - from : (size_t)s->left;
        if (!(s->head[0] & 0x08)) { /* of a control frame nothing is wanted */
            memmove(data + to, data + from, part);
            to += part;
        }
        from += part;
        s->left -= part;
    }
    return (ssize_t)to;
}

/* As recv(2): what has come for MQTT, which may be less than what has come. */
static inline ssize_t stream_recv(struct stream *s, int fd, uint8_t *to, size_t size) {
    ssize_t n;
    do {
        n = below_recv(s, fd, to, size);
        if (n <= 0 || !s->ws) return n;
        n = ws_strip(s, to, (size_t)n);
    } while (!n);
    return n;
}

static inline bool stream_waits(const struct stream *s, const struct bytes *b) {
    return b->end > b->start || s->wire.end > s->wire.start;
}

/* One send of all that waits. Returns false when the connection is broken; a full socket is no
 * error. */
static inline bool stream_send(struct stream *s, int fd, struct bytes *b) {
    if (!s->ws) return s->ssl ? below_send_all(s, fd, b) : bytes_send(b, fd);
    if (s->wire.end == s->wire.start && b->end > b->start) {
        uint32_t count = b->end - b->start, n = 0;
        uint8_t *head = bytes_room(&s->wire, WS_HEADER_MAX);
        head[n++] = WS_BINARY;
        if (count < 126)
            head[n++] = (uint8_t)(WS_MASKED | count);
        else if (count < 65536) {
            head[n++] = WS_MASKED | 126;
            put_u16(head + n, (uint16_t)count);
            n += 2;
        } else {
            head[n++] = WS_MASKED | 127;
            for (int shift = 56; shift >= 0; shift -= 8) head[n++] = (uint8_t)((uint64_t)count >> shift);
        }
        memset(head + n, 0, 4);
        s->wire.end += n + 4;
        bytes_append(&s->wire, b->data + b->start, count);
        b->start = b->end;
    }
    return below_send_all(s, fd, &s->wire);
}

#endif
