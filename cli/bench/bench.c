/* openpi bench: how fast a model runs here, and how far from what the machine could do.
 *
 * The options and the order of the steps; bench.h lists the other files. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "output.h"

enum { ROBOTS = 1, SECONDS = 10 };         /* defaults for a running server                               */

/* ---- reading the options -------------------------------------------------------------------------- */

static int read_batches(bench_job *j) {
    const char *at = j->v.batch ? j->v.batch : "1";
    for (;;) {
        char *end;
        long batch = strtol(at, &end, 10);
        if (end == at || batch < 1 || batch > OPENPI_MAX_BATCH || (*end && *end != ',') ||
            (*end == ',' && !end[1]))
            return usage_error(&verb_bench, "--batch is '%s', expected numbers from 1 to %d such as 1,2,4",
                               j->v.batch, OPENPI_MAX_BATCH);
        for (int i = 0; i < j->count; i++)
            if (j->outcomes[i].batch == batch)
                return usage_error(&verb_bench, "--batch is '%s': %ld is there twice", j->v.batch, batch);
        if (j->count == BATCHES_MAX)
            return usage_error(&verb_bench, "--batch lists more than %d numbers", BATCHES_MAX);
        j->outcomes[j->count++].batch = (int)batch;
        if (!*end) return END_FINE;
        at = end + 1;
    }
}

/* A synthetic model is one that was trained for the delay. */
static int read_chunking(bench_job *j) {
    if (j->v.delay && !j->v.rtc) return usage_error(&verb_bench, "--delay without --rtc: expected its mode");
    if (j->v.delay >= j->v.subject.horizon)
        return usage_error(&verb_bench, "--delay is %d, expected less than the horizon, %d", j->v.delay,
                           j->v.subject.horizon);
    j->subject.call.rtc = (openpi_rtc_mode)j->v.rtc;
    j->subject.call.delay = j->v.delay;
    if (j->v.rtc != OPENPI_RTC_TRAINED || !j->subject.model.synthetic) return END_FINE;
    if (j->subject.model.recipe.variant != OPENPI_PI05)
        return usage_error(&verb_bench, "--rtc trained with a synthetic π0: expected a π0.5");
    j->subject.model.recipe.rtc_max_delay = j->v.delay;
    return END_FINE;
}

static int read_options(bench_job *j, char **positional, int count) {
    int end = END_FINE;
    if (j->v.best) {
        end = bench_read_file(j->v.best, &j->best);
        if (end == END_FINE) end = bench_configure(j, j->best, j->v.best);
        count = j->v.checkpoint ? 1 : 0;
        positional = (char **)&j->v.checkpoint;
    }
    if (end == END_FINE) end = subject_read(&j->subject, &verb_bench, &j->v.subject, positional, count);
    j->v.checkpoint = j->subject.model.checkpoint;
    if (end == END_FINE) end = read_batches(j);
    if (end == END_FINE && j->v.changing_prompts && j->v.subject.prompt < 2)
        end = usage_error(&verb_bench, "--changing-prompts with --prompt %d: expected at least 2",
                          j->v.subject.prompt);
    if (end == END_FINE) end = read_chunking(j);
    if (end == END_FINE && j->v.save && j->v.subject.machine.table &&
        !strcmp(j->v.subject.machine.table, "-"))
        end = usage_error(&verb_bench, "--save with --table -: a saved configuration names the file of its "
                                       "table");
    if (end == END_FINE && j->v.against) end = bench_read_file(j->v.against, &j->against);
    if (end == END_FINE && j->v.published) end = bench_read_published(j->v.published, &j->published);
    return end;
}

/* ---- running -------------------------------------------------------------------------------------- */

static void sample_memory(bench_job *j) {
    uint64_t anonymous, peak;
    bench_memory(&anonymous, &peak);
    if (anonymous > j->load_anonymous) j->load_anonymous = anonymous;
    if (peak > j->load_peak) j->load_peak = peak;
}

static void on_load(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    sample_memory(user);
}

