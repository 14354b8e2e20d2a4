/* labels: command */
/* Checkpoints as LeRobot saves them, where every tensor's name begins with "model.": each verb reads them,
 * with their own robot (LeRobot's processors) and with one of openpi's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "adapter_write.h"
#include "openpi.h"
#include "scratch.h"

#include "command.h"

#define CALL " --prompt x --steps 1 --horizon 2 --format csv "
#define EIGHT "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7"
#define OWN                                                                      \
    "--image left_wrist_0_rgb='" TESTS_DIR "/pictures/rgb.png' --state " EIGHT   \
    "," EIGHT "," EIGHT "," EIGHT CALL
#define LOOK "--image base='" TESTS_DIR "/pictures/rgb.png' --state 0.3" CALL
#define NONE "--robot none " LOOK
#define DROID                                                                                          \
    "--robot droid --norm-stats '" GOLDEN "/policy/droid_jointpos/norm_stats.json' --image "           \
    "observation/exterior_image_1_left='" TESTS_DIR "/pictures/rgb.png' --image "                      \
    "observation/wrist_image_left='" TESTS_DIR "/pictures/rgb.png' --state " EIGHT CALL

/* Of each variant: LeRobot's folder, its weights alone, and the same weights under openpi's names. */
static const struct {
    const char *lerobot, *weights, *openpi;
} models[] = {{"pi0_lerobot", "pi0_weights", "pi0_openpi"},
              {"pi05_lerobot", "pi05_weights", "pi05_openpi"}};

enum { MODELS = sizeof models / sizeof *models };

/* The actions that `run` gives for a model. */
static char *actions(const char *model, const char *options) {
    if (run("run %s %s", model, options)) fail_msg("run %s %s: %s", model, options, err);
    return strdup(out);
}

static void must_agree(const char *one, const char *other, const char *options) {
    char *a = actions(one, options), *b = actions(other, options);
    assert_string_equal(a, b);
    free(a), free(b);
}

/* LeRobot counts the times of a call in double, so the last digits may differ from openpi's. */
static void must_be_close(const char *one, const char *other, const char *options) {
    char *a = actions(one, options), *b = actions(other, options), *x = strchr(a, '\n'), *y = strchr(b, '\n');
    int numbers = 0;
    while (x && *x && *++x && *++y) {
        char *end;
        double p = strtod(x, &end), q = strtod(y, &y);
        if (end == x) break;
        if (fabs(p - q) > 1e-3 * (1 + fabs(q))) fail_msg("%s %s: %g, %s: %g", one, options, p, other, q);
        x = end;
        numbers++;
    }
    if (numbers < 2 * 9) fail_msg("%d numbers in:\n%s", numbers, a);       /* two steps of step and 8 */
    free(a), free(b);
}

static void test_run(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        free(actions(models[i].lerobot, OWN));
        must_be_close(models[i].lerobot, models[i].openpi, DROID);
        must_be_close(models[i].lerobot, models[i].openpi, NONE);
        must_agree(models[i].weights, models[i].openpi, DROID);
        must_agree(models[i].weights, models[i].openpi, NONE);
    }
}

/* A robot of the other variant is refused, which takes knowing the variant. */
static void test_variant(void **state) {
    (void)state;
    must_refuse("run pi0_lerobot --config pi05_droid " LOOK,
                "config \"pi05_droid\" is for π0.5, but pi0_lerobot is a π0 model");
    must_refuse("run pi05_lerobot --config pi0_droid " LOOK,
                "config \"pi0_droid\" is for π0, but pi05_lerobot is a π0.5 model");
}

static void test_other_verbs(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        assert_int_equal(run("inspect %s --json --robot droid --norm-stats '" GOLDEN
                             "/policy/droid_jointpos/norm_stats.json'", models[i].lerobot), 0);
        json_t *root = json_loads(out, 0, NULL), *policy = json_object_get(root, "policy");
        assert_non_null(root);
        if (!policy || json_object_get(policy, "reason")) fail_msg("inspect %s: %s", models[i].lerobot, out);
        json_decref(root);
        if (run("bench %s --no-energy --warmup 0 --runs 1 --steps 1 --horizon 2 --prompt 3",
                models[i].lerobot))
            fail_msg("bench %s: %s", models[i].lerobot, err);
        if (run("convert %s converted --force --dtype f32", models[i].lerobot))
            fail_msg("convert %s: %s", models[i].lerobot, err);
        must_agree("converted", models[i].openpi, NONE "--dtype f32 --weights f32");
    }
}

