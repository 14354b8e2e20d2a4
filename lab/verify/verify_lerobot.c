/* LeRobot goldens: a saved checkpoint's processors around the model, or alone on a batch.
 *
 *   with a model      pictures, state, prompt -> prepared sample -> chunk -> actions, one observation a file
 *   pipelines alone   state and prompt -> prepared sample; chunk -> actions; relative actions both directions
 *   chunking          verify_chunking.c
 *
 * All processors are exact in LeRobot's fp32; pictures within 2e-6, the chunk within 2e-4
 * (tests/golden/README.md). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "lab/verify/verify_lerobot.h"

enum { SIDE = OPENPI_IMAGE_SIZE };

/* ---- opening ---------------------------------------------------------------------------------------- */

/* The option's tokenizer, or that of the sibling pi05; NULL where the checkpoint has its own. */
static openpi_status find_tokenizer(verify_case *c, const char *folder, const char *checkpoint, char **out,
                                    openpi_error *error) {
    char *own;
    *out = NULL;
    TRY(case_join(c, checkpoint, "tokenizer", &own, error));
    if (c->options->tokenizer) return case_tokenizer(c, folder, out, error);
    if (file_exists(own)) return OPENPI_OK;
    TRY(case_join(c, folder, "../pi05/checkpoint/tokenizer/tokenizer.json", out, error));
    if (file_exists(*out)) return case_manifest(c, *out, error);
    return case_tokenizer(c, folder, out, error);
}

openpi_status lerobot_golden(verify_case *c, golden_lerobot *g, openpi_error *error) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char *checkpoint, *tokenizer;
    TRY(case_manifest(c, g->folder, error));
    TRY(case_open(c, g->path, &g->file, error));
    TRY(golden_json(c, g->file, g->path, "case", &g->about, error));
    if (!json_is_object(g->about))
        return report(error, OPENPI_BAD_FILE, "%s: metadata case is no object", g->path);
    TRY(case_join(c, g->folder, "checkpoint", &checkpoint, error));
    TRY(find_tokenizer(c, g->folder, checkpoint, &tokenizer, error));
    options.tokenizer = tokenizer;
    TRY(case_policy(c, checkpoint, &options, &g->policy, &g->request, error));
    TRY(openpi_policy_get_info(g->policy, &g->info, error));
    g->L = g->info.max_prompt;
    g->n = g->info.state_length;
    g->a = g->info.action_dim;
    return OPENPI_OK;
}

/* ---- one observation -------------------------------------------------------------------------------- */

static openpi_status prepare(golden_lerobot *g, const openpi_image *images, int count, const float *state,
                             const json_t *task, openpi_error *error) {
    double wide[DIMS];
    if (!json_is_string(task))
        return report(error, OPENPI_BAD_FILE, "%s: a task of metadata case is no string", g->path);
    for (int64_t i = 0; i < g->n; i++) wide[i] = (double)state[i];
    openpi_observation observation = {.size = sizeof observation,
                                      .images = images,
                                      .image_count = count,
                                      .state = wide,
                                      .state_length = (int)g->n,
                                      .prompt = json_string_value(task),
                                      .prompt_length = json_string_length(task)};
    TRY(openpi_request_prepare(g->request, &observation, NULL, error));
    return openpi_request_sample(g->request, &g->sample, error);
}

static void compare_prompt(verify_case *c, const golden_lerobot *g, const float *state, const int32_t *tokens,
                           const uint8_t *mask, int row) {
    const openpi_sample *s = &g->sample;
    char what[32] = "state";
    float got[DIMS] = {0};
    int count;
    const double *prepared = openpi_request_state(g->request, &count);
    if (row >= 0) snprintf(what, sizeof what, "state of row %d", row);
    if (count != g->n) case_fail(c, "%s: %d numbers, expected %" PRId64, what, count, g->n);
    for (int i = 0; i < count && i < DIMS; i++) got[i] = (float)prepared[i];
    case_same_f32(c, what, got, state, g->n);
    if (s->state) case_same_f32(c, what, s->state, got, DIMS);
    if (row >= 0) snprintf(what, sizeof what, "tokens of row %d", row);
    case_prompt(c, row >= 0 ? what : "tokens", s->tokens, s->token_count, tokens, mask, (int)g->L);
}

