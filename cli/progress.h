/* What stderr shows while something takes longer than a second. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdint.h>

/* Milliseconds of the monotonic clock. */
double now_ms(void);

typedef struct progress {
    double start_ms, last_ms;    /* times of the current `what`                                           */
    uint64_t done;               /* as last shown: less than that is a new beginning                      */
    char what[48];
    int tty, drawn;
    int bytes;                   /* 1: what is done is bytes, and shown as such; set after progress_start */
} progress;

void progress_start(progress *progress);
/* An openpi_progress; `user` is the progress. */
void progress_show(void *user, const char *what, uint64_t done, uint64_t total);
enum { PROGRESS_TEXT = 64 };
/* "43 %"; of what is counted in bytes "43 %, 6.2 of 14.5 GB". Returns text. */
const char *progress_text(int bytes, uint64_t done, uint64_t total, char text[PROGRESS_TEXT]);
/* Takes the bar away. */
void progress_end(progress *progress);

/* For work that cannot say how far it is: a thread that shows the seconds gone by. NULL where none could
 * start. */
typedef struct ticker ticker;
ticker *ticker_start(const char *what);
void ticker_stop(ticker *ticker);

#endif
