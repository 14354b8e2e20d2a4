/* See recorder.h. */
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"
#include "recording/call.h"
#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "serve/small/thread.h"

enum {
    WAITING_BYTES = 256 << 20,   /* requests that wait to be written; more are left out                    */
    FILE_BYTES = 1 << 30,        /* a file that has more is closed, and the hour gets another one          */
    ROOM_BYTES = 64 << 20,       /* so often the folder is looked at                                       */
    REST_MS = 5000,              /* after a failure nothing is tried for so long                           */
    ABOUT = 16, ABOUT_TEXT = 512,
    SPARES = 8, SPARE_BYTES = 4 << 20,     /* memory of written requests that is kept, and of one at most   */
};

/* A request that waits, with all its memory. */
typedef struct item {
    struct item *next;
    size_t bytes;
    uint64_t model;
    char hash[24];               /* its weights'                                                           */
    job_memory message;
    recorded_call call;
    char robot[64], address[64];
    float *numbers;              /* model actions, then what is left of the last chunk                     */
    uint8_t *reply;
} item;

struct recorder {
    recorder_options options;
    pthread_t thread;
    int started;
    pthread_mutex_t lock;        /* guards what follows                                                    */
    pthread_cond_t changed;
    item *first, *last;
    size_t waiting;
    job_memory spares[SPARES];   /* [spare_count] of requests that are written                             */
    int spare_count;
    int ended;
    /* The thread's alone. */
    char about_text[ABOUT][ABOUT_TEXT];
    mcap_entry about[ABOUT];
    int about_count;
    recording *file;
    char hour[RECORD_NAME], path[RECORD_PATH];
    uint64_t model;              /* its calls are in the file                                              */
    uint64_t looked_at;          /* bytes of the file when the folder was looked at                        */
    double failed_ms;            /* 0: it works                                                            */
};

/* ---- the I/O thread ----------------------------------------------------------------------------------- */

static void free_item(item *i) {
    if (!i) return;
    free(i->message.bytes);
    free(i->numbers);
    free(i->reply);
    free(i);
}

static size_t chunk_numbers(const job_pool *pool) { return (size_t)pool->horizon * OPENPI_ACTION_DIM; }

/* The monotonic clock's milliseconds as a time since 1970. */
static uint64_t since_1970(double ms) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double ago = clock_now() - ms;
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return ms > 0 && ago > 0 ? ns - (uint64_t)(ago * 1e6) : ns;
}

static void take_numbers(item *i, const job_pool *pool, const job *job) {
    size_t count = chunk_numbers(pool);
    i->call.horizon = pool->horizon;
    i->call.batch = job->batch;
    i->call.model_ms = job->model_ms;
    i->call.rtc = job->rtc;
    memcpy(i->numbers, job->model_actions, count * sizeof(float));
    i->call.model_actions = i->numbers;
    if (job->rtc.mode == OPENPI_RTC_OFF) return;
    memcpy(i->numbers + count, job->previous, count * sizeof(float));
    i->call.rtc.previous = i->numbers + count;
}

static item *make_item(const recorder *r, const job_pool *pool, const job *job,
                       const recorder_client *client) {
    item *i = calloc(1, sizeof *i);
    if (!i) return NULL;
    i->numbers = malloc(2 * chunk_numbers(pool) * sizeof(float));
    i->reply = malloc(job->answer.bytes + 1);
    if (!i->numbers || !i->reply) {
        free_item(i);
        return NULL;
    }
    snprintf(i->robot, sizeof i->robot, "%s", client->robot);
    snprintf(i->address, sizeof i->address, "%s", client->address);
    memcpy(i->reply, job->answer.data, job->answer.bytes);
    i->model = job->model_number;
    memcpy(i->hash, job->model_hash, sizeof i->hash);
    i->bytes = sizeof *i + job->capacity + job->answer.bytes + 2 * chunk_numbers(pool) * sizeof(float);
    i->call = (recorded_call){.order = job->order,
                              .connection = client->connection,
                              .robot = i->robot,
                              .address = i->address,
                              .arrived_ns = since_1970(job->at_ms[MOMENT_ARRIVED]),
                              .sent_ns = since_1970(job->at_ms[MOMENT_SENT]),
                              .request_bytes = job->count,
                              .reply = i->reply,
                              .reply_bytes = job->answer.bytes,
                              .status = job->status,
                              .seed = r->options.seed,
                              .stream = job->order * OPENPI_MAX_BATCH,
                              .rtc = OPENPI_RTC_INIT};
    if (job->status == OPENPI_OK) take_numbers(i, pool, job);
    return i;
}

void recorder_put(recorder *r, job_pool *pool, job *job, const recorder_client *client) {
    pthread_mutex_lock(&r->lock);
    int fits = r->waiting + job->capacity <= WAITING_BYTES;
    pthread_mutex_unlock(&r->lock);
    item *i = fits ? make_item(r, pool, job, client) : NULL;
    if (!i) {
        metrics_add_recorded(r->options.metrics, 0);
        return;
    }
    pthread_mutex_lock(&r->lock);
    job_memory spare = r->spare_count ? r->spares[--r->spare_count] : (job_memory){NULL, 0};
    i->message = job_take_message(pool, job, spare);
    i->call.request = i->message.bytes;
    if (r->last) r->last->next = i;
    else r->first = i;
    r->last = i;
    r->waiting += i->bytes;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- the recorder's thread ---------------------------------------------------------------------------- */

static void fail_for_now(recorder *r, const char *sentence) {
    r->failed_ms = clock_now();
    log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "recording"};
    log_entry_write(r->options.log, &entry, "requests are not recorded for %d seconds: %s", REST_MS / 1000,
                    sentence);
}

