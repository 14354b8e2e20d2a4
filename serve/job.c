/* See job.h. */
#include "job.h"

#include <stdlib.h>
#include <string.h>

#include "messages.h"

enum {
    FIRST_BYTES = 64 << 10,      /* a message's memory at first                                            */
    KEPT_BYTES = 64 << 20,       /* messages of free jobs, all together                                    */
    SENTENCE_BYTES = 1024,
};

static void job_free(job *job) {
    job_drop_parts(job);
    free(job->bytes);
    free(job->noise);
    free(job->chunk);
    free(job->previous);
    free(job->model_actions);
    free(job->sent);
    free(job->answer_memory);
    free(job);
}

static size_t chunk_numbers(const job_pool *pool) { return (size_t)pool->horizon * OPENPI_ACTION_DIM; }

static job *job_make(const job_pool *pool) {
    job *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->answer_capacity = reply_most_bytes(1, pool->horizon, pool->action_dim);
    made->room = 1;
    if (made->answer_capacity < SENTENCE_BYTES) made->answer_capacity = SENTENCE_BYTES;
    made->answer_memory = malloc(NET_HEADROOM + made->answer_capacity);
    made->noise = malloc(chunk_numbers(pool) * sizeof *made->noise);
    made->previous = malloc(chunk_numbers(pool) * sizeof *made->previous);
    made->model_actions = malloc(chunk_numbers(pool) * sizeof *made->model_actions);
    made->sent = calloc((size_t)pool->horizon * (size_t)pool->action_dim, sizeof *made->sent);
    if (made->answer_memory && made->noise && made->previous && made->model_actions && made->sent)
        return made;
    job_free(made);
    return NULL;
}

/* The memory that a free job has kept counts in full as soon as the job is used again. Where it would take
 * more than a quarter of what is left, the job begins without it, so that a message of a few bytes does not
 * use up --max-in-flight. */
static void give_up_large(job_pool *pool, job *job) {
    enum { SHARE = 4 };
    if (job->capacity <= in_flight_left(&pool->in_flight) / SHARE) return;
    free(job->bytes);
    job->bytes = NULL;
    job->capacity = 0;
}

job *job_take(job_pool *pool) {
    job *job = pool->free;
    if (job) {
        pool->free = job->next;
        pool->kept -= job->capacity;
        give_up_large(pool, job);
    } else {
        job = job_make(pool);
        if (!job) return NULL;
    }
    if (!job->chunk) job->chunk = malloc(chunk_numbers(pool) * sizeof *job->chunk);
    if (!job->chunk) {
        job_free(job);
        return NULL;
    }
    in_flight_add(&pool->in_flight, job->capacity);
    job->next = NULL;
    job->connection = NULL;
    job->last = NULL;
    job->count = job->needs = 0;
    job->observations = -1;
    job->samples = job->turn = job->many = 0;
    job->status = OPENPI_OK;
    job->result = REQUEST_OK;
    job->limited = (openpi_limited)OPENPI_LIMITED_INIT;
    memset(job->at_ms, 0, sizeof job->at_ms);
    job->rtc.mode = OPENPI_RTC_OFF;
    job->submitted = job->abandoned = 0;
    job->executed = -1;
    job->held_ms = 0;
    job->held_reason = OPENPI_REASON_NONE;
    job->deadline_ms = 0;
    job->answer = (net_message){.data = job->answer_memory + NET_HEADROOM};
    return job;
}

size_t job_room_bytes(int chunks, int horizon, int action_dim) {
    size_t numbers = (size_t)horizon * OPENPI_ACTION_DIM;
    size_t reply = reply_most_bytes(chunks, horizon, action_dim);
    return chunks > 1 ? 2 * (size_t)chunks * numbers * sizeof(float) + NET_HEADROOM + reply : 0;
}

int job_make_room(job *job, int chunks, int horizon, int action_dim) {
    size_t numbers = (size_t)chunks * (size_t)horizon * OPENPI_ACTION_DIM;
    size_t reply = reply_most_bytes(chunks, horizon, action_dim) + (size_t)chunks * REPLY_ERROR_BYTES;
    if (chunks <= job->room) return 1;
    if (reply < SENTENCE_BYTES) reply = SENTENCE_BYTES;
    float *noise = malloc(numbers * sizeof *noise), *actions = malloc(numbers * sizeof *actions);
    uint8_t *answer = malloc(NET_HEADROOM + reply);
    if (!noise || !actions || !answer) {
        free(noise);
        free(actions);
        free(answer);
        return 0;
    }
    free(job->noise);
    free(job->model_actions);
    free(job->answer_memory);
    job->noise = noise;
    job->model_actions = actions;
    job->answer_memory = answer;
    job->room = chunks;
    job->answer_capacity = reply;
    job->answer.data = job->answer_memory + NET_HEADROOM;
    return 1;
}

