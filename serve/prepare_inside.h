/* What prepare.c, threads and the pool of requests, and parts.c, messages of several observations, share. */
#ifndef SERVE_PREPARE_INSIDE_H
#define SERVE_PREPARE_INSIDE_H

#include <pthread.h>

#include "serve/small/alert.h"
#include "prepare.h"

enum { PREPARE_THREADS_MOST = 65 };

/* The jobs of one class that wait, and the threads that take them. One more thread takes reserved jobs only,
 * so that none of them waits until a shared one is prepared; the others take both. */
typedef struct lane {
    prepare *prepare;
    job *first, *last;
    pthread_cond_t changed;
    alert coming;                /* its own jobs                                                           */
    int looking;                 /* threads that look for one                                              */
    int busy;                    /* threads that prepare one                                               */
} lane;

/* On any thread, also for several parts at a time. */
typedef void part_step(prepare *p, job *job, int part);

/* A step of all parts of a job. Its thread does it with those that have no job of their own to take. */
typedef struct work {
    struct work *next;           /* in prepare.works                                                       */
    job *job;
    part_step *step;
    int begun, over;             /* parts                                                                  */
} work;

struct prepare {
    prepare_options options;
    pthread_t threads[PREPARE_THREADS_MOST];
    int thread_count;
    pthread_mutex_t lock;        /* guards what follows                                                    */
    lane lanes[SCHEDULER_CLASSES];
    work *works;                 /* with parts that no thread has begun; reserved jobs' first              */
    pthread_cond_t over;         /* a work is                                                              */
    atomic_int reserving;        /* 1: a reserved job came, so other threads are not to be in its way      */
    serve_model *model;          /* that requests are prepared for                                         */
    int jobs;                    /* that are prepared for a model: being so, waiting or computed           */
    openpi_request **free;       /* [free_count], of that model                                            */
    int free_count, made;        /* made: of all models                                                    */
    int least_free;              /* since trimmed_ms                                                       */
    double trimmed_ms;
    int ended;
};

/* The job's bytes in flight are so many from now on. */
void prepare_count(prepare *p, job *job, size_t bytes);
/* A request for one more observation of a job. */
openpi_status prepare_more(prepare *p, const serve_model *model, openpi_request **out, openpi_error *error);
/* The step of all parts. Returns when they are done. */
void prepare_each(prepare *p, job *job, part_step *step);
/* The noise of the extras, if any, has the horizon's rows. */
openpi_status prepare_check_noise(const job *job, const openpi_extras *extras, openpi_error *error);
/* Noise for `chunks` of the job's chunks from `first` on: that of the extras, or what a session draws in its
 * call of the job's number. */
void prepare_noise(const prepare *p, job *job, const openpi_extras *extras, int first, int chunks);

/* ---- parts.c ---------------------------------------------------------------------------------------- */

/* For messages of several observations: what preparing one takes at most, and preparing it. */
size_t parts_needs(const prepare *p, const job *job);
openpi_status parts_prepare(prepare *p, job *job, openpi_error *error);

#endif