/* An adapter of LeRobot's on a base of LeRobot's, with a robot of openpi's. */
static void test_adapter(void **state) {
    static tensor_list list;
    openpi_dims dims = OPENPI_DIMS_INIT;
    (void)state;
    assert_int_equal(openpi_dims_parse("tiny", &dims, NULL), OPENPI_OK);
    assert_int_equal(mkdir(scratch_path(&box, "lora"), 0777), 0);
    pair_add(&list, "model.state_proj", DTYPE_F32, 2, OPENPI_ACTION_DIM, dims.expert_width, 0.1f);
    adapter_write(&list, scratch_path(&box, "lora"),
                  "\"r\": 2, \"lora_alpha\": 7, \"base_model_name_or_path\": \"../pi0_lerobot\"");
    list_free(&list);
    must_agree("lora", "pi0_lerobot --adapter lora", DROID);
    must_agree("pi0_weights --adapter lora", "pi0_openpi --adapter lora", DROID);
    must_agree("lora --without-lora", "pi0_lerobot", DROID);
    char *with = actions("lora", DROID), *without = actions("pi0_lerobot", DROID);
    assert_string_not_equal(with, without);
    free(with), free(without);
}

/* The name of a slot that no camera of the checkpoint has means a camera by its position. It is told. */
static void test_camera_by_position(void **state) {
    static const char *const names[][2] = {{"base_0_rgb", "front_0cam"},
                                           {"right_wrist_0_rgb", "gripper_right_cam"},
                                           {"left_wrist_0_rgb", "gripper_left_cam"}};
    static const char picture[] = TESTS_DIR "/pictures/rgb.png";
    static const char rest[] = "--state pose.json --prompt go --steps 1 --horizon 2 --format csv";
    char config[600], pose[32 * 4] = "[0";
    size_t bytes;
    (void)state;
    for (int i = 1; i < 32; i++) strcat(pose, ",0");
    strcat(pose, "]");
    assert_int_equal(scratch_write(&box, "pose.json", pose, strlen(pose)), 0);
    assert_int_equal(run("synth places --preset tiny --variant pi05 --lerobot"), 0);
    snprintf(config, sizeof config, "%s/places/config.json", box.folder);
    char *text = slurp(config, &bytes);
    for (int i = 0; i < 3; i++)
        for (char *at = text; (at = strstr(at, names[i][0]));) memcpy(at, names[i][1], strlen(names[i][1]));
    assert_int_equal(scratch_write(&box, "places/config.json", text, bytes), 0);
    free(text);
    assert_int_equal(run("run places --image base='%s' %s", picture, rest), 0);
    must_contain(err, "openpi run: note: picture \"base\" was taken for camera \"front_0cam\" by its "
                      "position");
    char *by_position = strdup(out);
    assert_int_equal(run("run places --image front_0cam='%s' %s", picture, rest), 0);
    assert_null(strstr(err, "by its position"));
    assert_string_equal(out, by_position);
    free(by_position);
}

static int setup(void **state) {
    if (open_box(state)) return -1;
    for (int i = 0; i < MODELS; i++) {
        const char *variant = i ? "pi05" : "pi0";
        char from[600], to[600];
        if (run("synth %s --preset tiny --variant %s --lerobot", models[i].lerobot, variant) ||
            run("synth %s --preset tiny --variant %s", models[i].openpi, variant))
            return -1;
        if (mkdir(scratch_path(&box, models[i].weights), 0777)) return -1;
        for (int k = 0; k < 2; k++) {
            const char *file = k ? "tokenizer.model" : "model.safetensors";
            snprintf(from, sizeof from, "%s/%s/%s", box.folder, models[i].lerobot, file);
            snprintf(to, sizeof to, "%s/%s/%s", box.folder, models[i].weights, file);
            if (link(from, to)) return -1;
        }
    }
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_run), cmocka_unit_test(test_variant),
                                       cmocka_unit_test(test_other_verbs), cmocka_unit_test(test_adapter),
                                       cmocka_unit_test(test_camera_by_position)};
    return cmocka_run_group_tests(tests, setup, close_box);
}