/* The values become what they stand for, so that they can be shown and saved. */
static void resolve(bench_job *j) {
    const openpi_engine_info *i = &j->subject.info;
    bench_values *v = &j->v;
    int gpu = strcmp(i->device, "cpu") != 0;
    if (v->warmup < 0) v->warmup = gpu ? 10 : 1;
    if (!v->runs) v->runs = gpu ? 30 : 5;
    if (!v->batch) v->batch = "1";
    if (j->subject.model.synthetic) v->subject.synthetic = j->subject.source + strlen("synthetic ");
    if (!v->subject.cameras) v->subject.cameras = "111";
    if (!v->subject.machine.device) v->subject.machine.device = "cpu";
    v->subject.machine.dtype = i->dtype;
    v->subject.machine.without = i->without;
    v->subject.machine.no_graph = 0;
    const char *driver = power_get_facts(j->power)->driver;
    snprintf(j->driver, sizeof j->driver, "%s", *driver ? driver : j->subject.facts.driver);
    bench_table_hash(j->subject.engine, j->table_hash);
}

static int load(bench_job *j) {
    openpi_error error = OPENPI_ERROR_INIT;
    j->subject.on_load = on_load;
    j->subject.on_load_user = j;
    int end = subject_open(&j->subject, NULL);
    if (end != END_FINE) return end;
    sample_memory(j);
    if (power_open(j->v.subject.machine.device, &j->power, &error) != OPENPI_OK)
        return library_error(&verb_bench, &error);
    resolve(j);
    if (j->against) end = bench_comparable(j, j->against);
    if (end != END_FINE) return end;
    return bench_measure_roofs(j->subject.engine, &j->roofs, &error) == OPENPI_OK
               ? END_FINE
               : library_error(&verb_bench, &error);
}

/* A counter that fails is reported; the other figures are still right. */
static openpi_status count_joules(bench_job *j, openpi_session *session, const bench_workload *work,
                                  bench_outcome *o, openpi_error *error) {
    enum { JOULE_SECONDS = 3 };
    const power_facts *facts = power_get_facts(j->power);
    openpi_error why = OPENPI_ERROR_INIT;
    if (j->v.no_energy) return OPENPI_OK;
    snprintf(o->no_energy, sizeof o->no_energy, "%s", facts->reason);
    if (!facts->counter[0]) return OPENPI_OK;
    openpi_status status = energy_run(session, work, j->power, JOULE_SECONDS, &o->energy, &why);
    snprintf(o->no_energy, sizeof o->no_energy, "%.399s", status == OPENPI_OK ? "" : why.message);
    if (status == OPENPI_OK || status == OPENPI_UNSUPPORTED || status == OPENPI_SYSTEM) return OPENPI_OK;
    *error = why;
    return status;
}

static int measure(bench_job *j, bench_outcome *o) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_session *session = NULL;
    j->subject.call.batch = o->batch;
    int end = subject_session(&j->subject, o->batch, 0, &session);
    if (end != END_FINE) return end;
    o->session.size = sizeof o->session;
    if (openpi_session_get_info(session, &o->session, &error) != OPENPI_OK)
        return library_error(&verb_bench, &error);
    if (j->v.verbose) machine_say_table(&verb_bench, &j->subject.info, session);
    const char *why = o->session.not_recorded;
    if (why[0]) fprintf(stderr, "openpi bench: runs operation by operation, not as one graph: %s\n", why);
    bench_workload work = {j->subject.call, j->v.warmup,     j->v.runs,
                           progress_show,   &j->subject.bar, j->v.changing_prompts};
    progress_start(&j->subject.bar);
    openpi_status status = bench_run(session, &work, &j->roofs, &o->report, &error);
    if (status == OPENPI_OK && power_read(j->power, &o->after, &error) != OPENPI_OK)
        o->after = (power_reading){0};
    if (status == OPENPI_OK) status = count_joules(j, session, &work, o, &error);
    if (status == OPENPI_OK) status = openpi_session_get_info(session, &o->session, &error);
    progress_end(&j->subject.bar);
    if (j->load_anonymous > o->report.anonymous_bytes) o->report.anonymous_bytes = j->load_anonymous;
    if (j->load_peak > o->report.peak_bytes) o->report.peak_bytes = j->load_peak;
    openpi_session_close(session);
    return status == OPENPI_OK ? END_FINE : library_error(&verb_bench, &error);
}

static int measure_all(bench_job *j) {
    int end = END_FINE;
    bench_put_head(j);
    for (int i = 0; i < j->count && end == END_FINE; i++) {
        end = measure(j, &j->outcomes[i]);
        if (end == END_FINE) bench_put_outcome(j, &j->outcomes[i]);
        fflush(stdout);
    }
    if (end == END_FINE && j->count > 1) bench_put_scaling(j);
    return end;
}

/* ---- results -------------------------------------------------------------------------------------- */