/* Memory for one chunk again, so that the job and its message's memory can be kept. 0: there is none. */
static int shrink(const job_pool *pool, job *job) {
    if (job->room == 1) return 1;
    job->room = 0;
    return job_make_room(job, 1, pool->horizon, pool->action_dim);
}

void job_drop_parts(job *job) {
    free(job->parts);
    free(job->fit);
    free(job->part_actions);
    job->parts = NULL;
    job->fit = NULL;
    job->part_actions = NULL;
    job->part_count = job->part_samples = job->fit_count = job->done = 0;
}

size_t job_parts_bytes(int count, int samples, int horizon, int action_dim) {
    int chunks = count * (samples ? samples : 1);
    size_t one = sizeof(int) + (size_t)horizon * (size_t)action_dim * sizeof(double) + REPLY_ERROR_BYTES;
    return (size_t)count * sizeof(job_part) + (size_t)chunks * one +
           job_room_bytes(chunks, horizon, action_dim);
}

int job_make_parts(job *job, int count) {
    job_drop_parts(job);
    job->parts = calloc((size_t)count, sizeof *job->parts);
    if (!job->parts) return 0;
    job->part_count = count;
    job->many = 1;
    return 1;
}

int job_make_part_chunks(job *job, int samples, int horizon, int action_dim) {
    job->part_samples = samples;
    size_t chunks = (size_t)job->part_count * (size_t)job_part_chunks(job);
    size_t numbers = chunks * (size_t)horizon * (size_t)action_dim;
    job->fit = calloc(chunks, sizeof *job->fit);
    job->part_actions = malloc(numbers * sizeof *job->part_actions);
    return job->fit && job->part_actions && job_make_room(job, (int)chunks, horizon, action_dim);
}

int job_samples(const job *job) { return job->part_count ? job->fit_count : job->samples ? job->samples : 1; }

int job_is_over(const job *job) {
    return !job->part_count || job->status != OPENPI_OK || job->done == job->fit_count;
}

void job_give(job_pool *pool, job *job) {
    if (!job) return;
    snapshot_free(job->snapshot);
    job->snapshot = NULL;
    job_drop_parts(job);
    in_flight_give(&pool->in_flight, job->capacity);
    if (pool->kept + job->capacity > KEPT_BYTES || !shrink(pool, job)) {
        job_free(job);
        return;
    }
    pool->kept += job->capacity;
    job->next = pool->free;
    pool->free = job;
}

void job_pool_close(job_pool *pool) {
    while (pool->free) {
        job *next = pool->free->next;
        job_free(pool->free);
        pool->free = next;
    }
}

/* Twice as much as before, or as much as is left. */
static int grow(job_pool *pool, job *job, size_t needed) {
    size_t capacity = job->capacity ? job->capacity : FIRST_BYTES;
    size_t most = job->capacity + in_flight_left(&pool->in_flight);
    while (capacity < needed) capacity *= 2;
    if (capacity > most) capacity = most;
    if (capacity < needed || !in_flight_take(&pool->in_flight, capacity - job->capacity)) return 0;
    uint8_t *larger = realloc(job->bytes, capacity);
    if (!larger) {
        in_flight_give(&pool->in_flight, capacity - job->capacity);
        return 0;
    }
    job->bytes = larger;
    job->capacity = capacity;
    return 1;
}

int job_append(job_pool *pool, job *job, const uint8_t *bytes, size_t count) {
    size_t needed = job->count + count;
    if (needed > job->capacity && !grow(pool, job, needed)) return 0;
    if (count) memcpy(job->bytes + job->count, bytes, count);
    job->count = needed;
    return 1;
}

job_memory job_take_message(job_pool *pool, job *job, job_memory instead) {
    job_memory message = {job->bytes, job->capacity};
    in_flight_give(&pool->in_flight, message.capacity);
    in_flight_add(&pool->in_flight, instead.capacity);
    job->bytes = instead.bytes;
    job->capacity = instead.capacity;
    job->count = 0;
    return message;
}

void job_refuse(job *job, openpi_status status, const char *sentence) {
    if (status == OPENPI_DEVICE_LOST) sentence = DEVICE_LOST_SENTENCE;
    size_t count = strlen(sentence);
    if (count > job->answer_capacity) count = job->answer_capacity;
    memcpy(job->answer.data, sentence, count);
    job->answer.bytes = count;
    job->answer.text = 1;
    job->status = status;
    int refused = status == OPENPI_BAD_INPUT || status == OPENPI_UNSUPPORTED;
    job->result = refused ? REQUEST_REFUSED : status == OPENPI_BEYOND_LIMIT ? REQUEST_STOPPED
                                                                            : REQUEST_FAILED;
}
