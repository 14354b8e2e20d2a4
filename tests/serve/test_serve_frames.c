/* labels: server */
/* What `openpi serve` does with frames: the cases of Autobahn's test suite 1-7, 9 and 10 by their numbers, as
 * a table of bytes in and frames out. The suite's server echoes messages; this one answers a binary message,
 * which is no msgpack here, with a sentence (opcode 1), and a text message with the close code 1003.
 *
 * Rows with `lax`: RFC 6455 wants what the row says, but the network library does not do it in every version
 * (docs/serve-protocol.md lists them). All frames up to the end are then those that the RFC wants, or those
 * that the library sends.
 *
 *   test_serve_frames --show       prints what came in each case, for that page */
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "frame_script.h"
#include "robot_message.h"

typedef struct frame_case {
    const char *name, *send, *want;        /* frame_script.h                                               */
    int chop;                    /* bytes sent at a time; 0: all at once                                   */
    int piece;                   /* bytes of a fragment that the one message is cut into; 0: as it stands  */
    int times;                   /* sent so many times, and so often wanted; 0: once                       */
    const char *lax;             /* what may come instead, the answer to a close included; NULL: nothing   */
    int first_pong;              /* of several pings at once it may be the first that is answered          */
} frame_case;

#define CASE(NAME, SEND, ...) {.name = NAME, .send = SEND, .want = __VA_ARGS__}