static void close_file(recorder *r) {
    openpi_error error = OPENPI_ERROR_INIT;
    recording *file = r->file;
    r->file = NULL;
    if (recording_close(file, &error) != OPENPI_OK) fail_for_now(r, error.message);
}

static void make_room(recorder *r) {
    int gone = record_make_room(r->options.folder, r->path, r->options.most);
    if (gone) log_line(r->options.log, "recording", "%d of the oldest recordings are removed: all together "
                       "had more than --record-max", gone);
}

static openpi_status new_file(recorder *r, const item *i, const char *hour, openpi_error *error) {
    char number[24];
    record_new_path(r->options.folder, hour, r->path);
    snprintf(number, sizeof number, "%llu", (unsigned long long)i->model);
    mcap_entry about[ABOUT + 2];
    memcpy(about, r->about, sizeof r->about);
    about[r->about_count] = (mcap_entry){"model", number};
    about[r->about_count + 1] = (mcap_entry){"checkpoint_hash", i->hash};
    SERVE_TRY(recording_create(r->path, about, r->about_count + 1 + (*i->hash != 0), &r->file, error));
    snprintf(r->hour, sizeof r->hour, "%s", hour);
    r->model = i->model;
    r->looked_at = 0;
    log_line(r->options.log, "recording", "recording into %s", r->path);
    make_room(r);
    return OPENPI_OK;
}

/* A refused request may be of no model yet; it goes where the last call went. */
static int belongs(const recorder *r, const item *i, const char *hour) {
    return r->file && !strcmp(hour, r->hour) && recording_bytes(r->file) < FILE_BYTES &&
           (i->model == r->model || !i->model);
}

static openpi_status write_item(recorder *r, const item *i, openpi_error *error) {
    char hour[RECORD_NAME];
    record_hour(i->call.arrived_ns, hour);
    if (!belongs(r, i, hour)) {
        if (r->file) close_file(r);
        SERVE_TRY(new_file(r, i, hour, error));
    }
    SERVE_TRY(recording_add(r->file, &i->call, error));
    if (recording_bytes(r->file) - r->looked_at < ROOM_BYTES) return OPENPI_OK;
    r->looked_at = recording_bytes(r->file);
    make_room(r);
    return OPENPI_OK;
}

static void record(recorder *r, const item *i) {
    openpi_error error = OPENPI_ERROR_INIT;
    int rests = r->failed_ms > 0 && clock_now() - r->failed_ms < REST_MS;
    if (!rests && write_item(r, i, &error) == OPENPI_OK) {
        r->failed_ms = 0;
        metrics_add_recorded(r->options.metrics, 1);
        return;
    }
    metrics_add_recorded(r->options.metrics, 0);
    if (rests) return;
    fail_for_now(r, error.message);
    recording_close(r->file, NULL);
    r->file = NULL;
}

static item *next_item(recorder *r) {
    pthread_mutex_lock(&r->lock);
    while (!r->first && !r->ended) pthread_cond_wait(&r->changed, &r->lock);
    item *i = r->first;
    if (i) {
        r->first = i->next;
        if (!r->first) r->last = NULL;
        r->waiting -= i->bytes;
    }
    pthread_mutex_unlock(&r->lock);
    return i;
}

/* A request's memory would have to grow anew while its robot waits: it comes back to the next one. */
static void keep_memory(recorder *r, item *i) {
    pthread_mutex_lock(&r->lock);
    if (r->spare_count < SPARES && i->message.capacity <= SPARE_BYTES) {
        r->spares[r->spare_count++] = i->message;
        i->message.bytes = NULL;
    }
    pthread_mutex_unlock(&r->lock);
    free_item(i);
}

static void *run(void *argument) {
    recorder *r = argument;
    serve_thread_yield();
    for (item *i; (i = next_item(r)); keep_memory(r, i)) record(r, i);
    if (r->file) close_file(r);
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------------ */

static void tell(recorder *r, const char *key, const char *value) {
    if (!value || !*value) return;
    char *text = r->about_text[r->about_count];
    snprintf(text, ABOUT_TEXT, "%s", value);
    r->about[r->about_count++] = (mcap_entry){key, text};
}

static void tell_number(recorder *r, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    tell(r, key, text);
}

void recorder_describe(recorder *r, const recorder_model *m) {
    tell(r, "version", openpi_version());
    tell(r, "checkpoint", m->checkpoint);
    tell(r, "config", m->config);
    tell(r, "robot", m->robot);
    tell(r, "variant", m->engine->variant == OPENPI_PI05 ? "pi05" : "pi0");
    tell(r, "device", m->engine->device);
    tell(r, "kernels", m->engine->path);
    tell(r, "dtype", m->engine->dtype == OPENPI_F32 ? "f32" : "bf16");
    tell(r, "weights", m->engine->formats);
    tell_number(r, "horizon", (uint64_t)m->session->horizon);
    tell_number(r, "steps", (uint64_t)m->session->steps);
    tell_number(r, "seed", r->options.seed);
}

openpi_status recorder_open(const recorder_options *options, recorder **out, openpi_error *error) {
    SERVE_TRY(record_folder_open(options->folder, error));
    recorder *r = calloc(1, sizeof *r);
    if (!r) return fail(error, OPENPI_NO_MEMORY, "out of memory: the recorder");
    r->options = *options;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    openpi_status status =
        serve_thread_start(&r->thread, run, r, "recorder", "the thread that records", error);
    r->started = status == OPENPI_OK;
    if (r->started) *out = r;
    else recorder_close(r);
    return status;
}

void recorder_close(recorder *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->ended = 1;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->started) pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    while (r->spare_count) free(r->spares[--r->spare_count].bytes);
    free(r);
}
