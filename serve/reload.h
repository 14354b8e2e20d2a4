/* Reloading: another checkpoint is loaded beside the one that runs, by a thread of its own, and takes its
 * place between two calls of each device.
 *
 *   asked -> policy -> does it fit? -> weights, first calls -> does it fit? -> requests are prepared for it,
 *   those that wait once more -> each device runs it from its next call on -> the old one is closed
 *
 * Whatever goes wrong before the last two steps is one sentence, and the old one goes on. A reload that is
 * asked for while one is under way starts when that has ended; several become one.
 *
 * The same thread puts single weights in the place of those that run (openpi_engine_update_file): from a file
 * in the folder that the server was started with, on all devices or on none. The next reload reads the
 * checkpoint again, without them. */
#ifndef SERVE_RELOAD_H
#define SERVE_RELOAD_H

#include "serve/schedule/dispatch.h"
#include "loading.h"
#include "serve/log/log.h"
#include "prepare.h"

enum { RELOAD_TEXT = 700, UPDATE_NAME = 200 };

typedef struct reload reload;

typedef struct reload_options {
    const loading *loading;
    dispatch *dispatch;
    prepare *prepare;
    serve_device *const *devices;  /* dispatch_options.devices                                              */
    serve_model *model;          /* that runs; it is held                                                  */
    logger *log;
    metrics *metrics;            /* that count updates of weights                                          */
    void (*over)(void *user);    /* one is over, whatever became of it. On the reload's thread             */
    void *user;
} reload_options;

openpi_status reload_open(const reload_options *options, reload **out, openpi_error *error);
/* Ends what is under way, or lets it end: no new model after this. From any thread. */
void reload_cancel(reload *reload);
/* Cancels, and waits for the thread: after dispatch_end, before dispatch_close and prepare_close. */
void reload_close(reload *reload);
/* Instead of closing it, where the program ends at once and waits for nobody. */
void reload_abandon(reload *reload);

/* From any thread. */
void reload_ask(reload *reload);

/* What becomes of the wish for other weights. */
typedef enum update_wish {
    UPDATE_ASKED,
    UPDATE_BUSY,                 /* another one is under way                                               */
    UPDATE_OFF,                  /* the server was started without a folder for them                       */
    UPDATE_NO_NAME,              /* other than letters, digits, ".", "_", "-"; hidden; too long           */
} update_wish;
/* `name`: a file in serve_options.updates, or the folder of an adapter; NULL: the checkpoint's own weights
 * again. From any thread. */
update_wish update_ask(reload *reload, const char *name);
/* What became of the last one: "not updated since the start", "updating", "updated at 2026-01-31 23:59:59
 * UTC: 3 tensors of NAME in 12.3 ms", "refused: SENTENCE". */
void update_look(reload *reload, char text[RELOAD_TEXT]);
/* The last update that robots are served with. */
typedef struct update_served {
    char name[UPDATE_NAME];      /* "": none since the checkpoint was loaded, or restored                  */
    char when[32];               /* "2026-01-31 23:59:59 UTC"                                              */
    int tensors;                 /* that changed                                                           */
} update_served;
update_served update_look_served(reload *reload);

/* 0: one is under way. */
int reload_is_over(reload *reload);
/* What became of the last one: "not reloaded since the start", "reloading", "reloaded at 2026-01-31 23:59:59
 * UTC", "refused: SENTENCE". */
void reload_look(reload *reload, char text[RELOAD_TEXT]);

#endif
