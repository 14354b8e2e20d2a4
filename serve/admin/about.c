/* See about.h. */
#define _DEFAULT_SOURCE         /* gethostname */
#include "about.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Where the server listens on every address, a client needs one of them: the machine's name. */
static void write_address(about *a, const char *host, int plain, int port) {
    char own[256] = "";
    int everywhere = !strcmp(host, "0.0.0.0") || !strcmp(host, "::");
    if (everywhere && !gethostname(own, sizeof own - 1) && *own) host = own;
    int brackets = strchr(host, ':') != NULL;
    snprintf(a->address, sizeof a->address, "ws%s://%s%s%s:%d", plain ? "" : "s", brackets ? "[" : "", host,
             brackets ? "]" : "", port);
}

/* As `openpi devices` describes it. Where the list cannot be had, the page shows the name alone. */
static void write_cards(about *a, const loading *loading) {
    enum { DEVICES = 64 };
    openpi_device devices[DEVICES];
    int count = 0;
    for (int i = 0; i < DEVICES; i++) devices[i] = (openpi_device)OPENPI_DEVICE_INIT;
    if (openpi_devices(devices, DEVICES, &count, NULL) != OPENPI_OK) count = 0;
    for (int i = 0; i < loading->count; i++) {
        a->shown.cards[i] = a->cards[i];
        for (int k = 0; k < count && k < DEVICES; k++)
            if (!strcmp(devices[k].name, loading->names[i]))
                snprintf(a->cards[i], sizeof a->cards[i], "%s", devices[k].description);
    }
}

void about_fill(about *a, const loading *loading, serve_device *const *devices, int plain, int port) {
    const serve_options *o = loading->options;
    const openpi_engine_info *engine = device_engine_info(devices[0]);
    snprintf(a->kernels, sizeof a->kernels, "%s", engine->path);
    write_address(a, o->host ? o->host : "127.0.0.1", plain, port);
    write_cards(a, loading);
    a->shown.address = a->address;
    a->shown.kernels = a->kernels;
    a->shown.checkpoint = o->checkpoint ? o->checkpoint : "synthetic";
    a->shown.tokens = o->tokens != NULL;
}
