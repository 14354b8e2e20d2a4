/* LeRobot's goldens of real-time chunking: a row for every case, the chunk that LeRobot computed with these
 * settings from the observation and the noise of pi05/expected, and one for the weights of all overlaps.
 *
 * Bounds are those of the other goldens (tests/golden/README.md), weights within 2e-7. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"
#include "lab/verify/verify_lerobot.h"
#include "model/chunking.h"

enum { NAME = 64 };

/* A case's settings. */
typedef struct golden_chunking {
    const char *name;
    openpi_rtc rtc;              /* `previous` is not set yet                                             */
    int max_delay;
} golden_chunking;

static openpi_status read_settings(const json_t *about, const char *name, const char *path,
                                   golden_chunking *out, openpi_error *error) {
    static const char *const schedules[] = {"ZEROS", "ONES", "LINEAR", "EXP"};
    const json_t *mode = json_object_get(about, "mode"),
                 *schedule = json_object_get(about, "schedule"),
                 *weight = json_object_get(about, "max_guidance_weight");
    *out = (golden_chunking){.name = name, .rtc = OPENPI_RTC_INIT};
    const struct {
        const char *key;
        int *out;
    } numbers[] = {{"inference_delay", &out->rtc.delay},
                   {"execution_horizon", &out->rtc.horizon},
                   {"rows", &out->rtc.rows},
                   {"dims", &out->rtc.dims},
                   {"rtc_training_max_delay", &out->max_delay}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(json_get_int(about, numbers[i].key, path, 0, OPENPI_MAX_HORIZON, numbers[i].out, error));
    if (!json_is_string(mode) || !json_is_string(schedule) || !json_is_number(weight))
        return report(error, OPENPI_BAD_FILE,
                      "%s: metadata case %s lacks one of mode, schedule and max_guidance_weight", path, name);
    out->rtc.mode = strcmp(json_string_value(mode), "trained") ? OPENPI_RTC_GUIDED : OPENPI_RTC_TRAINED;
    out->rtc.max_weight = json_number_value(weight);
    for (int i = 0; i < 4; i++)
        if (!strcmp(schedules[i], json_string_value(schedule)))
            out->rtc.schedule = (openpi_rtc_schedule)(OPENPI_RTC_ZEROS + i);
    if (out->rtc.schedule) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: metadata case %s: schedule is \"%s\", expected ZEROS, ONES, "
                  "LINEAR or EXP", path, name, json_string_value(schedule));
}

static openpi_status compare_weights(verify_case *c, const tensors *file, const golden_chunking *g,
                                     openpi_error *error) {
    char name[NAME];
    int64_t shape[] = {-1};
    float *expected, weights[OPENPI_MAX_HORIZON];
    double got[OPENPI_MAX_HORIZON], wide[OPENPI_MAX_HORIZON];
    if (g->rtc.mode != OPENPI_RTC_GUIDED) return OPENPI_OK;
    snprintf(name, sizeof name, "%s.weights", g->name);
    TRY(golden_f32(c, file, name, 1, shape, &expected, error));
    if (shape[0] > OPENPI_MAX_HORIZON)
        return report(error, OPENPI_BAD_FILE, "%s has %" PRId64 " numbers, expected at most %d", name,
                      shape[0], OPENPI_MAX_HORIZON);
    int end = g->rtc.horizon < g->rtc.rows ? g->rtc.horizon : g->rtc.rows;
    chunking_weights(g->rtc.schedule, g->rtc.delay, end, (int)shape[0], weights);
    for (int k = 0; k < (int)shape[0]; k++) got[k] = (double)weights[k], wide[k] = (double)expected[k];
    case_near(c, name, got, wide, shape[0], 2e-7);
    return OPENPI_OK;
}

