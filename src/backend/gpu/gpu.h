/* All of the GPU backend's frame, as the table of functions that a vendor's backend is. No vendor is named
 * here. A file calls those above it, and none below (tools/include-check):
 *
 *   vendor.h   what a vendor is: driver, devices, modules
 *   family.h   what a kernel family is, and what it may ask for
 *   device     opening, memory, copies, facts; the device's states
 *   layout     packed weights: sizes, order of rows
 *   launch     launches, the first error, what a recording notes of them; the work block
 *   choices    a task's choices, from all families; the one that is taken; its launches
 *   pack, generate, roof   weights through pinned staging, or made on the device; ceilings
 *   prepare    what families derive from a block's weights
 *   ops        op -> tasks
 *   issue      the walk over ops: launch, measure the work block, list choices
 *   record     running ops now, or recording them into a graph; times of stages and launches */
#ifndef BACKEND_GPU_GPU_H
#define BACKEND_GPU_GPU_H

#include "backend/gpu/choices.h"
#include "backend/gpu/issue.h"
#include "backend/gpu/layout.h"
#include "backend/gpu/ops.h"
#include "backend/gpu/pack.h"
#include "backend/gpu/prepare.h"
#include "backend/gpu/record.h"
#include "backend/gpu/roof.h"

/* Defines `const backend backend_VENDOR` of gpu_vendor_VENDOR, at file scope. */
#define GPU_BACKEND(vendor)                                                                                  \
    extern const gpu_vendor gpu_vendor_##vendor;                                                             \
    extern const backend backend_##vendor;                                                                   \
    static int devices_##vendor(openpi_device *devices, int capacity) {                                      \
        return gpu_devices(&gpu_vendor_##vendor, devices, capacity);                                         \
    }                                                                                                        \
    static openpi_status open_##vendor(const char *which, const device_options *options, device **out,       \
                                       openpi_error *error) {                                                \
        return gpu_open(&gpu_vendor_##vendor, &backend_##vendor, which, options, out, error);                \
    }                                                                                                        \
    const backend backend_##vendor = {                                                                       \
        .name = #vendor,                                                                                     \
        .devices = devices_##vendor,                                                                         \
        .open = open_##vendor,                                                                               \
        .close = gpu_close,                                                                                  \
        .allocate = gpu_allocate,                                                                            \
        .release = gpu_release,                                                                              \
        .allocate_host = gpu_allocate_host,                                                                  \
        .release_host = gpu_release_host,                                                                    \
        .upload = gpu_upload,                                                                                \
        .copy_rows = gpu_copy_rows,                                                                          \
        .download = gpu_download,                                                                            \
        .takes_row_scales = 1,                                                                               \
        .takes_weights = gpu_takes_weights,                                                                  \
        .matrix_bytes = gpu_matrix_bytes,                                                                    \
        .matrix_blocks = gpu_matrix_blocks,                                                                  \
        .matrix_scratch = gpu_matrix_scratch,                                                                \
        .matrix_pack = gpu_matrix_pack,                                                                      \
        .matrix_generate = gpu_matrix_generate,                                                              \
        .prepared_bytes = gpu_prepared_bytes,                                                                \
        .prepare = gpu_prepare,                                                                              \
        .cache_bytes = gpu_cache_bytes,                                                                      \
        .cache_read = gpu_cache_read,                                                                        \
        .work_bytes = gpu_work_bytes,                                                                        \
        .run = gpu_run,                                                                                      \
        .record = gpu_record,                                                                                \
        .replay = gpu_replay,                                                                                \
        .forget = gpu_forget,                                                                                \
        .record_timed = gpu_record_timed,                                                                    \
        .launches = gpu_launches,                                                                            \
        .nodes = gpu_nodes,                                                                                  \
        .roof = gpu_roof,                                                                                    \
        .memory = gpu_memory,                                                                                \
        .facts = gpu_get_facts,                                                                              \
        .candidates = gpu_candidates,                                                                        \
        .kernel_hash = gpu_kernel_hash,                                                                      \
        .untuned_percent = gpu_untuned_percent,                                                              \
        .chooses_by_rows = gpu_chooses_by_rows,                                                              \
        .library_product = gpu_library_product,                                                              \
        .set_off = gpu_set_off,                                                                              \
        .missing = gpu_missing,                                                                              \
    }

#endif
