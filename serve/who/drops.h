/* Why the server ends a connection by itself: a label of the metrics and a sentence of the log for each.
 * Neither has anything in it that a client can choose. Those who get an answer instead of a WebSocket are
 * gate.h's. */
#ifndef SERVE_DROPS_H
#define SERVE_DROPS_H

typedef enum drop_reason {
    DROP_DESCRIPTORS,            /* there is none for it                                                   */
    DROP_MEMORY,                 /* --max-in-flight, or the machine's                                      */
    DROP_TLS,                    /* it ends before the request's head, on a port that speaks TLS           */
    DROP_HEAD,                   /* the same without TLS                                                   */
    DROP_CROWD,                  /* it makes room: too many wait as it does                                */
    DROP_SUBPROTOCOL,
    DROP_HANDSHAKE,              /* a head that leads to no WebSocket                                      */
    DROP_TEXT,
    DROP_SIZE,                   /* --max-message                                                          */
    DROP_FRAMES,
    DROP_EMPTY,                  /* frames without a byte                                                  */
    DROP_PINGS,
    DROP_MESSAGE,                /* --message-timeout                                                      */
    DROP_REPLY,                  /* --reply-timeout                                                        */
    DROP_PING,                   /* --ping-interval                                                        */
    DROP_REASONS
} drop_reason;

/* A word. */
const char *drop_label(drop_reason why);
/* What follows on "dropped: ". */
const char *drop_sentence(drop_reason why);

#endif
