/* Goldens that a user recorded with tools/record-golden: openpi's or LeRobot's own results on the user's
 * checkpoint and observations. docs/verify.md describes the file.
 *
 *   identity        the tensors of --checkpoint are those that were recorded: names, shapes, a hash of values
 *   model level     prepared tensors and noise -> normalised actions, with every stage (verify_model.h)
 *   policy level    an observation as a client sends it -> the prepared sample -> robot actions
 *
 * The weights are the user's, so bounds are relative. fp32: x holds rounding errors in proportion to its
 * largest value, so the actions may be off by 1e-4 of it (2e-4 on a GPU): the bound of the project's
 * full-size goldens, whose largest value is 4 to 5. bf16: the recorder also ran the model in bf16; its
 * distance from its own fp32 sets the bound. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/report.h"
#include "lab/verify/verify_recorded.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/open.h"

enum { EDGE = 256 };

static const char format_name[] = "openpi golden 1";
static const double bound_cpu = 1e-4, bound_gpu = 2e-4;      /* share of the largest value of x            */
static const double bf16_rms = 1.5, bf16_max = 3;            /* times the recorded bf16's own distance     */

int verify_is_recorded(const char *path) {
    tensors *file;
    if (tensors_open(path, &file, NULL) != OPENPI_OK) return 0;
    const char *format = tensors_metadata(file, "format");
    int is = format && !strncmp(format, "openpi golden", 13);
    tensors_close(file);
    return is;
}

/* ---- identity --------------------------------------------------------------------------------------- */

/* FNV-1a64 over a tensor's first and last 256 values, as bf16: a checkpoint converted to another type keeps
 * it. */
static uint64_t edges_hash(const tensor *t) {
    uint16_t bits[2 * EDGE];
    int64_t count = t->count < EDGE ? t->count : EDGE;
    tensor_read_bf16(t, 0, count, bits);
    tensor_read_bf16(t, t->count - count, count, bits + count);
    return fnv1a64(bits, (size_t)count * 2 * sizeof *bits);
}

static openpi_status same_tensor(const recorded *r, const tensors *checkpoint, const char *name,
                                 const json_t *row, openpi_error *error) {
    const char *folder = r->path, *hash = json_string_value(json_array_get(row, 1));
    const json_t *shape = json_array_get(row, 0);
    const tensor *t = tensors_find(checkpoint, name);
    char found[17];
    if (!json_is_array(shape) || !hash)
        return report(error, OPENPI_BAD_FILE, "%s: metadata weights: %s has no [shape, hash]", folder, name);
    if (!t)
        return report(error, OPENPI_BAD_INPUT,
                      "recorded from another checkpoint: it has tensor %s, this one does not", name);
    int same = (int)json_array_size(shape) == t->rank;
    for (int i = 0; same && i < t->rank; i++)
        same = json_integer_value(json_array_get(shape, (size_t)i)) == t->shape[i];
    if (!same)
        return report(error, OPENPI_BAD_INPUT,
                      "recorded from another checkpoint: tensor %s has another shape there", name);
    TRY(tensors_stage(checkpoint, tensor_stage(t), NULL, error));
    snprintf(found, sizeof found, "%016" PRIx64, edges_hash(t));
    if (strcmp(found, hash))
        return report(error, OPENPI_BAD_INPUT,
                      "recorded from other weights: the hash of tensor %s is %s there, %s in this checkpoint",
                      name, hash, found);
    return OPENPI_OK;
}

static void close_checkpoint(void *thing) { checkpoint_close(thing); }

static openpi_status same_weights(verify_case *c, const recorded *r, const tensors *file,
                                  openpi_error *error) {
    const checkpoint_source source = {.path = c->options->checkpoint,
                                      .adapter = c->options->adapter,
                                      .without_lora = c->options->without_lora,
                                      .missing_chunks_are_zero =
                                          c->options->missing_chunks_are_zero};
    checkpoint *checkpoint;
    json_t *weights, *row;
    const char *name;
    if (!c->options->checkpoint)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "recorded from a checkpoint of its own: give --checkpoint DIR");
    TRY(golden_json(c, file, r->path, "weights", &weights, error));
    if (!json_object_size(weights))
        return report(error, OPENPI_BAD_FILE,
                      "%s: metadata weights is absent, expected {tensor: [shape, hash]}", r->path);
    TRY(checkpoint_open_source(&source, &checkpoint, error));
    TRY(case_close_later(c, close_checkpoint, checkpoint, error));
    json_object_foreach(weights, name, row) TRY(same_tensor(r, checkpoint->tensors, name, row, error));
    return tensors_check(checkpoint->tensors, error);
}

