/* A client of policy servers that speak openpi's protocol: openpi's own server and `openpi serve`.
 *
 *   client_address.c   ws://HOST:PORT
 *   client_socket.c    WebSocket connections, many of them on one loop; client_socket_absent.c stands in
 *                      where libwebsockets or libuv is not installed: its client_open says so
 *   client_frame.h     the frames of their messages
 *   client_request.c   an observation as the bytes of a request
 *   client_reply.c     the server's metadata, its replies and its error sentences
 *   client_bytes.h     msgpack, as far as both need it
 *   client_source.h    a server as the source of a runner's chunks
 *
 * A connection goes like this: client_connect, the event `opened`, the server's metadata
 * (client_metadata_read), then again and again a request (client_request_write, client_send) and its reply
 * (client_reply_read).
 * Replies come in the order of the requests.
 *
 * Errors: a function that fails writes one sentence into `why`, without a newline, and returns 0 or NULL.
 * Threads: nothing here is global. A loop with its connections belongs to one thread, the one in client_run,
 * which also calls all events; a message belongs to one thread at a time. */
#ifndef CLIENT_H
#define CLIENT_H

#include <stddef.h>
#include <stdint.h>

enum {
    CLIENT_HOST = 256,
    CLIENT_PATH = 512,
    CLIENT_SENTENCE = 500,       /* bytes of a sentence with its NUL                                        */
};

/* ---- addresses ------------------------------------------------------------------------------------ */

/* ws://HOST[:PORT][/PATH] or wss://… */
typedef struct client_address {
    char host[CLIENT_HOST], path[CLIENT_PATH];
    int port, tls;
} client_address;

/* 0: the text is no such address. */
int client_address_read(const char *text, client_address *out);
/* The number of the first of the host's addresses that takes a connection, or the host as it stands where
 * none does: "localhost" may be ::1 and 127.0.0.1, and a server listens on one of them. 0: no such host is
 * known. */
int client_address_reach(const client_address *address, char number[CLIENT_HOST]);

/* ---- connections ---------------------------------------------------------------------------------- */

typedef struct client_loop client_loop;
typedef struct client_socket client_socket;

/* `user`: the connection's, as client_connect got it. */
typedef struct client_events {
    /* The handshake is done. The socket is valid until `closed`. */
    void (*opened)(void *user, client_socket *socket);
    /* A whole message, which is the loop's and gone after the call. `text`: 1 for an error sentence. */
    void (*received)(void *user, const uint8_t *bytes, size_t count, int text);
    /* The kernel has all of the message that was sent. */
    void (*sent)(void *user);
    /* It failed, or was closed, at last by client_close; no event follows. `why`: a few words. */
    void (*closed)(void *user, const char *why);
    /* After client_after. */
    void (*timed)(void *loop_user);
} client_events;

/* `events` and what `loop_user` points to must outlive the loop; the address is copied. NULL: `why`. */
client_loop *client_open(const client_events *events, const client_address *address, void *loop_user,
                         char why[CLIENT_SENTENCE]);
/* Closes its connections too; not from an event. NULL is fine. */
void client_close(client_loop *loop);

/* Until client_stop, which an event calls. */
void client_run(client_loop *loop);
void client_stop(client_loop *loop);
/* One `timed` event after this time, instead of the one that was ordered before. */
void client_after(client_loop *loop, double milliseconds);

/* Begins to connect; `opened` or `closed` follows, perhaps before this returns. `key`: sent as
 * "Authorization: Api-Key KEY", copied; NULL: nothing is. 0, and no event follows: no memory. */
int client_connect(client_loop *loop, const char *key, void *user);
/* `data` is not changed, and must stay as it is until `sent` or `closed`. One message at a time. */
void client_send(client_socket *socket, const uint8_t *data, size_t bytes);

/* ---- a request ------------------------------------------------------------------------------------ */

typedef enum client_kind { CLIENT_U8, CLIENT_F32, CLIENT_F64, CLIENT_TEXT } client_kind;

/* A picture, a state or a text of the observation, by the name that the server's robot gives it. */
typedef struct client_field {
    const char *map;             /* the map of the observation that it stands in, "images" of ALOHA's, whose
                                    fields follow each other in the list; NULL: the observation itself      */
    const char *key;             /* "cam_high"                                                              */
    client_kind kind;
    const void *data;            /* little-endian, C order; CLIENT_TEXT: UTF-8 up to its NUL                */
    int rank, shape[3];          /* 1 to 3 sizes of at least 1; CLIENT_TEXT: none                           */
} client_field;

/* [height][width][3], RGB; openpi resizes it. */
static inline client_field client_picture(const char *key, const uint8_t *pixels, int height, int width) {
    return (client_field){NULL, key, CLIENT_U8, pixels, 3, {height, width, 3}};
}
/* [3][height][width], as ALOHA sends it, in the map "images". */
static inline client_field client_planes(const char *key, const uint8_t *pixels, int height, int width) {
    return (client_field){"images", key, CLIENT_U8, pixels, 3, {3, height, width}};
}
/* [count], in the robot's own units: radians, metres. */
static inline client_field client_state(const char *key, const double *values, int count) {
    return (client_field){NULL, key, CLIENT_F64, values, 1, {count}};
}
static inline client_field client_text(const char *key, const char *text) {
    return (client_field){NULL, key, CLIENT_TEXT, text, 0, {0}};
}

