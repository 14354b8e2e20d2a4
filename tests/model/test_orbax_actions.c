/* labels: threads */
/* A model read from Orbax's arrays gives the actions of the same model read from safetensors, bit for bit:
 * both variants, both types, sizes that divide evenly and sizes that do not, arrays cut along every axis,
 * with LoRA and without. A number that is none is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>

#include "actions.h"
#include "checkpoint/checkpoint.h"
#include "orbax_write.h"
#include "policy_golden.h"
#include "scratch.h"

static openpi_error error = OPENPI_ERROR_INIT;

/* A synthetic model in both layouts, JAX's with LoRA or without; returns its tensors, which are in memory. */
static tensors *write_both(const char *model, int lora, scratch *torch, scratch *orbax) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    tensors *list = NULL;
    assert_int_equal(scratch_open(torch), 0);
    assert_int_equal(scratch_open(orbax), 0);
    WORKS(openpi_synthetic_parse(model, &synthetic, &error));
    WORKS(openpi_synthetic_write(&synthetic, torch->folder, 0, 1, NULL, NULL, &error));
    WORKS(tensors_open(torch->folder, &list, &error));
    WORKS(tensors_load(list, &error));
    tensors_close_files(list);
    orbax_write(orbax->folder, list, &synthetic.dims, synthetic.variant == OPENPI_PI05, lora);
    return list;
}

static void compare(const char *model, int lora) {
    scratch torch, orbax;
    tensors *list = write_both(model, lora, &torch, &orbax);
    for (int dtype = 0; dtype < 2; dtype++) {
        float want[ACTIONS], got[ACTIONS];
        actions_of(torch.folder, dtype ? OPENPI_F32 : OPENPI_BF16, OPENPI_WEIGHTS_AUTO, &torch, want);
        actions_of(orbax.folder, dtype ? OPENPI_F32 : OPENPI_BF16, OPENPI_WEIGHTS_AUTO, &orbax, got);
        assert_memory_equal(got, want, sizeof want);
    }
    tensors_close(list);
    scratch_close(&torch);
    scratch_close(&orbax);
}

static void same_actions(void **state) {
    static const char *const models[] = {"tiny:pi0:5", "odd:pi0:6", "tiny:pi05:7", "odd:pi05:8"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) compare(models[i], 0);
}

/* Base weights that lack a row, which the pairs restore. */
static void same_actions_lora(void **state) {
    (void)state;
    compare("tiny:pi0:9", 1);
    compare("odd:pi05:10", 1);
}

/* Five arrays of either stack. */
static void tells_lora(void **state) {
    (void)state;
    for (int lora = 0; lora < 2; lora++) {
        scratch torch, orbax;
        checkpoint *checkpoint;
        json_t *root;
        tensors *list = write_both("tiny:pi0:5", lora, &torch, &orbax);
        WORKS(checkpoint_open(orbax.folder, NULL, &checkpoint, &error));
        WORKS(checkpoint_describe(checkpoint, &root, &error));
        const json_t *told = json_object_get(root, "lora"), *arrays = json_object_get(told, "arrays");
        assert_int_equal(told != NULL, lora);
        assert_int_equal(json_array_size(arrays), lora ? 10 : 0);
        if (lora) assert_int_equal(json_integer_value(json_object_get(told, "factor")), 1);
        int einsums = 0;
        for (size_t i = 0; i < json_array_size(arrays); i++) {
            const json_t *row = json_array_get(arrays, i);
            const char *name = json_string_value(json_object_get(row, "array"));
            assert_int_equal(json_integer_value(json_object_get(row, "rank")), ORBAX_LORA_RANK);
            einsums += !strcmp(name, "PaliGemma.llm.layers.attn.attn_vec_einsum_1.w");
        }
        assert_int_equal(einsums, lora);
        json_decref(root);
        checkpoint_close(checkpoint);
        tensors_close(list);
        scratch_close(&torch);
        scratch_close(&orbax);
    }
}

/* One number of a layer that is decoded late, one of the embedding table. */
static void not_finite(void **state) {
    static const char *const names[] = {
        "paligemma_with_expert.gemma_expert.model.layers.1.mlp.down_proj.weight",
        "paligemma_with_expert.paligemma.lm_head.weight"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        scratch torch, orbax, broken;
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_engine *engine = NULL;
        static const bf16 nan = 0x7fc0;
        char piece[200];
        tensors *list = write_both("tiny:pi0:5", 0, &torch, &orbax);
        const tensor *t = tensors_find(list, names[i]);
        WORKS(openpi_synthetic_parse("tiny:pi0:5", &synthetic, &error));
        assert_non_null(t);
        memcpy((char *)(uintptr_t)t->data + 70 * sizeof nan, &nan, sizeof nan);
        assert_int_equal(scratch_open(&broken), 0);
        orbax_write(broken.folder, list, &synthetic.dims, 0, 0);
        snprintf(piece, sizeof piece,
                 "tensor \"%s\" has 1 element that is no finite bf16, the first is element 70", names[i]);
        REFUSES(openpi_engine_open(broken.folder, NULL, &engine, &error), OPENPI_BAD_FILE, piece);
        tensors_close(list);
        scratch_close(&torch);
        scratch_close(&orbax);
        scratch_close(&broken);
    }
}

/* Reports of loading: in bytes, on the calling thread, ascending to the end. */
typedef struct reports {
    pthread_t thread;
    int count, wrong;
    uint64_t done, total, largest_step;
} reports;

static void note(void *user, const char *what, uint64_t done, uint64_t total) {
    reports *r = user;
    if (strcmp(what, "decoding weights")) return;
    r->wrong += done < r->done || done > total || (r->count && total != r->total) ||
                !pthread_equal(r->thread, pthread_self());
    if (done - r->done > r->largest_step) r->largest_step = done - r->done;
    r->done = done;
    r->total = total;
    r->count++;
}

/* Alone, a thread reports every piece that it decodes; beside others the last report is there all the same.
 */
static void reports_bytes(void **state) {
    (void)state;
    scratch torch, orbax;
    tensors *list = write_both("tiny:pi05:5", 0, &torch, &orbax), *stored;
    uint64_t all = 0;
    WORKS(tensors_open(orbax.folder, &stored, &error));
    for (int i = 0; i < tensors_count(stored); i++)
        if (tensor_array(tensors_at(stored, i))) all += tensor_stored_bytes(tensors_at(stored, i));
    tensors_close(stored);
    for (int threads = 1; threads <= 3; threads++) {
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine *engine;
        reports r = {.thread = pthread_self()};
        options.threads = threads;
        options.progress = note;
        options.progress_user = &r;
        WORKS(openpi_engine_open(orbax.folder, &options, &engine, &error));
        openpi_engine_close(engine);
        assert_int_equal(r.wrong, 0);
        assert_true(r.done == r.total && r.total > all / 2 && r.total <= all);
        if (threads == 1) assert_true(r.count > 50 && r.largest_step < all / 20);
    }
    tensors_close(list);
    scratch_close(&torch);
    scratch_close(&orbax);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_actions), cmocka_unit_test(same_actions_lora),
                                       cmocka_unit_test(tells_lora), cmocka_unit_test(not_finite),
                                       cmocka_unit_test(reports_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
