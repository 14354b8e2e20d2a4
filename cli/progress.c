/* Progress on stderr: a bar on a terminal, a line every ten seconds elsewhere, nothing for what takes less
 * than a second. */
#include "progress.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 1000, REDRAW_MS = 100, LINE_MS = 10000, BAR = 30 };

double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

void progress_start(progress *p) {
    *p = (progress){.start_ms = now_ms(), .tty = isatty(STDERR_FILENO)};
}

void progress_end(progress *p) {
    if (p->drawn && p->tty) fputs("\r\033[K", stderr);
    p->drawn = 0;
}

const char *progress_text(int bytes, uint64_t done, uint64_t total, char text[PROGRESS_TEXT]) {
    double part = total ? (double)done / (double)total : 0, unit = total < 1000000000 ? 1e6 : 1e9;
    int at = snprintf(text, PROGRESS_TEXT, "%.0f %%", 100 * part);
    if (bytes)
        snprintf(text + at, PROGRESS_TEXT - (size_t)at, ", %.1f of %.1f %s", (double)done / unit,
                 (double)total / unit, unit < 1e9 ? "MB" : "GB");
    return text;
}

/* 1: openpi.h counts it in bytes, or the verb said that all is. */
static int in_bytes(const progress *p) { return p->bytes || !strcmp(p->what, "decoding weights"); }

static void draw_bar(const progress *p, uint64_t total, double elapsed_ms) {
    char bar[BAR + 1], text[PROGRESS_TEXT];
    double part = total ? (double)p->done / (double)total : 0;
    int filled = (int)((part < 1 ? part : 1) * BAR);
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = 0;
    progress_text(in_bytes(p), p->done, total, text);
    fprintf(stderr, "\r\033[K%s [%s] %s  %.0f s", p->what, bar, text, elapsed_ms / 1e3);
}

void progress_show(void *user, const char *what, uint64_t done, uint64_t total) {
    progress *p = user;
    char text[PROGRESS_TEXT];
    double now = now_ms();
    if (done > total) done = total;
    if (strncmp(p->what, what, sizeof p->what - 1) || done < p->done) {
        progress_end(p);
        p->start_ms = now;
        p->last_ms = 0;
        snprintf(p->what, sizeof p->what, "%s", what);
    }
    p->done = done;
    double elapsed = now - p->start_ms;
    if (elapsed < PATIENCE_MS) return;
    if (now - p->last_ms < (p->tty ? REDRAW_MS : LINE_MS) && !(done == total && p->tty)) return;
    if (p->tty) draw_bar(p, total, elapsed);
    else
        fprintf(stderr, "%s: %s after %.0f s\n", p->what, progress_text(in_bytes(p), done, total, text),
                elapsed / 1e3);
    p->drawn = 1;
    p->last_ms = now;
}

/* ---- seconds gone by ------------------------------------------------------------------------------ */

struct ticker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    int stop, tty, drawn;
    const char *what;
};

static void *tick(void *argument) {
    ticker *t = argument;
    struct timespec wake;
    double start = now_ms();
    clock_gettime(CLOCK_REALTIME, &wake);
    pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        wake.tv_sec += t->tty || !t->drawn ? 1 : LINE_MS / 1000;
        while (!t->stop && !pthread_cond_timedwait(&t->stopped, &t->lock, &wake)) continue;
        if (t->stop) break;
        fprintf(stderr, t->tty ? "\r\033[K%s  %.0f s" : "%s: %.0f s\n", t->what, (now_ms() - start) / 1e3);
        t->drawn = 1;
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

ticker *ticker_start(const char *what) {
    ticker *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->what = what;
    t->tty = isatty(STDERR_FILENO);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->stopped, NULL);
    if (!pthread_create(&t->thread, NULL, tick, t)) return t;
    free(t);
    return NULL;
}

void ticker_stop(ticker *t) {
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->stop = 1;
    pthread_cond_signal(&t->stopped);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    if (t->drawn && t->tty) fputs("\r\033[K", stderr);
    pthread_cond_destroy(&t->stopped);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