static openpi_status run_case(verify_case *c, const char *folder, const char *path, golden_chunking *g,
                              openpi_error *error) {
    char *beside, *observed, name[NAME];
    float *expected, *whole, *previous, *chunk;
    tensors *file;
    openpi_engine *engine;
    openpi_session *session;
    distance d = {0};
    TRY(case_join(c, folder, "../pi05", &beside, error));
    TRY(case_join(c, beside, "expected.safetensors", &observed, error));
    golden_lerobot of = LEROBOT_GOLDEN(beside, observed);
    TRY(lerobot_golden(c, &of, error));
    TRY(lerobot_observation(c, &of, error));
    TRY(case_open(c, path, &file, error));
    snprintf(name, sizeof name, "%s.actions_model", g->name);
    TRY(golden_f32(c, file, name, 2, SHAPE(of.H, DIMS), &expected, error));
    TRY(golden_f32(c, file, "in.previous", 2, SHAPE(of.H, DIMS), &whole, error));
    TRY(case_take(c, (size_t)(of.H * DIMS), sizeof *previous, &previous, error));
    for (int r = 0; r < g->rtc.rows; r++)
        memcpy(previous + r * g->rtc.dims, whole + r * DIMS, (size_t)g->rtc.dims * sizeof *previous);
    TRY(case_take(c, (size_t)(of.H * DIMS), sizeof *chunk, &chunk, error));
    g->rtc.previous = previous;
    of.synthetic.rtc_max_delay = g->max_delay;
    TRY(case_engine(c, &of.synthetic, &engine, error));
    TRY(case_chunking_session(c, engine, (int)of.H, of.steps, (int)of.L, &session, error));
    TRY(openpi_session_run_rtc(session, &of.sample, &g->rtc, 1, of.noise, chunk, NULL, error));
    for (int64_t i = 0; i < of.H * DIMS; i++) distance_add(&d, (double)chunk[i], (double)expected[i]);
    action_bounds bounds = case_bounds(c, engine, 2e-4, expected, of.noise, (size_t)(of.H * DIMS));
    case_actions(c, name, &d, bounds.max, bounds.rms);
    if (g->rtc.mode == OPENPI_RTC_TRAINED)
        for (int k = 0; k < g->rtc.delay; k++)
            case_same_f32(c, "the known rows", chunk + k * DIMS, previous + k * g->rtc.dims, g->rtc.dims);
    return OPENPI_OK;
}

/* The file's cases; all of them are read before the first runs. */
static openpi_status read_cases(verify_case *c, const char *folder, const char *path, golden_chunking **out,
                                int *count, openpi_error *error) {
    tensors *file;
    json_t *about, *settings;
    const char *name;
    TRY(case_manifest(c, folder, error));
    TRY(case_open(c, path, &file, error));
    TRY(golden_json(c, file, path, "case", &about, error));
    if (!json_object_size(about))
        return report(error, OPENPI_BAD_FILE, "%s: metadata case has no settings", path);
    TRY(case_take(c, json_object_size(about), sizeof **out, out, error));
    *count = 0;
    json_object_foreach(about, name, settings) {
        golden_chunking *g = &(*out)[(*count)++];
        TRY(read_settings(settings, name, path, g, error));
        TRY(compare_weights(c, file, g, error));
    }
    return OPENPI_OK;
}

openpi_status verify_chunking(verify_walk *walk, verify_case *weights, const char *folder, const char *path,
                              openpi_error *error) {
    golden_chunking *list = NULL;
    verify_case one = *weights;
    int count = 0;
    openpi_status status = read_cases(weights, folder, path, &list, &count, error);
    for (int i = 0; i < count && status == OPENPI_OK && !case_failed(weights); i++) {
        char name[sizeof one.row.name];
        snprintf(name, sizeof name, "%.*s/%s", (int)(sizeof name - NAME), weights->row.name, list[i].name);
        case_begin(&one, walk, name);
        case_end(&one, walk, run_case(&one, folder, path, &list[i], error), error);
    }
    case_end(weights, walk, status, error);
    return OPENPI_OK;
}
