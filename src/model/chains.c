#include "model/chains.h"

#include <stdlib.h>

#include "base/report.h"

static const void *array_of(const matrix_job *job) {
    const void *array = NULL;
    for (int i = 0; i < job->part_count && !array; i++) array = tensor_array(job->parts[i]);
    return array;
}

int chains_take(const matrix_job *job) { return array_of(job) != NULL; }

/* A job on its way into a chain. */
typedef struct link {
    const matrix_job *job;
    int chain, stage, place;     /* place: among the jobs as they were given                              */
} link;

static int share_an_array(const matrix_job *a, const matrix_job *b) {
    for (int i = 0; i < a->part_count; i++) {
        const void *array = tensor_array(a->parts[i]);
        for (int j = 0; array && j < b->part_count; j++)
            if (tensor_array(b->parts[j]) == array) return 1;
    }
    return 0;
}

/* Every job gets the chain of those that it shares an array with; chains that it connects become one. */
static void number_chains(link *links, int count) {
    for (int i = 0; i < count; i++) {
        links[i].chain = i;
        for (int j = 0; j < i; j++) {
            int from = links[j].chain, to = links[i].chain;
            if (from == to || !share_an_array(links[i].job, links[j].job)) continue;
            for (int k = 0; k <= i; k++)
                if (links[k].chain == from) links[k].chain = to;
        }
    }
}

static int by_layer(const void *a, const void *b) {
    const link *x = a, *y = b;
    if (x->chain != y->chain) return x->chain < y->chain ? -1 : 1;
    if (x->stage != y->stage) return x->stage < y->stage ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static int by_bytes(const void *a, const void *b) {
    const chain *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void append(chains *c, const link *l, int begins) {
    const matrix_job *job = l->job;
    if (begins) c->list[c->count++] = (chain){.first = c->job_count};
    chain *last = &c->list[c->count - 1];
    c->jobs[c->job_count++] = job;
    last->count++;
    for (int i = 0; i < job->part_count; i++) last->bytes += tensor_stored_bytes(job->parts[i]);
}

openpi_status chains_make(const matrix_job *jobs, int count, chains *out, openpi_error *error) {
    size_t all = (size_t)count + 1, bytes = all * (sizeof(link) + sizeof *out->list + sizeof *out->jobs);
    link *links = calloc(all, sizeof *links);
    int taken = 0;
    *out = (chains){.list = calloc(all, sizeof *out->list), .jobs = calloc(all, sizeof *out->jobs)};
    if (!links || !out->list || !out->jobs) {
        free(links);
        return report_no_memory(error, bytes, "packing weights");
    }
    for (int i = 0; i < count; i++) {
        if (!chains_take(&jobs[i])) continue;
        links[taken] = (link){.job = &jobs[i], .place = i};
        for (int part = 0; part < jobs[i].part_count; part++)
            if (tensor_stage(jobs[i].parts[part]) > links[taken].stage)
                links[taken].stage = tensor_stage(jobs[i].parts[part]);
        taken++;
    }
    number_chains(links, taken);
    qsort(links, (size_t)taken, sizeof *links, by_layer);
    for (int i = 0; i < taken; i++) append(out, &links[i], !i || links[i].chain != links[i - 1].chain);
    free(links);
    qsort(out->list, (size_t)out->count, sizeof *out->list, by_bytes);
    for (int i = 0; i < out->count; i++) out->bytes += out->list[i].bytes;
    return OPENPI_OK;
}

void chains_free(chains *c) {
    free(c->list);
    free(c->jobs);
    *c = (chains){0};
}