static const frame_case cases[] = {
    /* 1: messages */
    CASE("1.1.1", "81*0", "88=03eb"),
    CASE("1.1.2", "81*125", "88=03eb"),
    CASE("1.1.3", "81*126", "88=03eb"),
    CASE("1.1.4", "81*127", "88=03eb"),
    CASE("1.1.5", "81*128", "88=03eb"),
    CASE("1.1.6", "81*65535", "88=03eb"),
    CASE("1.1.7", "81*65536", "88=03eb"),
    CASE("1.1.8", "81*65536", "88=03eb", .chop = 997),
    CASE("1.2.1", "82*0", "81"),
    CASE("1.2.2", "82*125", "81"),
    CASE("1.2.3", "82*126", "81"),
    CASE("1.2.4", "82*127", "81"),
    CASE("1.2.5", "82*128", "81"),
    CASE("1.2.6", "82*65535", "81"),
    CASE("1.2.7", "82*65536", "81"),
    CASE("1.2.8", "82*65536", "81", .chop = 997),
    /* 2: pings and pongs */
    CASE("2.1", "89", "8a"),
    CASE("2.2", "89:Hello,world!", "8a:Hello,world!"),
    CASE("2.3", "89=00fffefdfcfb00ff", "8a=00fffefdfcfb00ff"),
    CASE("2.4", "89*125", "8a*125"),
    CASE("2.5", "89*126", "88=03ea", .lax = ""),
    CASE("2.6", "89*125", "8a*125", .chop = 1),
    CASE("2.7", "8a", ""),
    CASE("2.8", "8a:unsolicited", ""),
    CASE("2.9", "8a:unsolicited 89:ping", "8a:ping"),
    CASE("2.10",
     "89:payload-0 89:payload-1 89:payload-2 89:payload-3 89:payload-4 89:payload-5 89:payload-6 "
     "89:payload-7 89:payload-8 89:payload-9",
     "8a:payload-0", .first_pong = 1),
    CASE("2.11",
     "89:payload-0 89:payload-1 89:payload-2 89:payload-3 89:payload-4 89:payload-5 89:payload-6 "
     "89:payload-7 89:payload-8 89:payload-9",
     "8a:payload-0", .chop = 1, .first_pong = 1),
    /* 3: reserved bits */
    CASE("3.1", "91:Hello", "88=03ea"),
    CASE("3.2", "82:Hello a2:Hello 89", "~81 88=03ea"),
    CASE("3.3", "82:Hello b2:Hello 89", "~81 88=03ea"),
    CASE("3.4", "82:Hello c2:Hello 89", "~81 88=03ea", .chop = 1),
    CASE("3.5", "d2*8", "88=03ea"),
    CASE("3.6", "e9:Hello", "88=03ea"),
    CASE("3.7", "f8", "88=03ea"),
    /* 4: reserved opcodes */
    CASE("4.1.1", "83", "88=03ea"),
    CASE("4.1.2", "84:reserved", "88=03ea"),
    CASE("4.1.3", "82:Hello 85 89", "~81 88=03ea"),
    CASE("4.1.4", "82:Hello 86:x 89", "~81 88=03ea", .chop = 1),
    CASE("4.1.5", "82:Hello 87:x 89", "~81 88=03ea", .chop = 1),
    CASE("4.2.1", "8b", "88=03ea"),
    CASE("4.2.2", "8c:reserved", "88=03ea"),
    CASE("4.2.3", "82:Hello 8d 89", "~81 88=03ea"),
    CASE("4.2.4", "82:Hello 8e:x 89", "~81 88=03ea", .chop = 1),
    CASE("4.2.5", "82:Hello 8f:x 89", "~81 88=03ea", .chop = 1),
    /* 5: fragments */
    CASE("5.1", "09:frag 80:ment", "88=03ea"),
    CASE("5.2", "0a:frag 80:ment", "88=03ea"),
    CASE("5.3", "02:frag 80:ment", "81"),
    CASE("5.4", "02:frag 80:ment", "81", .chop = 6),
    CASE("5.5", "02:frag 80:ment", "81", .chop = 1),
    CASE("5.6", "02:frag 89:ping 80:ment", "8a:ping 81"),
    CASE("5.7", "02:frag 89:ping 80:ment", "8a:ping 81", .chop = 7),
    CASE("5.8", "02:frag 89:ping 80:ment", "8a:ping 81", .chop = 1),
    CASE("5.9", "80:non-start 82:Hello", "88=03ea"),
    CASE("5.10", "80:non-start 82:Hello", "88=03ea", .chop = 9),
    CASE("5.11", "80:non-start 82:Hello", "88=03ea", .chop = 1),
    CASE("5.12", "00:non-start 82:Hello", "88=03ea"),
    CASE("5.13", "00:non-start 82:Hello", "88=03ea", .chop = 9),
    CASE("5.14", "00:non-start 82:Hello", "88=03ea", .chop = 1),
    CASE("5.15", "02:frag 80:ment 00:non-start 82:Hello", "~81 88=03ea"),
    CASE("5.16", "00:x 02:frag 80:ment", "88=03ea"),
    CASE("5.17", "80:x 02:frag 80:ment", "88=03ea"),
    CASE("5.18", "02:frag 82:ment", "88=03ea"),
    CASE("5.19", "02:a 00:b 89:one 00:c 00:d 89:two 80:e", "8a:one ~8a:two 81", .chop = 9,
         .first_pong = 1),
    CASE("5.20", "02:a 00:b 89:one 00:c 00:d 89:two 80:e", "8a:one ~8a:two 81", .first_pong = 1),
    /* 6: UTF-8: all text is refused */
    CASE("6.1.1", "81", "88=03eb"),
    CASE("6.1.2", "01 00 80", "88=03eb"),
    CASE("6.1.3", "01 00:middle 80", "88=03eb"),
    CASE("6.2.1", "81=cebae1bdb9cf83cebcceb5", "88=03eb"),
    CASE("6.2.2", "01=cebae1 80=bdb9cf83cebcceb5", "88=03eb"),
    CASE("6.2.3", "81=cebae1bdb9cf83cebcceb5", "88=03eb", .chop = 1),
    CASE("6.2.4", "01=ce 00=ba 00=e1 80=bd", "88=03eb"),
    CASE("6.3.1", "81=cebae1bdb9cf83cebcceb5eda080656469746564", "88=03eb"),
    CASE("6.3.2", "81=cebae1bdb9cf83cebcceb5eda080656469746564", "88=03eb", .chop = 1),
    CASE("6.4.1", "01=cebae1bdb9cf83cebcceb5 00=f4908080 80=656469746564", "88=03eb"),
    CASE("6.4.2", "01=cebae1bdb9cf83cebcceb5f4 00=90 80=8080", "88=03eb"),
    CASE("6.4.3", "81=cebae1bdb9cf83cebcceb5f4908080656469746564", "88=03eb", .chop = 11),
    CASE("6.4.4", "81=cebae1bdb9cf83cebcceb5f4908080656469746564", "88=03eb", .chop = 13),
    CASE("6.5.1", "81=cebae1bdb9cf83cebcceb5", "88=03eb"),
    CASE("6.6.1", "81=ce", "88=03eb"),
    CASE("6.6.2", "81=ceba", "88=03eb"),
    CASE("6.6.3", "81=cebae1", "88=03eb"),
    CASE("6.6.4", "81=cebae1bd", "88=03eb"),
    CASE("6.6.5", "81=cebae1bdb9", "88=03eb"),
    CASE("6.6.6", "81=cebae1bdb9cf", "88=03eb"),
    CASE("6.7.1", "81=00", "88=03eb"),
    CASE("6.7.2", "81=c280", "88=03eb"),
    CASE("6.7.3", "81=e0a080", "88=03eb"),
    CASE("6.7.4", "81=f0908080", "88=03eb"),
    CASE("6.8.1", "81=f888808080", "88=03eb"),
    CASE("6.8.2", "81=fc8480808080", "88=03eb"),
    CASE("6.9.1", "81=7f", "88=03eb"),
    CASE("6.9.2", "81=dfbf", "88=03eb"),
    CASE("6.9.3", "81=efbfbf", "88=03eb"),
    CASE("6.9.4", "81=f48fbfbf", "88=03eb"),
    CASE("6.10.1", "81=f7bfbfbf", "88=03eb"),
    CASE("6.10.2", "81=fbbfbfbfbf", "88=03eb"),
    CASE("6.10.3", "81=fdbfbfbfbfbf", "88=03eb"),
    CASE("6.11.1", "81=ed9fbf", "88=03eb"),
    CASE("6.11.2", "81=ee8080", "88=03eb"),
    CASE("6.11.3", "81=efbfbd", "88=03eb"),
    CASE("6.11.4", "81=f48fbfbf", "88=03eb"),
    CASE("6.11.5", "81=f4908080", "88=03eb"),
    CASE("6.12.1", "81=80", "88=03eb"),
    CASE("6.12.2", "81=bf", "88=03eb"),
    CASE("6.12.3", "81=80bf", "88=03eb"),
    CASE("6.12.4", "81=80bf80", "88=03eb"),
    CASE("6.13.1", "81=c020c120", "88=03eb"),
    CASE("6.13.2", "81=e020e120", "88=03eb"),
    CASE("6.13.3", "81=f020f120", "88=03eb"),
    CASE("6.14.1", "81=c0", "88=03eb"),
    CASE("6.14.2", "81=e080", "88=03eb"),
    CASE("6.14.3", "81=f08080", "88=03eb"),
    CASE("6.14.4", "81=f8808080", "88=03eb"),
    CASE("6.15.1", "81=c0e080f08080f8808080", "88=03eb"),
    CASE("6.16.1", "81=fe", "88=03eb"),
    CASE("6.16.2", "81=ff", "88=03eb"),
    CASE("6.16.3", "81=fefeffff", "88=03eb"),
    CASE("6.17.1", "81=c0af", "88=03eb"),
    CASE("6.17.2", "81=e080af", "88=03eb"),
    CASE("6.17.3", "81=f08080af", "88=03eb"),
    CASE("6.17.4", "81=f8808080af", "88=03eb"),
    CASE("6.17.5", "81=fc80808080af", "88=03eb"),
    CASE("6.18.1", "81=c1bf", "88=03eb"),
    CASE("6.18.2", "81=e09fbf", "88=03eb"),
    CASE("6.18.3", "81=f08fbfbf", "88=03eb"),
    CASE("6.19.1", "81=c080", "88=03eb"),
    CASE("6.19.2", "81=e08080", "88=03eb"),
    CASE("6.19.3", "81=f0808080", "88=03eb"),
    CASE("6.20.1", "81=eda080", "88=03eb"),
    CASE("6.20.2", "81=edadbf", "88=03eb"),
    CASE("6.20.3", "81=edae80", "88=03eb"),
    CASE("6.20.4", "81=edafbf", "88=03eb"),
    CASE("6.20.5", "81=edb080", "88=03eb"),
    CASE("6.20.6", "81=edbe80", "88=03eb"),
    CASE("6.20.7", "81=edbfbf", "88=03eb"),
    CASE("6.21.1", "81=eda080edb080", "88=03eb"),
    CASE("6.21.2", "81=edadbfedbfbf", "88=03eb"),
    CASE("6.22.1", "81=efbfbe", "88=03eb"),
    CASE("6.22.2", "81=efbfbf", "88=03eb"),
    CASE("6.22.3", "81=f09fbfbe", "88=03eb"),
    CASE("6.23.1", "81=efbfb0", "88=03eb"),
    CASE("6.23.2", "81=efbfbd", "88=03eb"),
    /* 7: closing */
    CASE("7.1.1", "82:Hello 88=03e8", "~81 88=03e8"),
    CASE("7.1.2", "88=03e8 88=03e8", "88=03e8"),
    CASE("7.1.3", "88=03e8 89", "88=03e8"),
    CASE("7.1.4", "88=03e8 82:Hello", "88=03e8"),
    CASE("7.1.5", "02:frag 88=03e8 80:ment", "88=03e8"),
    CASE("7.1.6", "82*262144 88=03e8 89", "~81 88=03e8"),
    CASE("7.3.1", "88", "88"),
    CASE("7.3.2", "88=03", "88=03ea", .lax = "88=03"),
    CASE("7.3.3", "88=03e8", "88=03e8"),
    CASE("7.3.4", "88=03e848656c6c6f", "88=03e8"),
    CASE("7.3.5",
     "88=03e82a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2"
     "a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2"
     "a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a",
     "88=03e8"),
    CASE("7.3.6",
     "88=03e82a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2"
     "a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2"
     "a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a",
     "88=03ea", .lax = ""),
    CASE("7.5.1", "88=03e8cebae1bdb9cf83cebcceb5eda080656469746564", "88=03ef", .lax = "88=03e8"),
    CASE("7.7.1", "88=03e8", "88=03e8"),
    CASE("7.7.2", "88=03e9", "88=03e9"),
    CASE("7.7.3", "88=03ea", "88=03ea"),
    CASE("7.7.4", "88=03eb", "88=03eb"),
    CASE("7.7.5", "88=03ef", "88=03ef"),
    CASE("7.7.6", "88=03f0", "88=03f0"),
    CASE("7.7.7", "88=03f1", "88=03f1"),
    CASE("7.7.8", "88=03f2", "88=03f2"),
    CASE("7.7.9", "88=03f3", "88=03f3"),
    CASE("7.7.10", "88=0bb8", "88=0bb8"),
    CASE("7.7.11", "88=0f9f", "88=0f9f"),
    CASE("7.7.12", "88=0fa0", "88=0fa0"),
    CASE("7.7.13", "88=1387", "88=1387"),
    CASE("7.9.1", "88=0000", "88=03ea"),
    CASE("7.9.2", "88=03e7", "88=03ea"),
    CASE("7.9.3", "88=03ec", "88=03ea"),
    CASE("7.9.4", "88=03ed", "88=03ea"),
    CASE("7.9.5", "88=03ee", "88=03ea"),
    CASE("7.9.6", "88=03f8", "88=03ea"),
    CASE("7.9.7", "88=044c", "88=03ea"),
    CASE("7.9.8", "88=07d0", "88=03ea"),
    CASE("7.9.9", "88=0bb7", "88=03ea"),
    CASE("7.13.1", "88=1388", "88=03ea", .lax = "88=1388"),
    CASE("7.13.2", "88=ffff", "88=03ea", .lax = "88=ffff"),
    /* 9: limits: --max-message is 1,000,000 */
    CASE("9.1.1", "81*65536", "88=03eb"),
    CASE("9.1.2", "81*262144", "88=03eb"),
    CASE("9.1.3", "81*1048576", "88=03eb"),
    CASE("9.1.4", "81*4194304", "88=03eb"),
    CASE("9.2.1", "82*65536", "81"),
    CASE("9.2.2", "82*262144", "81"),
    CASE("9.2.3", "82*1048576", "88=03f1"),
    CASE("9.2.4", "82*4194304", "88=03f1"),
    CASE("9.4.1", "82*262144", "81", .piece = 64),
    CASE("9.4.2", "82*262144", "81", .piece = 256),
    CASE("9.4.3", "82*262144", "81", .piece = 1024),
    CASE("9.4.4", "82*262144", "81", .piece = 4096),
    CASE("9.4.5", "82*262144", "81", .piece = 16384),
    CASE("9.4.6", "82*262144", "81", .piece = 65536),
    CASE("9.6.1", "82*65536", "81", .chop = 64),
    CASE("9.6.2", "82*65536", "81", .chop = 128),
    CASE("9.6.3", "82*65536", "81", .chop = 256),
    CASE("9.6.4", "82*65536", "81", .chop = 512),
    CASE("9.6.5", "82*65536", "81", .chop = 1024),
    CASE("9.6.6", "82*65536", "81", .chop = 2048),
    CASE("9.8.1", "82", "81", .times = 60),
    CASE("9.8.2", "82*16", "81", .times = 60),
    CASE("9.8.3", "82*64", "81", .times = 60),
    CASE("9.8.4", "82*256", "81", .times = 60),
    CASE("9.8.5", "82*1024", "81", .times = 60),
    CASE("9.8.6", "82*4096", "81", .times = 60),
    /* 10: fragments by the client's library */
    CASE("10.1.1", "82*65536", "81", .piece = 1300),
    /* not of Autobahn: heads of frames */
    CASE("a length with its top bit set", "?82", "88=03ea", .lax = ""),
    CASE("a length in 16 bits though 7 would do", ">82:Hello", "88=03ea", .lax = "81 88=03e8"),
    CASE("a length in 64 bits though 7 would do", ">>82:Hello", "88=03ea", .lax = "81 88=03e8"),
    CASE("a frame that is not masked", "!82:Hello", "88=03ea", .lax = "81 88=03e8"),
    CASE("a ping that is not masked", "!89:Hello", "88=03ea", .lax = "8a:Hello 88=03e8"),
    /* not of Autobahn: close codes that were registered after RFC 6455, and 1015, which no frame may have */
    CASE("the close code 1012", "88=03f4", "88=03f4", .lax = "88=03ea"),
    CASE("the close code 1013", "88=03f5", "88=03f5", .lax = "88=03ea"),
    CASE("the close code 1014", "88=03f6", "88=03f6", .lax = "88=03ea"),
    CASE("the close code 1015", "88=03f7", "88=03ea"),
    /* not of Autobahn: limits */
    CASE("length beyond the limit", "82*1000001", "88=03f1"),
    CASE("fragments beyond the limit", "02*600000 80*600000", "88=03f1"),
};