/* Printed once the file is in place. */
static int say_saved(const bench_job *j) {
    int end = outputs_finish(&verb_bench);
    if (end != END_FINE) return end;
    printf("\n%s: saved as the best known; openpi bench --best %s --against %s measures against it\n",
           j->v.save, j->v.save, j->v.save);
    if (j->roofs.tflops <= 0)
        printf("no roof is known for these kernels: later runs are compared with it by time alone\n");
    return END_FINE;
}

static int finish(bench_job *j) {
    int end = j->v.svg ? bench_plot(j) : END_FINE, verdict = END_FINE;
    json_t *now = bench_json(j, "bench");
    if (end == END_FINE && j->against)
        json_object_set_new(now, "against", bench_compare(j, j->against, now, &verdict));
    if (end == END_FINE && j->v.json) end = json_save(&verb_bench, j->v.json, json_incref(now));
    if (end == END_FINE && j->v.save) end = json_save(&verb_bench, j->v.save, bench_json(j, "best"));
    if (end == END_FINE && j->v.save) end = say_saved(j);
    json_decref(now);
    return end == END_FINE ? verdict : end;
}

/* 1 where an option that only --server reads was given. */
static int names_robots(const bench_values *v) {
    return v->observations || v->rate || v->api_key || v->greedy || v->greedy_key || v->jitter || v->env ||
           v->robots != ROBOTS || (v->seconds != SECONDS && !v->runner);
}

static int bench_verb_run(const void *values, char **positional, int count) {
    const bench_values *v = values;
    if (v->server) return load_run(v);
    if (names_robots(v))
        return usage_error(&verb_bench,
                           "--robots, --rate, --jitter, --observations, --api-key, --greedy, --greedy-key, "
                           "--seconds and --env are about a running server; expected --server "
                           "ws://HOST:PORT");
    bench_job *j = allocate(sizeof *j);
    memset(j, 0, sizeof *j);
    j->v = *(const bench_values *)values;
    int end = read_options(j, positional, count);
    if (end == END_FINE) end = load(j);
    int whole = !j->v.runner && !j->v.parts;
    if (end == END_FINE && j->v.runner) end = bench_runner(j);
    if (end == END_FINE && j->v.parts) end = bench_parts(j);
    if (end == END_FINE && whole) end = measure_all(j);
    if (end == END_FINE && whole) end = finish(j);
    power_close(j->power);
    subject_close(&j->subject);
    json_decref(j->best);
    json_decref(j->against);
    json_decref(j->published);
    free(j);
    return end;
}

/* ---- the options ---------------------------------------------------------------------------------- */

#define AT(field) offsetof(bench_values, field)

static const bench_values defaults = {
    .subject = SUBJECT_DEFAULTS, .warmup = -1, .tolerance = 3, .robots = ROBOTS, .seconds = SECONDS};