/* Real-time chunking: the new chunk follows on from that of the reply before ("openpi/rtc", which `openpi
 * serve` knows and openpi's own server ignores; docs/serve.md). */
typedef struct client_rtc {
    int executed;                /* the step of the last chunk that is next when the observation is taken   */
    int delay;                   /* further steps that will be executed when the reply is there             */
    const char *mode;            /* "guided", "trained"; NULL: the checkpoint's                             */
    int horizon;                 /* guided: where the pull ends, in steps after the executed ones; 0: as the
                                    checkpoint says                                                         */
    const char *schedule;        /* guided: "zeros", "ones", "linear", "exp"; NULL: the checkpoint's     */
    double max_weight;           /* guided: its largest; 0: the checkpoint's                                */
} client_rtc;

/* What a runner tells of its robot, for the server's page ("openpi/runner", which a server of an earlier
 * release refuses and openpi's own ignores). */
typedef struct client_runner {
    int executed;                /* rows of the last chunk that were executed when the observation was taken;
                                    negative: not told                                                      */
    double held_ms;              /* how long the robot was held since the last request                      */
    const char *reason;          /* why: "no_actions"; NULL: it was not held                                */
} client_runner;

typedef struct client_request {
    const client_field *fields;  /* [field_count], in the order in which they are sent                      */
    int field_count;
    const client_rtc *rtc;       /* NULL: an ordinary chunk                                                 */
    const client_runner *runner; /* NULL: nothing is told                                                   */
    const float *noise;          /* [noise_rows][noise_dims] to start from; NULL: the server draws it       */
    int noise_rows, noise_dims;
    double deadline_ms;          /* after which the robot has no use for the reply; 0: none                 */
} client_request;

/* The bytes of a message, which client_send takes. Begins as {0}; a message that is written again keeps its
 * memory. */
typedef struct client_message {
    uint8_t *bytes;
    size_t count, capacity;
} client_message;

/* As openpi-client packs it, msgpack with numpy arrays. Everything is copied. 0: `why`, and the message is
 * empty. Whether the request fits the server's robot is for the server to say. */
int client_request_write(const client_request *request, client_message *out, char why[CLIENT_SENTENCE]);
void client_message_free(client_message *message);

/* ---- what the server says ------------------------------------------------------------------------- */

enum { CLIENT_POSE = 32 };

/* A connection's first message. What openpi's own server leaves out is 0. */
typedef struct client_metadata {
    double reset_pose[CLIENT_POSE];        /* where the robot begins                                        */
    int reset_pose_count;
    char version[32];            /* openpi serve's; "": another server                                      */
    int horizon, action_dim;     /* steps and numbers of each reply                                         */
    uint64_t max_message_bytes;  /* the longest request                                                     */
    int rtc;                     /* 1: it takes "openpi/rtc"                                                */
    int runner;                  /* 1: it takes "openpi/runner"                                             */
    int rtc_max_delay;           /* the longest of the mode trained; 0: only guided                         */
    char **notes;                /* [note_count] what loading the checkpoint told that changes actions      */
    int note_count;
} client_metadata;

/* To be freed in any case. 0: `why`. */
int client_metadata_read(const uint8_t *bytes, size_t count, client_metadata *out, char why[CLIENT_SENTENCE]);
void client_metadata_free(client_metadata *metadata);

typedef struct client_reply {
    int steps, dims;             /* the chunk's size: horizon, numbers an action                            */
    int chunks;                  /* how many there are, one after the other; 0: one, as of a plain request  */
    double model_ms;             /* the model alone; negative: the server does not say, so below            */
    double server_ms;            /* from the request's last byte to the packed reply                        */
    double prev_total_ms;        /* the request before, until its reply was sent                            */
    int rtc_applied, rtc_delay;  /* 1: it follows on from the chunk before, computed for this delay         */
    double rtc_max_weight;       /* what the weight was cut to; 0: it was not                               */
    int prompt_truncated;        /* 1: the prompt was too long, and the model did not see its end           */
    int limited;                 /* numbers of the chunk that the robot's limits changed                    */
    int held;                    /* steps of it that repeat the action before, because of a limit           */
} client_reply;

/* Reads the message that answers a request. `text`: as the event said. actions[capacity] become the chunk's
 * numbers [steps][dims], of all chunks; NULL: they are only looked at. 0: `why` has the server's sentence,
 * from a traceback the last line, or what is wrong with the reply. */
int client_reply_read(const uint8_t *bytes, size_t count, int text, client_reply *out, double *actions,
                      size_t capacity, char why[CLIENT_SENTENCE]);

#endif