enum { CASES = sizeof cases / sizeof *cases };

static served server;
static int show;

/* ---- sending ---------------------------------------------------------------------------------------- */

static void put_chopped(int fd, const uint8_t *bytes, size_t count, int chop) {
    size_t step = chop ? (size_t)chop : count;
    for (size_t at = 0; at < count; at += step) ws_put(fd, bytes + at, count - at < step ? count - at : step);
}

static void send_pieces(int fd, const frame_case *c) {
    script_frame f;
    script_next(c->send, &f);
    for (size_t at = 0; at < f.bytes; at += (size_t)c->piece) {
        size_t left = f.bytes - at, now = left < (size_t)c->piece ? left : (size_t)c->piece;
        ws_send(fd, at ? 0 : f.first & 0xf, now == left, f.payload + at, now);
    }
    free(f.payload);
}

static void send_case(int fd, const frame_case *c) {
    size_t count;
    uint8_t *bytes = script_bytes(c->send, &count);
    if (c->piece) send_pieces(fd, c);
    else put_chopped(fd, bytes, count, c->chop);
    free(bytes);
}

static void send_script(int fd, const char *script) {
    size_t count;
    uint8_t *bytes = script_bytes(script, &count);
    ws_put(fd, bytes, count);
    free(bytes);
}