/* ---- reading ---------------------------------------------------------------------------------------- */

static openpi_status read_metadata(const tensors *file, recorded *r, openpi_error *error) {
    golden_model *g = &r->model;
    const char *format = tensors_metadata(file, "format"), *layout = tensors_metadata(file, "layout");
    const char *dims = tensors_metadata(file, "dims");
    if (!format || strcmp(format, format_name))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: metadata format is \"%.40s\", this program reads \"%s\"", r->path,
                      format ? format : "", format_name);
    if (!layout || (strcmp(layout, "openpi") && strcmp(layout, "lerobot")))
        return report(error, OPENPI_BAD_FILE, "%s: metadata layout is \"%.40s\", expected openpi or lerobot",
                      r->path, layout ? layout : "");
    r->lerobot = !strcmp(layout, "lerobot");
    if (!dims) return report(error, OPENPI_BAD_FILE, "%s: metadata dims is absent", r->path);
    TRY(golden_variant(file, r->path, &g->synthetic.variant, error));
    TRY(openpi_dims_parse(dims, &g->synthetic.dims, error));
    TRY(golden_integer(file, r->path, "horizon", 1, OPENPI_MAX_HORIZON, -1, &g->H, error));
    TRY(golden_integer(file, r->path, "steps", 1, OPENPI_MAX_STEPS, -1, &g->N, error));
    TRY(golden_integer(file, r->path, "max_tokens", 1, 4096, -1, &g->L, error));
    r->config = tensors_metadata(file, "config");
    return OPENPI_OK;
}

static double largest(const float *values, int64_t count, double so_far) {
    for (int64_t i = 0; i < count; i++) so_far = fmax(so_far, fabs((double)values[i]));
    return so_far;
}

/* x starts as the noise and ends as the actions: the larger of the two is its scale. */
static openpi_status read_bounds(verify_case *c, const tensors *file, recorded *r, openpi_error *error) {
    golden_model *g = &r->model;
    int64_t count = g->B * g->H * DIMS;
    double scale = largest(g->noise, count, 0);
    distance d = {0};
    float *rounded;
    g->truth_name = "actions.f32";
    if (tensors_find(file, g->truth_name)) {
        TRY(golden_f32(c, file, g->truth_name, 3, SHAPE(g->B, g->H, DIMS), &g->truth, error));
        scale = largest(g->truth, count, scale);
    }
    g->bound_cpu = bound_cpu * scale;
    g->bound_gpu = bound_gpu * scale;
    g->agree = g->bound_cpu / 2;
    r->rounded = g->truth && tensors_find(file, "actions.bf16");
    if (!r->rounded) return OPENPI_OK;
    TRY(golden_f32(c, file, "actions.bf16", 3, SHAPE(g->B, g->H, DIMS), &rounded, error));
    for (int64_t i = 0; i < count; i++) distance_add(&d, (double)rounded[i], (double)g->truth[i]);
    distance_bounds(&d, bf16_rms, bf16_max, &g->bound_bf16_max, &g->bound_bf16_rms);
    return OPENPI_OK;
}

openpi_status recorded_read(verify_case *c, recorded *r, tensors **file, int *judged,
                                 openpi_error *error) {
    snprintf(c->row.dtype, sizeof c->row.dtype, "%s", c->options->dtype == OPENPI_F32 ? "f32" : "bf16");
    TRY(case_manifest(c, r->path, error));
    TRY(case_open(c, r->path, file, error));
    TRY(read_metadata(*file, r, error));
    TRY(same_weights(c, r, *file, error));
    TRY(model_inputs(c, *file, r->path, &r->model, error));
    TRY(read_bounds(c, *file, r, error));
    *judged = c->options->dtype == OPENPI_F32 || r->rounded;
    if (*judged) return OPENPI_OK;
    c->row.result = VERIFY_SKIPPED;
    snprintf(c->row.detail, sizeof c->row.detail,
             "no actions.bf16 in the golden, whose distance from actions.f32 is the bound");
    return OPENPI_OK;
}