/* The file's pictures, in.image.CAMERA, as a caller would name them. */
static openpi_status read_images(verify_case *c, const golden_lerobot *g, openpi_image *images, int *count,
                                 openpi_error *error) {
    static const char lead[] = "in.image.";
    *count = 0;
    for (int i = 0; i < tensors_count(g->file); i++) {
        const tensor *t = tensors_at(g->file, i);
        int64_t shape[] = {-1, -1, 3};
        float *floats;
        uint8_t *bytes;
        if (strncmp(t->name, lead, sizeof lead - 1)) continue;
        if (*count == OPENPI_CAMERAS)
            return report(error, OPENPI_BAD_FILE, "%s: more than %d pictures", g->path, OPENPI_CAMERAS);
        openpi_image *image = &images[*count];
        *image =
            (openpi_image){.size = sizeof *image, .name = t->name + sizeof lead - 1, .layout = OPENPI_HWC};
        if (t->type == DTYPE_U8) {
            TRY(golden_u8(c, g->file, t->name, 3, shape, &bytes, error));
            image->data = bytes;
            image->element = OPENPI_U8;
        } else {
            TRY(golden_f32(c, g->file, t->name, 3, shape, &floats, error));
            image->data = floats;
            image->element = OPENPI_FLOAT32;
        }
        image->height = (int)shape[0];
        image->width = (int)shape[1];
        ++*count;
    }
    return *count ? OPENPI_OK : report(error, OPENPI_BAD_FILE, "%s: no picture in.image.CAMERA", g->path);
}

/* One prepared picture (HWC) against rows of the golden's (CHW). */
static void compare_image(verify_case *c, const char *what, const float *got, const float *expected,
                          const int32_t *rows, int64_t count) {
    distance d = {0};
    for (int64_t channel = 0; channel < 3; channel++)
        for (int64_t r = 0; r < count; r++)
            for (int64_t x = 0; x < SIDE; x++) {
                int64_t y = rows ? rows[r] : r;
                double value = got ? (double)got[(y * SIDE + x) * 3 + channel] : -1;
                distance_add(&d, value, (double)expected[(channel * count + r) * SIDE + x]);
            }
    if (!(d.max <= (got ? 2e-6 : 0)))
        case_fail(c, "%s: element %" PRId64 " is off by %.2e, allowed 2e-6", what, d.worst, d.max);
}

static openpi_status compare_images(verify_case *c, const golden_lerobot *g, openpi_error *error) {
    static const char *const names[OPENPI_CAMERAS] = {"images, slot 0", "images, slot 1", "images, slot 2"};
    const openpi_sample *s = &g->sample;
    int64_t rows[] = {-1};
    uint8_t *mask;
    int32_t *at;
    float *images, *whole;
    TRY(golden_u8(c, g->file, "image_mask", 1, SHAPE(OPENPI_CAMERAS), &mask, error));
    TRY(golden_i32(c, g->file, "image_rows", 1, rows, &at, error));
    TRY(golden_f32(c, g->file, "images", 4, SHAPE(OPENPI_CAMERAS, 3, rows[0], SIDE), &images, error));
    for (int64_t r = 0; r < rows[0]; r++)
        if (at[r] < 0 || at[r] >= SIDE)
            return report(error, OPENPI_BAD_FILE, "%s: image_rows[%d] is %d, expected 0 to %d", g->path,
                          (int)r, (int)at[r], SIDE - 1);
    case_same_u8(c, "image_mask", s->image_mask, mask, OPENPI_CAMERAS);
    if (s->pixels != OPENPI_PIXELS_F32) {
        case_fail(c, "images: bytes, expected floats");
        return OPENPI_OK;
    }
    for (int i = 0; i < OPENPI_CAMERAS; i++)
        compare_image(c, names[i], s->image_mask[i] ? s->images[i] : NULL, images + i * 3 * rows[0] * SIDE,
                      at, rows[0]);
    if (!tensors_find(g->file, "image0")) return OPENPI_OK;
    TRY(golden_f32(c, g->file, "image0", 3, SHAPE(3, SIDE, SIDE), &whole, error));
    compare_image(c, "image0", s->image_mask[0] ? s->images[0] : NULL, whole, NULL, SIDE);
    return OPENPI_OK;
}

/* ---- with a model ----------------------------------------------------------------------------------- */