/* ---- receiving -------------------------------------------------------------------------------------- */

/* A sentence may say anything; of a close frame only the code counts, or half of one. */
static int is_frame(const ws_frame *got, const script_frame *want) {
    int opcode = want->first & 0xf;
    if (got->opcode != opcode) return 0;
    if (opcode == WS_TEXT) return got->bytes > 0;
    if (opcode != WS_CLOSE || want->bytes < 2)
        return got->bytes == want->bytes && !memcmp(got->data, want->payload, got->bytes);
    return got->bytes >= 2 && !memcmp(got->data, want->payload, 2);
}

/* Returns 1 where the last frame was a close. */
static int expect_script(int fd, const frame_case *c, const char *script) {
    script_frame want;
    ws_frame got = {.opcode = 0};          /* 0: none is left over                                         */
    int closed = 0;
    while ((script = script_next(script, &want))) {
        if (!got.opcode) got = ws_receive(fd);
        int same = is_frame(&got, &want);
        if (!same && !want.optional)
            fail_msg("case %s: got opcode %d with %zu bytes, expected opcode %d with %zu", c->name,
                     got.opcode, got.bytes, want.first & 0xf, want.bytes);
        closed = same && got.opcode == WS_CLOSE;
        free(want.payload);
        if (!same) continue;
        free(got.data);
        got.opcode = 0;
    }
    return closed;
}