static int same_dims(const openpi_dims *a, const openpi_dims *b) { return !memcmp(a, b, sizeof *a); }

openpi_status recorded_engine(verify_case *c, recorded *r, openpi_error *error) {
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    const golden_model *g = &r->model;
    if (!r->engine) TRY(case_checkpoint(c, &r->engine, error));
    case_on_engine(c, r->engine);
    TRY(openpi_engine_get_info(r->engine, &info, error));
    if (info.variant != g->synthetic.variant || info.lerobot != r->lerobot ||
        !same_dims(&info.dims, &g->synthetic.dims))
        return report(error, OPENPI_BAD_INPUT, "recorded from another checkpoint: its %s differs",
                      info.variant != g->synthetic.variant ? "variant (π0 or π0.5)"
                      : info.lerobot != r->lerobot         ? "layout (openpi or LeRobot)"
                                                           : "sizes");
    return OPENPI_OK;
}

/* ---- model level ------------------------------------------------------------------------------------ */

static openpi_status model_level(verify_case *c, recorded *r, openpi_error *error) {
    golden_model *g = &r->model;
    tensors *file;
    int judged;
    TRY(recorded_read(c, r, &file, &judged, error));
    if (!judged) return OPENPI_OK;
    if (tensors_find(file, "stage.time")) TRY(model_stages(c, file, g, error));
    TRY(model_prepare(c, g, error));
    if (g->time) model_consistent(c, g);
    TRY(recorded_engine(c, r, error));
    return model_judge(c, g, r->engine, error);
}

/* ---- rows ------------------------------------------------------------------------------------------- */

static const struct {
    const char *name,
        *tensor; /* of the level, and the one tensor that shows that it was recorded            */
    openpi_status (*judge)(verify_case *c, recorded *r, openpi_error *error);
} levels[] = {{"model", "actions.f32", model_level}, {"policy", "request.0", recorded_policy_level}};

enum { LEVELS = sizeof levels / sizeof *levels };

static openpi_status recorded_levels(const char *path, int *has, openpi_error *error) {
    tensors *file;
    TRY(tensors_open(path, &file, error));
    int any = 0, known = tensors_metadata(file, "format") != NULL;
    for (int i = 0; i < LEVELS; i++) any |= has[i] = tensors_find(file, levels[i].tensor) != NULL;
    tensors_close(file);
    if (!known)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "not recorded by tools/record-golden: verify it without --checkpoint");
    return any ? OPENPI_OK
               : report(error, OPENPI_BAD_FILE, "%s: neither actions.f32 nor request.0: nothing was recorded",
                        path);
}

openpi_status verify_recorded(verify_walk *walk, const char *path, openpi_error *error) {
    static const openpi_dtype dtypes[] = {OPENPI_F32, OPENPI_BF16};
    const openpi_dtype given = walk->options.dtype;
    int has[LEVELS];
    char name[sizeof((verify_row *)0)->name];
    verify_case c;
    verify_name(path, name, sizeof name);
    openpi_status status = recorded_levels(path, has, error);
    if (status != OPENPI_OK) {
        case_begin(&c, walk, name);
        case_end(&c, walk, status, error);
        return OPENPI_OK;
    }
    for (int t = 0; t < 2; t++) {
        openpi_engine *engine = NULL;
        if (dtypes[t] != given && !walk->every_dtype) continue;
        walk->options.dtype = dtypes[t];
        for (int i = 0; i < LEVELS; i++) {
            recorded r = {.path = path, .engine = engine, .model.synthetic = OPENPI_SYNTHETIC_INIT};
            char row[2 * sizeof name];
            if (!has[i]) continue;
            snprintf(row, sizeof row, "%s %s", name, levels[i].name);
            case_begin(&c, walk, row);
            case_end(&c, walk, levels[i].judge(&c, &r, error), error);
            engine = r.engine;
        }
        openpi_engine_close(engine);
    }
    walk->options.dtype = given;
    return OPENPI_OK;
}
