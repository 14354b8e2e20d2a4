/* openpi trace: calls as a picture that Perfetto draws.
 *
 * The options, and recording (lab/measure/trace.h). tools/trace-analyze sums such a file up. */
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "lab/verbs/subject.h"

typedef struct trace_values {
    subject_values subject;
    int calls, warmup;
} trace_values;

/* ---- recording ------------------------------------------------------------------------------------ */

/* A policy where the model has what one needs; else the reason in `error`. */
static openpi_policy *open_policy(const subject *s, openpi_error *error) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy = NULL;
    options.synthetic = s->model.synthetic;
    options.adapter = s->v->lora.adapter;
    options.without_lora = s->v->lora.without_lora;
    options.missing_chunks_are_zero = s->v->lora.missing_chunks_are_zero;
    options.max_prompt = s->call.prompt;
    char cache[HOME_PATH];
    options.tokenizer_cache = tokenizer_cache(cache);
    if (!s->call.prompt)
        snprintf(error->message, sizeof error->message, "--prompt 0 leaves a policy nothing to read");
    else if (openpi_policy_open(s->model.checkpoint, &options, &policy, error) != OPENPI_OK) policy = NULL;
    return policy;
}

static json_t *trace_head(const subject *s, const trace *t) {
    json_t *head = subject_json(s, "trace");
    json_object_set_new(head, "calls", json_integer(t->count));
    json_object_set_new(head, "method", json_string(timed_method_name(t->method)));
    json_object_set_new(head, "not_replayed", json_string(t->not_replayed));
    json_object_set_new(head, "level", json_string(t->policy ? "policy" : "model"));
    json_object_set_new(head, "prompt_tokens", json_integer(t->prompt));
    json_object_set_new(head, "power", json_string(t->power[0] ? t->power : "not readable here"));
    return head;
}

static void put_recorded(const char *path, const trace *t) {
    double run = 0;
    for (int i = 0; i < t->count; i++)
        run += t->calls[i].spans[t->calls[i].run].end_ms - t->calls[i].spans[t->calls[i].run].start_ms;
    printf("timed %s\n", timed_method_text(t->method));
    if (t->not_replayed[0]) printf("not inside graph replay: %s\n", t->not_replayed);
    printf("%d call%s %s, %d prompt tokens: %d launches and %.3f ms a call\n", t->count,
           t->count == 1 ? "" : "s", t->policy ? "from made-up pictures and words" : "from made-up tensors",
           t->prompt, t->launch_count, run / t->count);
    if (t->not_policy[0]) printf("not from pictures and words: %s\n", t->not_policy);
    if (t->power[0]) printf("power from %s\n", t->power);
    else printf("power is not readable here: %s\n", t->no_power);
    printf("%s: load it in https://ui.perfetto.dev or chrome://tracing\n", path);
}

static int record(const trace_values *v, char **positional, int count) {
    subject s;
    trace t = {.count = 0};
    openpi_error error = OPENPI_ERROR_INIT, not_policy = OPENPI_ERROR_INIT;
    openpi_session *session = NULL;
    int end = subject_read(&s, &verb_trace, &v->subject, positional + 1, count - 1);
    if (end == END_FINE && count > 1 && v->subject.synthetic)
        return usage_error(&verb_trace, "CHECKPOINT and --synthetic contradict each other: the weights are "
                                        "either read or made");
    if (end == END_FINE) end = output_open(&verb_trace, "FILE", positional[0]);
    if (end == END_FINE) end = subject_open(&s, NULL);
    if (end == END_FINE) end = subject_session(&s, 1, 0, &session);
    if (end == END_FINE) {
        openpi_policy *policy = open_policy(&s, &not_policy);
        const char *device = v->subject.machine.device ? v->subject.machine.device : "cpu";
        trace_options options = {s.call,        v->calls,
                                 v->warmup,     device,
                                 policy,        policy ? NULL : not_policy.message,
                                 progress_show, &s.bar};
        subject_print(&s);
        progress_start(&s.bar);
        openpi_status status = trace_run(session, &options, &t, &error);
        progress_end(&s.bar);
        openpi_policy_close(policy);
        end = status == OPENPI_OK ? trace_write(&verb_trace, positional[0], &t, device, trace_head(&s, &t))
                                  : library_error(&verb_trace, &error);
        if (end == END_FINE) end = outputs_finish(&verb_trace);
        if (end == END_FINE) put_recorded(positional[0], &t);
    }
    trace_free(&t);
    openpi_session_close(session);
    subject_close(&s);
    return end;
}

/* ---- the verb ------------------------------------------------------------------------------------- */

static int trace_verb_run(const void *values, char **positional, int count) {
    return record(values, positional, count);
}

/* ---- the options ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(trace_values, field)

static const trace_values defaults = {.subject = SUBJECT_DEFAULTS, .calls = 1, .warmup = 2};

static const option_row options[] = {
    SUBJECT_MODEL_OPTIONS(trace_values, subject),
    {OPTION_HEADING, .name = "Workload"},
    SUBJECT_WORKLOAD_OPTIONS(trace_values, subject),
    {OPTION_HEADING, .name = "Tracing"},
    {OPTION_INT, "calls", "N",
     "calls to trace (default: 1)", .offset = AT(calls), .low = 1, .high = 1000},
    {OPTION_INT, "warmup", "N",
     "calls before them (default: 2)", .offset = AT(warmup), .low = 0, .high = 100000},
    SUBJECT_MACHINE_OPTIONS(trace_values, subject),
    {0},
};

static const example examples[] = {
    {"one call of the published π0 on a GPU, for https://ui.perfetto.dev",
     "openpi trace pi0.json.gz --synthetic full --device cuda:0"},
    {"a quick look on any machine", "openpi trace tiny.json --synthetic tiny --calls 3"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"FILE.json[.gz] [--synthetic PRESET[:pi0|pi05[:SEED]]] [options]",
                                       "FILE.json[.gz] CHECKPOINT [options]", NULL};

const verb verb_trace = {
    .name = "trace",
    .summary = "calls on a time line, for Perfetto",
    .synopsis = synopsis,
    .positional = "FILE",
    .positional_min = 1,
    .positional_max = 2,
    .description = "Writes calls as trace events: what the host does, a track for each stage with every "
                   "kernel of the graph replay, its "
                   "shape, bytes, FLOPs and grid, and power and clocks where they can be read. FILE is "
                   "gzipped where its name ends "
                   "in .gz. Without a model it takes the full synthetic π0.\n\n"
                   "tools/trace-analyze in the sources sums a trace up by stage and by what kernels do, "
                   "beside one of PyTorch's profiler.",
    .options = options,
    .examples = examples,
    .values_bytes = sizeof(trace_values),
    .defaults = &defaults,
    .run = trace_verb_run,
};