/* The answer to a close; late pongs may come before it. */
static void expect_close(int fd, const frame_case *c) {
    ws_frame frame = ws_receive(fd);
    for (; frame.opcode == WS_PONG; frame = ws_receive(fd)) free(frame.data);
    if (frame.opcode != WS_CLOSE || frame.bytes != 2 || frame.data[0] << 8 != 0x300 || frame.data[1] != 0xe8)
        fail_msg("case %s: got opcode %d with %zu bytes, expected the close 1000", c->name, frame.opcode,
                 frame.bytes);
    free(frame.data);
}

static int are_frames(const ws_frame *got, int count, const char *script) {
    script_frame want;
    int same = 1, i = 0;
    for (; (script = script_next(script, &want)); i++) {
        same = same && i < count && is_frame(&got[i], &want);
        free(want.payload);
    }
    return same && i == count;
}

/* After some violations the library waits for seconds, unless the client closes its side. */
static void say_goodbye(int fd) {
    send_script(fd, "88=03e8");
    shutdown(fd, SHUT_WR);
}

/* All frames up to the end are as RFC 6455 wants, or as the library sends them. The first one is waited for,
 * where there must be one: a message that is followed by a close at once may get no answer. */
static void expect_either(int fd, const frame_case *c) {
    enum { MOST = 4 };
    ws_frame got[MOST] = {{.opcode = WS_END}};
    int count = 0;
    if (*c->lax) count += (got[0] = ws_receive(fd)).opcode != WS_END;
    say_goodbye(fd);
    while (count < MOST && (got[count] = ws_receive(fd)).opcode != WS_END) count++;
    if (!are_frames(got, count, c->want) && !are_frames(got, count, c->lax))
        fail_msg("case %s: got %d frames, the first of opcode %d with %zu bytes, expected \"%s\" or \"%s\"",
                 c->name, count, got[0].opcode, got[0].bytes, c->want, c->lax);
    for (int i = 0; i < count; i++) free(got[i].data);
}

