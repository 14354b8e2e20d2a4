/* labels: command */
/* The verbs beside run as a user meets them: status, words and files. */
#include "checkpoint/open.h"
#include "tiny_command.h"

static void test_synth_and_inspect(void **state) {
    (void)state;
    static const char *const words[] = {"a --preset tiny --variant pi05 --seed 8",
                                        "b --preset tiny --variant pi05 --seed 8 --shard-bytes 2MB",
                                        "c --variant pi05 --seed 8 --dims "
                                        "'{\"vision\":[144,2,2,208],\"vlm\":[128,3,8,256,272],\"expert\":[64,"
                                        "144],\"vocab\":2048}"
                                        "'"};
    char *first = NULL;
    assert_int_equal(run("run --synthetic tiny:pi05:8 --robot none --steps 1 --horizon 2 --image "
                         "base='%s/pictures/rgb.png' "
                         "--state 0 --prompt x --format csv",
                         TESTS_DIR),
                     0);
    first = out;
    out = NULL;
    for (size_t i = 0; i < 3; i++) {
        if (run("synth %s", words[i])) fail_msg("synth %s: %s", words[i], err);
        if (run("run %c --robot none --steps 1 --horizon 2 --image base='%s/pictures/rgb.png' --state 0 "
                "--prompt x --format csv",
                words[i][0], TESTS_DIR))
            fail_msg("run on synth %s: %s", words[i], err);
        assert_string_equal(out, first);
        assert_int_equal(run("synth %s", words[i]), 2);            /* the folder is not empty any more */
    }
    free(first);
    assert_int_equal(run("inspect a --json"), 0);
    json_t *root = parse(out, out_bytes);
    assert_string_equal(json_string_value(json_object_get(root, "variant")), "pi05");
    has_head(root, "inspect");
    json_decref(root);
    assert_int_equal(run("inspect a"), 0);
    if (strncmp(out, "what     π0.5", strlen("what     π0.5"))) fail_msg("%s", out);
    must_contain(out, "\nmemory   cpu, bf16: ");
    must_contain(out, "\ntype     openpi run a ");
    must_contain(out, "(default, not in the checkpoint)");
    must_contain(out, "variant");
    must_contain(out, "pi05");
    assert_int_equal(run("inspect open --robot droid"), 0);
    must_contain(out, "give --norm-stats, a norm_stats.json");
    assert_int_equal(run("inspect --synthetic full:pi05"), 0);
    must_contain(out, "billion");
}

/* The command looks where openpi downloads its tokenizer to. */
static void test_downloaded_tokenizer(void **state) {
    (void)state;
    static const char *const folders[] = {"home", "home/.cache", "home/.cache/openpi",
                                          "home/.cache/openpi/big_vision"};
    size_t bytes;
    char *model = slurp(GOLDEN "/tokenizer.model", &bytes), old[1024];
    snprintf(old, sizeof old, "%s", getenv("HOME") ? getenv("HOME") : "");
    for (int i = 0; i < 4; i++) assert_int_equal(mkdir(scratch_path(&box, folders[i]), 0700), 0);
    assert_int_equal(setenv("HOME", scratch_path(&box, "home"), 1), 0);
    assert_int_equal(run("synth no_tokenizer --preset odd"), 0);
    unlink(scratch_path(&box, "no_tokenizer/tokenizer.model"));
    assert_int_equal(run("inspect no_tokenizer"), 0);
    must_contain(out, "no tokenizer");
    must_contain(out, "missing  ");
    assert_null(strstr(out, "missing  nothing"));
    must_contain(out, "type     openpi run no_tokenizer --tokenizer FILE --image CAMERA=FILE");
    assert_int_equal(
        scratch_write(&box, "home/.cache/openpi/big_vision/paligemma_tokenizer.model", model, bytes), 0);
    assert_int_equal(run("inspect no_tokenizer"), 0);
    assert_null(strstr(out, "no tokenizer"));
    if (*old) setenv("HOME", old, 1);
    else unsetenv("HOME");
    free(model);
}