/* chunk [H][32] -> actions [H][a] in LeRobot's fp32. */
static openpi_status finish(verify_case *c, const golden_lerobot *g, const float *chunk, int64_t H,
                            float **out, openpi_error *error) {
    double *wide;
    TRY(case_take(c, (size_t)(H * DIMS), sizeof *wide, &wide, error));
    TRY(case_take(c, (size_t)(H * g->a), sizeof **out, out, error));
    TRY(openpi_request_finish(g->request, chunk, (int)H, wide, (size_t)(H * DIMS), error));
    for (int64_t i = 0; i < H * g->a; i++) (*out)[i] = (float)wide[i];
    return OPENPI_OK;
}

/* The slope of each action over its dimension of the chunk. */
static openpi_status slopes(verify_case *c, const golden_lerobot *g, double *slope, openpi_error *error) {
    float chunk[2 * DIMS] = {0}, *actions;
    for (int i = 0; i < DIMS; i++) chunk[DIMS + i] = 1;
    TRY(finish(c, g, chunk, 2, &actions, error));
    for (int64_t i = 0; i < g->a; i++) slope[i] = fabs((double)actions[g->a + i] - (double)actions[i]);
    return OPENPI_OK;
}

static openpi_status compare_actions(verify_case *c, const golden_lerobot *g, const openpi_engine *engine,
                                     const float *chunk, const float *expected, openpi_error *error) {
    int64_t H = g->H;
    float *actions, *model, *normalized, *finished;
    double slope[DIMS];
    distance d = {0}, scaled = {0};
    TRY(golden_f32(c, g->file, "actions_model", 2, SHAPE(H, DIMS), &model, error));
    for (int64_t i = 0; i < H * DIMS; i++) distance_add(&d, (double)chunk[i], (double)model[i]);
    action_bounds bounds = case_bounds(c, engine, 2e-4, model, g->noise, (size_t)(H * DIMS));
    case_actions(c, "actions_model", &d, bounds.max, bounds.rms);
    /* The golden's own tensors after the model follow from each other exactly. */
    TRY(golden_f32(c, g->file, "actions_normalized", 2, SHAPE(H, g->a), &normalized, error));
    for (int64_t h = 0; h < H; h++)
        case_same_f32(c, "actions_normalized", model + h * DIMS, normalized + h * g->a, g->a);
    TRY(finish(c, g, model, H, &finished, error));
    case_same_f32(c, "actions from the golden's actions_model", finished, expected, H * g->a);
    /* An action is rounded to fp32, so two units in its last place are allowed for any slope (a small std
     * with a large mean). */
    TRY(finish(c, g, chunk, H, &actions, error));
    TRY(slopes(c, g, slope, error));
    for (int64_t i = 0; i < H * g->a; i++) {
        double unit = slope[i % g->a] > 0 ? slope[i % g->a] : 1, places = 0x1p-22 * fabs((double)expected[i]);
        double off = fabs((double)actions[i] - (double)expected[i]);
        distance_add(&scaled, off <= places ? 0 : (off - places) / unit, 0);
    }
    case_actions(c, "actions in units of their statistics", &scaled, bounds.max, bounds.rms);
    return OPENPI_OK;
}

openpi_status lerobot_observation(verify_case *c, golden_lerobot *g, openpi_error *error) {
    openpi_image images[OPENPI_CAMERAS];
    int64_t noise_shape[] = {-1, DIMS};
    int count;
    const json_t *steps = json_object_get(g->about, "steps"), *seed = json_object_get(g->about, "seed");
    if (!json_is_integer(steps) || !json_is_integer(seed))
        return report(error, OPENPI_BAD_FILE, "%s: metadata case lacks steps or seed", g->path);
    TRY(golden_f32(c, g->file, "in.state", 1, SHAPE(g->n), &g->state, error));
    TRY(golden_f32(c, g->file, "in.noise", 2, noise_shape, &g->noise, error));
    g->H = noise_shape[0];
    g->steps = (int)json_integer_value(steps);
    TRY(openpi_dims_parse("tiny", &g->synthetic.dims, error));
    g->synthetic.variant = g->policy->variant;
    g->synthetic.lerobot = 1;
    g->synthetic.seed = (uint64_t)json_integer_value(seed);
    TRY(read_images(c, g, images, &count, error));
    return prepare(g, images, count, g->state, json_object_get(g->about, "task"), error);
}