static void expect_end(int fd, const frame_case *c) {
    ws_frame frame = ws_receive(fd);
    if (frame.opcode != WS_END)
        fail_msg("case %s: a frame of opcode %d came after the close", c->name, frame.opcode);
    free(frame.data);
}

/* All frames are as RFC 6455 wants. */
static void expect_strictly(int fd, const frame_case *c, int times) {
    int closed = 0;
    for (int i = 0; i < times; i++) closed = expect_script(fd, c, c->want);
    send_script(fd, "88=03e8");
    if (!closed) expect_close(fd, c);
    shutdown(fd, SHUT_WR);
    expect_end(fd, c);
}

static void print_frames(int fd, const frame_case *c) {
    ws_frame frame;
    say_goodbye(fd);
    print_message("%-40s %-12.30s", c->name, c->want);
    do {
        frame = ws_receive(fd);
        print_message(" %x", (unsigned)frame.opcode);
        for (size_t i = 0; frame.opcode > 2 && i < frame.bytes && i < 4; i++)
            print_message(".%02x", frame.data[i]);
        free(frame.data);
    } while (frame.opcode != WS_END);
    print_message("\n");
}

static void run_case(const frame_case *c) {
    int one = 1, fd = greet(server.port), times = c->times ? c->times : 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int i = 0; i < times; i++) send_case(fd, c);
    if (show) print_frames(fd, c);
    else if (c->lax) expect_either(fd, c);
    else expect_strictly(fd, c, times);
    close(fd);
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static msgpack_sbuffer request;

static void must_serve(int fd) {
    ws_send(fd, WS_BINARY, 1, request.data, request.size);
    free(ws_expect(fd, WS_BINARY).data);
}

/* A robot beside all of them is served before and after. */
static void frames(void **state) {
    (void)state;
    int robot = greet(server.port);
    must_serve(robot);
    for (int i = 0; i < CASES; i++) run_case(&cases[i]);
    must_serve(robot);
    close(robot);
}

typedef struct shake {
    const char *name, *lines;
    const char *want;            /* the statuses that RFC 6455 allows                                      */
    const char *lax;             /* what the library answers instead, "": it closes; NULL: nothing else    */
} shake;

