/* Checkpoints of every layout in a temporary folder of each test, and their conversion. For one source file
 * of a test, which includes cmocka.h first. */
#ifndef TESTS_CONVERSION_H
#define TESTS_CONVERSION_H

#include "orbax_write.h"
#include "policy_golden.h"
#include "scratch.h"

#define LM_HEAD "paligemma_with_expert.paligemma.lm_head.weight"

static openpi_error error = OPENPI_ERROR_INIT;
static scratch box;

enum { ORBAX_AS_TORCH = -1, LEROBOT = -2 };

/* Writes a synthetic model to the folder `name` of the box: as a JAX checkpoint of a form (orbax_write.h), as
 * openpi's PyTorch layout, or as LeRobot's. Returns the dims. */
static inline openpi_dims make(const char *name, const char *model, int form) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    char folder[400], torch[420];
    tensors *list;
    WORKS(openpi_synthetic_parse(model, &synthetic, &error));
    synthetic.lerobot = form == LEROBOT;
    snprintf(folder, sizeof folder, "%s", scratch_path(&box, name));
    snprintf(torch, sizeof torch, "%s.torch", folder);
    if (form < 0) {
        WORKS(openpi_synthetic_write(&synthetic, folder, 0, 1, NULL, NULL, &error));
        return synthetic.dims;
    }
    WORKS(openpi_synthetic_write(&synthetic, torch, 0, 1, NULL, NULL, &error));
    WORKS(tensors_open(torch, &list, &error));
    WORKS(tensors_load(list, &error));
    assert_int_equal(mkdir(folder, 0777), 0);
    orbax_write(folder, list, &synthetic.dims, synthetic.variant == OPENPI_PI05, form);
    tensors_close(list);
    scratch_remove(torch);
    return synthetic.dims;
}

static inline openpi_status convert_to(const char *from, const char *to, openpi_file_dtype dtype,
                                       uint64_t shards, int threads) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    char folder[400];
    options.dtype = dtype;
    options.shard_bytes = shards;
    options.threads = threads;
    snprintf(folder, sizeof folder, "%s", scratch_path(&box, to));
    return openpi_convert(*from == '/' ? from : scratch_path(&box, from), folder, &options, &error);
}

static inline tensors *open_in(const char *name) {
    tensors *list;
    WORKS(tensors_open(scratch_path(&box, name), &list, &error));
    WORKS(tensors_load(list, &error));
    return list;
}

static inline void drop(const char *name) { scratch_remove(scratch_path(&box, name)); }

static inline char *read_whole(const char *folder, const char *name, size_t *bytes) {
    char *path = file_join(scratch_path(&box, folder), name), *data;
    assert_non_null(path);
    WORKS(file_read(path, 1 << 28, &data, bytes, &error));
    free(path);
    return data;
}

static inline int open_box(void **state) {
    (void)state;
    return scratch_open(&box);
}

static inline int close_box(void **state) {
    (void)state;
    scratch_close(&box);
    return 0;
}

#define IN_A_BOX(test) cmocka_unit_test_setup_teardown(test, open_box, close_box)

#endif
