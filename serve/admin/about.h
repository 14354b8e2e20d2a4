/* What the admin page says of a server once it is ready: model, cards, address. */
#ifndef SERVE_ABOUT_H
#define SERVE_ABOUT_H

#include "serve/schedule/device.h"
#include "serve/loading.h"
#include "state.h"

enum { ABOUT_ADDRESS = 320, ABOUT_CARD = 128 };

typedef struct about {
    state_about shown;           /* its pointers are to what follows, and to constants                     */
    char address[ABOUT_ADDRESS], kernels[32];
    char cards[SCHEDULER_DEVICES][ABOUT_CARD];
} about;

/* `plain`: robots connect without TLS, to this port. */
void about_fill(about *about, const loading *loading, serve_device *const *devices, int plain, int port);

#endif
