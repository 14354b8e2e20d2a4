/* A job: one request of a connection on its way to its reply.
 *
 *   connection.c   receives the message                     I/O thread
 *   prepare.c      message -> sample                        a prepare thread
 *   dispatch.c     waits until the scheduler lets it run    a device's thread
 *   device.c       samples -> actions -> reply              a device's thread
 *   connection.c   sends the reply                          I/O thread
 *
 * A job has one owner at a time, who passes it on. */
#ifndef SERVE_JOB_H
#define SERVE_JOB_H

#include "serve/schedule/in_flight.h"
#include "serve/admin/metrics.h"
#include "model.h"
#include "serve/net/net.h"
#include "openpi_runner.h"
#include "serve/admin/snapshot.h"

struct connection;

/* One observation of a message that has several. */
typedef struct job_part {
    openpi_request *request;
    openpi_sample sample;
    double deadline_ms;          /* after the message arrived; 0: none                                     */
    int samples;                 /* its "openpi/samples"; 0: absent                                        */
    int truncated;               /* 1: its prompt was cut                                                  */
    openpi_status status;        /* not OK: it is not computed, and                                        */
    char sentence[500];          /* why                                                                    */
} job_part;

typedef struct job {
    struct job *next;            /* in a queue or in the pool                                              */
    struct connection *connection;
    uint8_t *bytes;              /* the message: [count], memory of [capacity]                             */
    size_t count, capacity;
    double at_ms[MOMENTS];       /* when it passed the moments of metrics.h; 0: not reached                */
    double prev_total_ms;        /* the connection's request before; negative: there was none              */
    uint64_t order;              /* its place among the server's requests: picks the noise                 */
    int number;                  /* the connection's, in dispatch.h                                        */
    int reserved;                /* 1: the connection is                                                   */
    int running;                 /* dispatch.c's: 1: a call computes some of it                            */
    int submitted, abandoned;    /* dispatch.c's                                                           */
    double deadline_ms;          /* after it arrived; 0: none                                              */
    serve_model *model;          /* that it is prepared for, from preparing to the reply, else NULL        */
    uint64_t model_number;       /* its number, from preparing on                                          */
    char model_hash[24];         /* its weights', likewise                                                 */
    openpi_request *request;     /* made for the model's policy and valid as long                          */
    int observations;            /* in the message; 0: it is one; -1: not counted, or it is wrong          */
    size_t needs;                /* bytes that preparing a message of several takes; 0: not known          */
    size_t preparing_bytes;      /* its bytes, as far as they are counted in flight                        */
    openpi_sample sample;
    int samples;                 /* "openpi/samples" of its message; 0: absent                             */
    int many;                    /* 1: its message is of several observations                              */
    job_part *parts;             /* [part_count]                                                           */
    int part_count;              /* 0: the message is one observation                                      */
    int part_samples;            /* "openpi/samples" of each of them; 0: absent, one chunk each            */
    int *fit;                    /* the chunks that are computed, [fit_count]: number c of part p is
                                    p · max(1, part_samples) + c                                           */
    int fit_count;
    int turn;                    /* how many of them the call that runs computes                           */
    int done;                    /* how many of fit[] are computed                                         */
    double *part_actions;        /* [part_count][max(1, part_samples)][horizon][action_dim], the robot's   */
    int room;                    /* chunks that the next lines have memory for                             */
    float *noise;                /* [room][horizon][32]                                                    */
    const double *last;          /* the connection's last chunk, [horizon][32]; NULL: none                 */
    uint64_t last_model;         /* the number of the model that made it                                   */
    double *chunk;               /* this one, as openpi_request_keep makes it: [horizon][32]               */
    int executed;                /* rows of that chunk which the robot says were executed; -1: it does not */
    double held_ms;              /* its runner held it since its request before; 0: not, or it does not say */
    int held_reason;             /* why: an openpi_reason                                                  */
    int rtc_asked;               /* 1: the request has "openpi/rtc", so the reply answers it               */
    openpi_rtc rtc;              /* OFF: an ordinary sample                                                */
    int truncated;               /* 1: its prompt was cut                                                  */
    openpi_limited limited;      /* what the robot's limits did to its chunk                               */
    char note[400];              /* what preparing it told (openpi_request_note), ""; for the log          */
    int rtc_weight;              /* what its max_weight was cut to; 0: it was not                          */
    float *previous;             /* [horizon][32]: of rtc                                                  */
    float *model_actions;        /* [room][horizon][32]: what the model answered, where status is OK       */
    float *sent;                 /* [horizon][action_dim]: the robot's first chunk, likewise               */
    double rate_hz;              /* the robot's, likewise                                                  */
    double model_ms;             /* the call's that computed it                                            */
    int batch;                   /* that call's samples                                                    */
    snapshot *snapshot;          /* what the admin page wants to see of it; NULL: nothing                  */
    openpi_status status;        /* the answer's                                                           */
    request_result result;       /* the same for metrics.h                                                 */
    net_message answer;          /* the reply, or one sentence as text                                     */
    uint8_t *answer_memory;      /* [NET_HEADROOM + answer_capacity]                                       */
    size_t answer_capacity;
} job;

/* Jobs and the memory of their messages, kept for the next request. On the I/O thread only. */
typedef struct job_pool {
    job *free;
    int horizon, action_dim;
    size_t kept;                 /* bytes of messages of free jobs                                         */
    in_flight in_flight;         /* messages of all other jobs, and what preparing them takes              */
} job_pool;

/* NULL: no memory. */
job *job_take(job_pool *pool);
void job_give(job_pool *pool, job *job);
void job_pool_close(job_pool *pool);

/* Memory for a message of several observations, without requests for them, and then for the chunks of each.
 * 0: there is none. job_drop_parts gives it back, when the requests are gone. */
int job_make_parts(job *job, int count);
int job_make_part_chunks(job *job, int samples, int horizon, int action_dim);
void job_drop_parts(job *job);
size_t job_parts_bytes(int count, int samples, int horizon, int action_dim);
/* Chunks of each observation. */
static inline int job_part_chunks(const job *job) { return job->part_samples ? job->part_samples : 1; }
/* What the scheduler is to count. */
int job_samples(const job *job);
/* 1: its answer is there, or nothing of it is left to compute. */
int job_is_over(const job *job);

/* Memory for `chunks` and a reply with them, for as long as the job has its request. 0: there is
 * none. job_room_bytes: what it takes beyond that for one. */
int job_make_room(job *job, int chunks, int horizon, int action_dim);
size_t job_room_bytes(int chunks, int horizon, int action_dim);

/* Appends to the message. Memory grows with what was received, never beyond twice of it. Returns 0 where
 * there is none, or where it would be more than is left in flight. */
int job_append(job_pool *pool, job *job, const uint8_t *bytes, size_t count);

/* To every request that waits when a device is lost. What the driver said is for the log. */
#define DEVICE_LOST_SENTENCE "the device is lost; the server restarts"

typedef struct job_memory {
    uint8_t *bytes;              /* [capacity], malloc; NULL: none                                         */
    size_t capacity;
} job_memory;

/* The message's memory, which is the caller's to free; the job has what is given instead. */
job_memory job_take_message(job_pool *pool, job *job, job_memory instead);

/* The answer is this sentence, or DEVICE_LOST_SENTENCE where the status says so. */
void job_refuse(job *job, openpi_status status, const char *sentence);

#endif