static const option_row options[] = {
    SUBJECT_MODEL_OPTIONS(bench_values, subject),
    {OPTION_HEADING, .name = "Workload"},
    {OPTION_TEXT, "batch", "LIST",
     "samples of a call; of several, such as 1,2,4, also a scaling table (default: 1)", .offset = AT(batch)},
    SUBJECT_WORKLOAD_OPTIONS(bench_values, subject),
    {OPTION_FLAG, "changing-prompts", NULL,
     "every call another prompt length, 1 to --prompt, in an order drawn from --seed",
     .offset = AT(changing_prompts)},
    {OPTION_CHOICE, "rtc", "guided|trained",
     "every call follows on from a made-up chunk; trained: a synthetic model is trained for the delay",
     .offset = AT(rtc)},
    {OPTION_INT, "delay", "N", "steps of that chunk that the new one begins with (default: 0)",
     .offset = AT(delay), .low = 0, .high = OPENPI_MAX_HORIZON},
    {OPTION_HEADING, .name = "Measuring"},
    {OPTION_INT, "warmup", "N",
     "runs that do not count (default: 1; 10 on a GPU)", .offset = AT(warmup), .low = 0, .high = 100000},
    {OPTION_INT, "runs", "N",
     "runs that count (default: 5; 30 on a GPU)", .offset = AT(runs), .low = 1, .high = 100000},
    {OPTION_FLAG, "no-energy", NULL,
     "do not run three seconds more to count joules", .offset = AT(no_energy)},
    {OPTION_HEADING, .name = "Results"},
    {OPTION_FLAG, "verbose", NULL,
     "also say how much of the model the tuner's table knows", .offset = AT(verbose)},
    {OPTION_FLAG, "histogram", NULL, "also draw how the times are spread", .offset = AT(histogram)},
    {OPTION_OUTPUT, "json", "FILE", "also write the figures here", .offset = AT(json)},
    {OPTION_OUTPUT, "svg", "FILE", "also draw latency and samples/s against the batch", .offset = AT(svg)},
    {OPTION_TEXT, "published", "FILE",
     "draw the series of this file beside them, such as docs/peers.json", .offset = AT(published)},
    {OPTION_HEADING, .name = "A runner"},
    {OPTION_INT, "runner", "HZ",
     "time the control thread's call, openpi_runner_next, at this rate beside the model for --seconds",
     .offset = AT(runner), .low = 10, .high = 10000},
    {OPTION_HEADING, .name = "Calls in parts"},
    {OPTION_INT, "parts", "N",
     "instead: one call, N chunks of one observation from one prefix, denoising alone over a prefix that is "
     "kept, and one step of it", .offset = AT(parts), .low = 1, .high = OPENPI_MAX_BATCH},
    {OPTION_HEADING, .name = "A running server"},
    {OPTION_TEXT, "server", "URL",
     "measure the policy server at ws://HOST:PORT or wss://HOST instead of a model", .offset = AT(server)},
    {OPTION_INT, "robots", "N", "robots that connect (default: 1)",
     .offset = AT(robots), .low = 1, .high = 10000},
    {OPTION_TEXT, "rate", "HZ",
     "calls a second of each robot, by a clock of its own; 0: the next as soon as the reply is there "
     "(default: 5)", .offset = AT(rate)},
    {OPTION_INT, "jitter", "MS",
     "standard deviation of the times at which a robot asks (default: 0)",
     .offset = AT(jitter), .low = 0, .high = 10000},
    {OPTION_INT, "observations", "N",
     "a list of N observations a message, answered in one reply (default: one, without a list)",
     .offset = AT(observations), .low = 1, .high = OPENPI_MAX_OBSERVATIONS},
    {OPTION_TEXT, "api-key", "KEY", "the robots' key, for a server with tokens", .offset = AT(api_key)},
    {OPTION_INT, "greedy", "N",
     "further clients that ask without a pause", .offset = AT(greedy), .low = 1, .high = 10000},
    {OPTION_TEXT, "greedy-key", "KEY", "their key (default: none)", .offset = AT(greedy_key)},
    {OPTION_INT, "seconds", "N",
     "measure so long (default: 10); a server from when every robot had its warm-up replies",
     .offset = AT(seconds), .low = 1, .high = 86400},
    {OPTION_CHOICE, "env", "aloha|droid|libero|none",
     "requests of which of openpi's examples, or of the robot \"none\" (default: the one with as many "
     "actions as the server's robot)",
     .offset = AT(env)},
    {OPTION_HEADING, .name = "Best known"},
    {OPTION_OUTPUT, "save", "FILE",
     "write configuration, figures and roofs as the best known", .offset = AT(save)},
    {OPTION_TEXT, "best", "FILE", "run the configuration of such a file", .offset = AT(best)},
    {OPTION_TEXT, "against", "FILE",
     "compare with such a file, relative to the roofs of both runs: worse by more than the tolerance ends "
     "with status 1", .offset = AT(against)},
    {OPTION_INT, "tolerance", "PERCENT",
     "of --against (default: 3)", .offset = AT(tolerance), .low = 0, .high = 1000000},
    SUBJECT_MACHINE_OPTIONS(bench_values, subject),
    {0},
};

#define OF_SERVER "server", "the server has its own model and device"
#define OF_RUNNER "runner", "it times the control thread and no call of the model"
#define OF_PARTS "parts", "it times calls in parts alone"
#define ORDINARY "a saved configuration has no real-time chunking"
#define FROM_FILE "best", "the file contains the configuration"