static void test_devices(void **state) {
    (void)state;
    assert_int_equal(run("devices"), 0);
    must_contain(out, "cpu");
    assert_int_equal(run("devices --json"), 0);
    json_t *root = parse(out, out_bytes);
    json_t *first = json_array_get(json_object_get(root, "devices"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "cpu");
    assert_true(json_is_boolean(json_object_get(first, "usable")));
    has_head(root, "devices");
    json_decref(root);
}

/* The golden as it is passes; with one expected action moved by 3e-4 it fails, and the status says so. */
static void test_verify(void **state) {
    (void)state;
    assert_int_equal(run("verify '%s/model/pi0_tiny.safetensors'", GOLDEN), 0);
    must_contain(out, "1 ok, 0 FAIL, 0 skipped");
    size_t bytes;
    openpi_error error = OPENPI_ERROR_INIT;
    char path[512], *copy;
    tensors *golden;
    snprintf(path, sizeof path, "%s/model/pi0_tiny.safetensors", GOLDEN);
    copy = slurp(path, &bytes);
    assert_int_equal(tensors_open(path, &golden, &error), OPENPI_OK);
    assert_int_equal(tensors_load(golden, &error), OPENPI_OK);
    const tensor *actions = tensors_find(golden, "actions.jax_f32");
    size_t place = 0; /* where the tensor's bytes lie in the file */
    while (place + (size_t)actions->count * 4 <= bytes &&
           memcmp(copy + place, actions->data, (size_t)actions->count * 4))
        place++;
    float value;
    memcpy(&value, copy + place + 40, 4);
    value += 3e-4f;
    memcpy(copy + place + 40, &value, 4);
    tensors_close(golden);
    assert_int_equal(scratch_write(&box, "pi0_tiny.safetensors", copy, bytes), 0);
    free(copy);
    assert_int_equal(run("verify pi0_tiny.safetensors"), 1);
    must_contain(out, "FAIL: ");
    must_contain(out, "0 ok, 1 FAIL, 0 skipped");
}

/* Where no model can run as the options say, nothing was judged: that is no FAIL. */
static void test_verify_machine(void **state) {
    static const struct {
        const char *option, *sentence;
        int status;
    } wrong[] = {
        {"--device cuda:77", "openpi verify: cuda:77", 3},
        {"--isa avx51", "openpi verify: --isa is \"avx51\", expected reference, ", 2},
        {"--path hopper", "openpi verify: --path is \"hopper\", expected none on cpu", 2},
        {"--without fused-qk", "openpi verify: there is no switch \"fused-qk\"", 2},
        {"--table absent.json", "openpi verify: absent.json: cannot be opened", 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(run("verify '%s/model/pi0_tiny.safetensors' %s", GOLDEN, wrong[i].option),
                         wrong[i].status);
        must_contain(err, wrong[i].sentence);
        assert_string_equal(out, "");
    }
}

/* Requests as clients send them in, findings out; what they mean is tests/measure/test_doctor.c. */
static void test_doctor(void **state) {
    (void)state;
    static const char golden[] = GOLDEN "/policy/aloha_sim/request.msgpack";
    assert_int_equal(run("doctor --synthetic tiny --robot aloha_sim --observations '%s' --chunks 0 "
                         "--json d.json --html d.html", golden), 0);
    must_contain(out, "camera images/cam_high is live");
    must_contain(out, "warnings: nothing is surely wrong");
    char *text = slurp(scratch_path(&box, "d.json"), NULL);
    must_contain(text, "\"verdict\": \"warning\"");
    free(text);
    text = slurp(scratch_path(&box, "d.html"), NULL);
    must_contain(text, "<p class=\"warning\">warnings: nothing is surely wrong</p>");
    must_contain(text, "<td>camera</td><td>camera images/cam_high is live");
    must_contain(text, "</html>\n");
    free(text);
    assert_int_equal(run("doctor --synthetic tiny --robot droid --observations '%s' --chunks 0", golden), 1);
    must_contain(out, "wrong    request: 1 of 1 requests are refused, the first is ");
    assert_int_equal(run("doctor --synthetic tiny --robot droid"), 2);
    must_contain(err, "no requests: give --observations FOLDER");
    assert_int_equal(run("doctor --synthetic tiny --robot droid --observations absent"), 2);
    must_contain(err, "absent: nothing of that name is there");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synth_and_inspect),
        cmocka_unit_test(test_doctor),
        cmocka_unit_test(test_downloaded_tokenizer),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_verify_machine),
    };
    return cmocka_run_group_tests(tests, open_examples, close_box);
}