static openpi_status model_golden(verify_case *c, golden_lerobot *g, openpi_error *error) {
    openpi_engine *engine;
    openpi_session *session;
    float *state, *expected, *chunk;
    int32_t *tokens;
    uint8_t *mask;
    TRY(golden_f32(c, g->file, "state", 1, SHAPE(g->n), &state, error));
    TRY(golden_i32(c, g->file, "tokens", 1, SHAPE(g->L), &tokens, error));
    TRY(golden_u8(c, g->file, "token_mask", 1, SHAPE(g->L), &mask, error));
    TRY(lerobot_observation(c, g, error));
    int64_t H = g->H;
    if (g->info.horizon != H)
        case_fail(c, "the checkpoint's chunk_size is %d, the golden's chunk has %d steps", g->info.horizon,
                  (int)H);
    TRY(golden_f32(c, g->file, "actions", 2, SHAPE(H, g->a), &expected, error));
    compare_prompt(c, g, state, tokens, mask, -1);
    TRY(compare_images(c, g, error));
    TRY(case_engine(c, &g->synthetic, &engine, error));
    TRY(case_session(c, engine, 1, (int)H, g->steps, (int)g->L, &session, error));
    TRY(case_take(c, (size_t)(H * DIMS), sizeof *chunk, &chunk, error));
    TRY(openpi_session_run(session, &g->sample, 1, g->noise, chunk, NULL, error));
    return compare_actions(c, g, engine, chunk, expected, error);
}

/* ---- pipelines alone -------------------------------------------------------------------------------- */

/* The training direction of one row, [steps][a]: absolute -> relative to the state -> normalised. */
static openpi_status compare_relative(verify_case *c, const golden_lerobot *g, const char *what,
                                      const float *absolute, const float *state, const float *expected,
                                      int64_t steps, openpi_error *error) {
    const lerobot *p = &g->policy->pipeline;
    const lerobot_norm *norm = NULL;
    for (int i = 0; i < p->after_count; i++)
        if (p->after[i].kind == LEROBOT_UNNORMALIZE) norm = &p->after[i].norm;
    if (!norm)
        return report(error, OPENPI_BAD_FILE, "%s: no unnormalizer in the checkpoint's postprocessor",
                      g->path);
    for (int64_t t = 0; t < steps; t++) {
        float x[DIMS];
        for (int64_t i = 0; i < g->a; i++)
            x[i] = p->relative[i] ? absolute[t * g->a + i] - state[i] : absolute[t * g->a + i];
        lerobot_normalize(norm, x, (int)g->a);
        case_same_f32(c, what, x, expected + t * g->a, g->a);
    }
    return OPENPI_OK;
}

static openpi_status relative_golden(verify_case *c, const golden_lerobot *g, const float *state, int64_t B,
                                     int64_t steps, openpi_error *error) {
    uint8_t *mask;
    float *absolute, *normalized, *leftover;
    if (!tensors_find(g->file, "relative_mask")) return OPENPI_OK;
    TRY(golden_u8(c, g->file, "relative_mask", 1, SHAPE(g->a), &mask, error));
    TRY(golden_f32(c, g->file, "in.actions_absolute", 3, SHAPE(B, steps, g->a), &absolute, error));
    TRY(golden_f32(c, g->file, "actions_absolute_normalized", 3, SHAPE(B, steps, g->a), &normalized, error));
    TRY(golden_f32(c, g->file, "leftover_normalized", 2, SHAPE(steps, g->a), &leftover, error));
    case_same_u8(c, "relative_mask", g->policy->pipeline.relative, mask, g->a);
    for (int64_t b = 0; b < B; b++)
        TRY(compare_relative(c, g, "actions_absolute_normalized", absolute + b * steps * g->a,
                             state + b * g->n, normalized + b * steps * g->a, steps, error));
    return compare_relative(c, g, "leftover_normalized", absolute, state, leftover, steps, error);
}