static const shake shakes[] = {
    {"a handshake without Connection",
     "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "400 426", ""},
    {"a handshake without a key",
     "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n", "400 426", ""},
    {"a handshake whose key has one character",
     "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
     "Sec-WebSocket-Key: x\r\n", "400", "101"},
    {"a handshake of version 12",
     "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 12\r\n"
     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "426", "101"},
    {"a handshake for another protocol", "Upgrade: h2c\r\nConnection: Upgrade\r\n", "400 426", ""},
    {"a handshake for a subprotocol", WS_UPGRADE "Sec-WebSocket-Protocol: chat\r\n", "101", ""},
    {"an extension", WS_UPGRADE "Sec-WebSocket-Extensions: permessage-deflate\r\n", "101", NULL},
    {"no upgrade", "", "426", NULL},
};

enum { SHAKES = sizeof shakes / sizeof *shakes };

/* `head` is empty where the connection was closed without an answer. */
static int is_answer(const shake *s, const char *head) {
    char status[4];
    if (!*head) return s->lax && !*s->lax;
    if (sscanf(head, "HTTP/1.1 %3[0-9] ", status) != 1) return 0;
    return strstr(s->want, status) || (s->lax && strstr(s->lax, status));
}

/* What is no handshake of RFC 6455, and what is one all the same: never a WebSocket that does not work. */
static void handshakes(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAKES; i++) {
        char head[1024];
        int fd = ws_request(server.port, "/", shakes[i].lines, head, sizeof head);
        if (show) print_message("handshake %-30s %.30s\n", shakes[i].name, head);
        if (!show && !is_answer(&shakes[i], head))
            fail_msg("%s: got \"%.30s\", expected %s", shakes[i].name, head, shakes[i].want);
        if (strstr(head, " 101 ")) {
            assert_null(strstr(head, "permessage-deflate"));
            assert_null(strstr(head, "chat"));
            free(ws_expect(fd, WS_BINARY).data);
            must_serve(fd);
        }
        close(fd);
    }
}

/* The first column of the page's table, each name between commas: ",2.5,2.10,2.11,". */
static char *page_names(void) {
    char *page = slurp(TESTS_DIR "/../docs/serve-protocol.md", NULL), *names = calloc(1, strlen(page) + 2);
    char *row = strstr(page, "\n| case |"), *end = row ? strstr(row, "\n\n") : NULL, *out_at = names;
    if (!end) fail_msg("docs/serve-protocol.md has no table of cases");
    *end = 0;
    *out_at++ = ',';
    row = strchr(strchr(row + 1, '\n') + 1, '\n');    /* past the head and its line                        */
    for (; row; row = strchr(row + 1, '\n')) {
        size_t count = strcspn(row + 3, ":|");
        for (char *c = row + 3; c < row + 3 + count; c++) {
            if (*c == ' ' && (out_at[-1] == ',' || c[1] == '|')) continue;
            *out_at++ = *c;
        }
        *out_at++ = ',';
    }
    free(page);
    return names;
}

static int count_names(const char *names) {
    int count = -1;
    for (; *names; names++) count += *names == ',';
    return count;
}

static int must_list(const char *names, const char *name) {
    char between[100];
    snprintf(between, sizeof between, ",%s,", name);
    if (!strstr(names, between)) fail_msg("docs/serve-protocol.md does not list the case \"%s\"", name);
    return 1;
}

/* The page lists each case in which the library may be lax, and no other. */
static void page(void **state) {
    (void)state;
    char *names = page_names();
    int listed = 0;
    for (int i = 0; i < CASES; i++)
        if (cases[i].lax || cases[i].first_pong) listed += must_list(names, cases[i].name);
    for (size_t i = 0; i < SHAKES; i++)
        if (shakes[i].lax) listed += must_list(names, shakes[i].name);
    if (listed != count_names(names))
        fail_msg("docs/serve-protocol.md lists %d cases, expected %d: %s", count_names(names), listed, names);
    free(names);
}

static int set_up(void **state) {
    load_request("libero_pi0", &request);
    if (open_box(state)) return -1;
    served_start(&server, &box, "--synthetic tiny --robot libero --threads 2 --horizon 2 --steps 1 "
                                "--max-message 1000000 --ping-interval 3600");
    return 0;
}

static int tear_down(void **state) {
    served_stop(&server);
    msgpack_sbuffer_destroy(&request);
    return close_box(state);
}

int main(int count, char **words) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(page), cmocka_unit_test(frames),
                                       cmocka_unit_test(handshakes)};
    show = count > 1 && !strcmp(words[1], "--show");
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