static const option_pair needs[] = {{"tolerance", "against"}, {"published", "svg"}, {NULL, NULL}};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    LORA_CONFLICT,            {"adapter", FROM_FILE},   {"without-lora", FROM_FILE},
    {"", FROM_FILE},          {"synthetic", FROM_FILE}, {"variant", FROM_FILE}, {"batch", FROM_FILE},  {"cameras", FROM_FILE},
    {"prompt", FROM_FILE},    {"horizon", FROM_FILE},   {"steps", FROM_FILE},   {"seed", FROM_FILE},   {"warmup", FROM_FILE},
    {"runs", FROM_FILE},      {"device", FROM_FILE},    {"dtype", FROM_FILE}, {"weights", FROM_FILE},   {"threads", FROM_FILE}, {"isa", FROM_FILE},
    {"path", FROM_FILE},      {"as", FROM_FILE},        {"no-graph", FROM_FILE},  {"without", FROM_FILE}, {"table", FROM_FILE},  {"pin", FROM_FILE},
    {"changing-prompts", FROM_FILE},
    {"rtc", FROM_FILE},       {"delay", FROM_FILE},     {"rtc", "save", ORDINARY}, {"rtc", "against", ORDINARY}, {"rtc", OF_SERVER},
    {"", OF_SERVER},          {"synthetic", OF_SERVER}, {"variant", OF_SERVER}, {"batch", OF_SERVER},
    {"cameras", OF_SERVER},   {"prompt", OF_SERVER},    {"horizon", OF_SERVER}, {"steps", OF_SERVER},
    {"runs", OF_SERVER},      {"device", OF_SERVER},    {"svg", OF_SERVER},     {"save", OF_SERVER},
    {"best", OF_SERVER},      {"against", OF_SERVER},
    {"parts", OF_SERVER},     {"batch", OF_PARTS},      {"rtc", OF_PARTS},      {"svg", OF_PARTS},
    {"save", OF_PARTS},       {"against", OF_PARTS},    {"best", OF_PARTS},     {"runner", OF_PARTS},
    {"changing-prompts", OF_PARTS},
    {"runner", OF_SERVER},    {"batch", OF_RUNNER},     {"rtc", OF_RUNNER},     {"svg", OF_RUNNER},     {"save", OF_RUNNER},
    {"against", OF_RUNNER},   {"best", OF_RUNNER},
    {0},
};

static const example examples[] = {
    {"the published π0 at its published workload, synthetic weights", "openpi bench --synthetic full --dtype bf16"},
    {"a quick look on any machine", "openpi bench --synthetic tiny --runs 20 --histogram"},
    {"how a GPU scales, with a picture", "openpi bench --device cuda:0 --batch 1,2,4,8,16,32,64 --svg scaling.svg"},
    {"is the tail short while prompts change", "openpi bench --device cuda:0 --changing-prompts --runs 1000"},
    {"has it become slower", "openpi bench --best best/nvidia-h200.json --against best/nvidia-h200.json"},
    {"how long the control thread of an arm takes beside the model", "openpi bench --device cuda:0 --runner 1000"},
    {"what eight chunks of one observation cost", "openpi bench --device cuda:0 --parts 8"},
    {"how a running server answers 16 robots, 5 times a second each, beside 4 that never pause",
     "openpi bench --server ws://127.0.0.1:8000 --robots 16 --rate 5 --greedy 4"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"[--synthetic PRESET[:pi0|pi05[:SEED]]] [options]",
                                       "CHECKPOINT [options]", "--best FILE [--against FILE]",
                                       "--runner HZ [--seconds N] [options]", "--parts N [options]",
                                       "--server URL [--robots N] [--rate HZ] [--greedy N]",
                                       NULL};

const verb verb_bench = {
    .name = "bench",
    .summary = "how fast a model runs here, stage by stage",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description = "Runs one policy inference again and again: pictures, state, prompt tokens and noise in, "
                   "actions out. Without "
                   "a model it takes the full synthetic π0.\n\n"
                   "Two boundaries are reported: host (pictures, state and tokens in host memory to actions "
                   "in host memory) and "
                   "device (inputs and outputs resident on the device; on the CPU the two are one). Each "
                   "stage's median is set "
                   "against the compute and memory ceilings of this machine, measured in the same run; GB/s "
                   "counts weights. "
                   "Joules come from the device's own counter (NVML, RAPL) where it can be read.\n\n"
                   "--save keeps a run as the best known; --best runs its configuration again; --against "
                   "names every setting "
                   "that differs from it and compares each figure as its part of the roof of its own run.\n\n"
                   "--runner times the control thread's call of a runner (docs/runner.md) instead, beside "
                   "the model. "
                   "--server measures a running policy server instead, openpi's own or `openpi serve`: "
                   "robots that ask at their rates, and clients that ask without a pause. "
                   "Status 1 says that a robot was refused, cut off or answered with an error.",
    .options = options,
    .conflicts = conflicts,
    .needs = needs,
    .examples = examples,
    .values_bytes = sizeof(bench_values),
    .defaults = &defaults,
    .run = bench_verb_run,
};
