/* What a server sends to client/: as metadata, as a reply and as a sentence. */
#include "client/client.h"
#include "fuzz.h"

static void must_say(int good, const char *why) {
    if (!good) PROMISE(why[0] && memchr(why, 0, CLIENT_SENTENCE) && !strchr(why, '\n'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MOST = 64 };
    uint8_t *bytes = exact_copy(data, size, 0);
    char why[CLIENT_SENTENCE] = "";
    client_metadata about;
    double actions[MOST];
    must_say(client_metadata_read(bytes, size, &about, why), why);
    for (int i = 0; i < about.note_count; i++) PROMISE(strlen(about.notes[i]) <= size);
    PROMISE(about.reset_pose_count >= 0 && about.reset_pose_count <= CLIENT_POSE);
    client_metadata_free(&about);
    for (int text = 0; text < 2; text++) {
        client_reply reply;
        int good = client_reply_read(bytes, size, text, &reply, actions, MOST, why);
        must_say(good, why);
        if (good) PROMISE(!text && reply.steps * reply.dims <= MOST && reply.rtc_delay >= 0);
    }
    free(bytes);
    return 0;
}