static openpi_status pipeline_golden(verify_case *c, golden_lerobot *g, openpi_error *error) {
    const json_t *tasks = json_object_get(g->about, "tasks");
    int64_t B = (int64_t)json_array_size(tasks), shape[] = {B, -1, g->a};
    float *in_state, *in_actions, *state, *expected;
    int32_t *tokens;
    uint8_t *mask, *picture;
    if (B < 1)
        return report(error, OPENPI_BAD_FILE, "%s: metadata case has neither a model's actions nor tasks",
                      g->path);
    TRY(golden_f32(c, g->file, "in.state", 2, SHAPE(B, g->n), &in_state, error));
    TRY(golden_f32(c, g->file, "in.actions_normalized", 3, shape, &in_actions, error));
    int64_t steps = shape[1];
    TRY(golden_f32(c, g->file, "state", 2, SHAPE(B, g->n), &state, error));
    TRY(golden_i32(c, g->file, "tokens", 2, SHAPE(B, g->L), &tokens, error));
    TRY(golden_u8(c, g->file, "token_mask", 2, SHAPE(B, g->L), &mask, error));
    TRY(golden_f32(c, g->file, "actions", 3, SHAPE(B, steps, g->a), &expected, error));
    /* the processors want a picture; these goldens have none */
    TRY(case_take(c, (size_t)SIDE * SIDE * 3, 1, &picture, error));
    openpi_image image = {
        .size = sizeof image, .name = g->info.cameras[0], .data = picture, .element = OPENPI_U8,
            .layout = OPENPI_HWC, .height = SIDE, .width = SIDE};
    for (int64_t b = 0; b < B; b++) {
        float *chunk, *actions;
        char what[40];
        TRY(prepare(g, &image, 1, in_state + b * g->n, json_array_get(tasks, (size_t)b), error));
        compare_prompt(c, g, state + b * g->n, tokens + b * g->L, mask + b * g->L, (int)b);
        TRY(case_take(c, (size_t)(steps * DIMS), sizeof *chunk, &chunk, error));
        for (int64_t t = 0; t < steps; t++)
            memcpy(chunk + t * DIMS, in_actions + (b * steps + t) * g->a, (size_t)g->a * sizeof *chunk);
        TRY(finish(c, g, chunk, steps, &actions, error));
        snprintf(what, sizeof what, "actions of row %d", (int)b);
        case_same_f32(c, what, actions, expected + b * steps * g->a, steps * g->a);
    }
    return relative_golden(c, g, in_state, B, steps, error);
}

/* ---- folders ---------------------------------------------------------------------------------------- */

static openpi_status lerobot_case(verify_case *c, const char *folder, const char *path, openpi_error *error) {
    golden_lerobot g = LEROBOT_GOLDEN(folder, path);
    TRY(lerobot_golden(c, &g, error));
    if (!tensors_find(g.file, "actions_model")) return pipeline_golden(c, &g, error);
    snprintf(c->row.dtype, sizeof c->row.dtype, "%s", c->options->dtype == OPENPI_F32 ? "f32" : "bf16");
    return model_golden(c, &g, error);
}

static openpi_status one_file(verify_walk *walk, const char *folder, const char *tail, const char *path,
                              openpi_error *error) {
    verify_case c;
    char name[sizeof c.row.name], *checkpoint;
    verify_name(folder, name, sizeof name);
    size_t at = strlen(name);
    snprintf(name + at, sizeof name - at, "%s", tail);
    case_begin(&c, walk, name);
    openpi_status status = case_join(&c, folder, "checkpoint", &checkpoint, error);
    int chunking = status == OPENPI_OK && !file_exists(checkpoint);
    if (status == OPENPI_OK && !chunking) status = lerobot_case(&c, folder, path, error);
    if (chunking) return verify_chunking(walk, &c, folder, path, error);
    case_end(&c, walk, status, error);
    return OPENPI_OK;
}

openpi_status verify_lerobot(verify_walk *walk, const char *folder, openpi_error *error) {
    static const struct {
        const char *file, *tail;
        int optional;                    /* only some have a second observation */
    } files[] = {{"expected.safetensors", "", 0}, {"expected_missing.safetensors", "/missing", 1}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = file_join(folder, files[i].file);
        if (!path) return report_no_memory(error, strlen(folder), "a path");
        openpi_status status = files[i].optional && !file_exists(path)
                                   ? OPENPI_OK
                                   : one_file(walk, folder, files[i].tail, path, error);
        free(path);
        TRY(status);
    }
    return OPENPI_OK;
}
