/* See drops.h. */
#include "drops.h"

static const struct { const char *label, *sentence; } reasons[DROP_REASONS] = {
    [DROP_DESCRIPTORS] = {"descriptors", "no descriptor is left"},
    [DROP_MEMORY] = {"memory", "no memory is left for it (--max-in-flight, or the machine's)"},
    [DROP_TLS] = {"tls", "no complete TLS handshake, or no complete request head after it"},
    [DROP_HEAD] = {"head", "no complete request head"},
    [DROP_CROWD] = {"crowd", "it makes room: too many connections wait that are no WebSocket"},
    [DROP_SUBPROTOCOL] = {"subprotocol", "it asks for a subprotocol, and there is none"},
    [DROP_HANDSHAKE] = {"handshake", "its head is no handshake of WebSocket"},
    [DROP_TEXT] = {"text", "a text message; expected msgpack in a binary one"},
    [DROP_SIZE] = {"size", "its message is larger than --max-message"},
    [DROP_FRAMES] = {"frames", "it breaks the rules of frames"},
    [DROP_EMPTY] = {"empty", "it sends frames without a byte in them again and again"},
    [DROP_PINGS] = {"pings", "it sends too many pings"},
    [DROP_MESSAGE] = {"message", "its message takes too long"},
    [DROP_REPLY] = {"reply", "it does not read its replies"},
    [DROP_PING] = {"ping", "it does not answer a ping"},
};

const char *drop_label(drop_reason why) { return reasons[why].label; }
const char *drop_sentence(drop_reason why) { return reasons[why].sentence; }
