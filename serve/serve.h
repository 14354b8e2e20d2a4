/* openpi's policy server: what `openpi serve` runs, and all that the command sees of this folder. */
#ifndef SERVE_SERVE_H
#define SERVE_SERVE_H

#include "openpi.h"

#define SERVE_ADMIN "127.0.0.1:8642"

enum {
    SERVE_PORT = 8000,
    SERVE_DRAIN_SECONDS = 10,
    SERVE_PREPARE_FEWEST = 2,    /* threads, of half the processors                                        */
    SERVE_PREPARE_MOST = 8,
    SERVE_MESSAGE_BYTES = 16000000,
    SERVE_IN_FLIGHT_BYTES = 1000000000,
    SERVE_CONNECTIONS = 1024,
    SERVE_PER_ADDRESS = 32,
    SERVE_ATTEMPTS = 4,
    SERVE_HANDSHAKE_SECONDS = 5,
    SERVE_MESSAGE_SECONDS = 10,
    SERVE_REPLY_SECONDS = 10,
    SERVE_PING_SECONDS = 20,
};

#define SERVE_SHADOW_BOUND 0.02
#define SERVE_RECORD_BYTES UINT64_C(10000000000)

/* 0 or NULL stands for what is said at each field. */
typedef struct serve_options {
    const char *checkpoint;      /* NULL: engine.synthetic                                                 */
    openpi_engine_options engine;
    openpi_policy_options policy;
    int horizon, steps;          /* the config's or the checkpoint's                                       */
    const char *default_prompt;  /* for requests that have none; the robot's                               */
    uint64_t seed;               /* for the noise of requests without their own                            */
    const char *host;            /* 127.0.0.1                                                              */
    int port;                    /* 0: one that is free                                                    */
    const char *allow_origin;    /* web pages that may connect, with commas, or "*"; the server's own      */
    int trust_network;           /* 1: other machines may connect without tokens and TLS                   */
    const char *admin;           /* HOST:PORT of the admin port; NULL: there is none                       */
    int drain_seconds;           /* SERVE_DRAIN_SECONDS                                                    */
    int prepare_threads;         /* besides the one for reserved robots                                    */
    int kept_prefixes;           /* connections whose prefix is kept; 0: none is                           */
    int samples;                 /* chunks of one observation that a call computes; 1                      */
    double max_block;            /* how long a shared batch may last, in calls of one sample; 1            */
    uint64_t max_message_bytes;  /* SERVE_MESSAGE_BYTES                                                    */
    uint64_t max_in_flight;      /* bytes of all requests that are being received, waiting or computed     */
    int max_connections;         /* SERVE_CONNECTIONS                                                      */
    int max_per_address;         /* SERVE_PER_ADDRESS                                                      */
    int max_attempts;            /* connections a second of one address; SERVE_ATTEMPTS × max_per_address  */
    int handshake_seconds;       /* SERVE_HANDSHAKE_SECONDS; these four are net.h's net_limits             */
    int message_seconds;         /* SERVE_MESSAGE_SECONDS                                                  */
    int reply_seconds;           /* SERVE_REPLY_SECONDS                                                    */
    int ping_seconds;            /* SERVE_PING_SECONDS                                                     */
    const char *tokens;          /* a file of tokens (tokens.h); everybody may connect                     */
    const char *tls_certificate, *tls_key; /* files of tls.h; both or none: no TLS                         */
    const char *updates;         /* a folder of files that POST /weights may name; NULL: none may be named */
    const char *record;          /* a folder for recordings (recording/call.h); NULL: nothing is recorded   */
    uint64_t record_most;        /* bytes of all of them; SERVE_RECORD_BYTES                               */
    int shadow;                  /* every Nth request is computed again (shadow/); 0: none                 */
    const char *shadow_weights;  /* formats by group of what computes them; "bf16"                         */
    const char *shadow_device;   /* the first of engine.device                                             */
    double shadow_bound;         /* rms in σ above which a difference is logged; no default                */
    int log_json;                /* 1: log lines are JSON                                                  */
    int log_prefix;              /* 1: they begin with "<6>" and the like, as systemd's journal reads      */
    int log_requests;            /* 1: each request has a line, not only one that fails                    */
    const char *notify_socket;   /* systemd's, for reports (systemd.h)                                     */
    int64_t watchdog_us;         /* how long systemd waits for a sign of life; for ever                    */
    int inherited, first_inherited;        /* listening sockets, from which descriptor on; host and port    */
} serve_options;

/* Serves until SIGTERM or SIGINT, which also end it while it loads the model. SIGHUP: the certificate, its
 * key and the tokens are read again, and the checkpoint is loaded again (reload.h). Prints one line an event
 * on stderr. *busy, where it returns OPENPI_OK: 1 means that the time for draining was over while a call ran;
 * its threads still work, so end the process at once. */
openpi_status serve(const serve_options *options, int *busy, openpi_error *error);

/* A new key, and its line for a file of tokens. */
typedef struct serve_token {
    char key[65], line[256];
} serve_token;

/* `class`: shared, reserved or admin; `rate`: of a reserved one, in calls a second, else 0. */
openpi_status serve_new_token(const char *name, const char *class, int rate, serve_token *out,
                              openpi_error *error);

#endif
