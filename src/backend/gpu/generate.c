/* Synthetic matrices without the host: one launch makes a matrix of its recipe where it will lie, in the
 * layout that pack.c fills.
 *
 * Nothing waits: the launch is in the device's stream, like the copies of pack.c and like everything that
 * reads it. */
#include "backend/gpu/choices.h"
#include "backend/gpu/layout.h"
#include "backend/gpu/pack.h"
#include "base/report.h"

openpi_status gpu_matrix_generate(device *device, const matrix *m, const generated_matrix *from, void *to,
                                  openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    gpu_task task = {.kind = GPU_GENERATE, .rows = gpu_matrix_blocks(device, m) * GPU_UNIT / 8};
    gpu_generate *p = &task.generate;
    *p = (gpu_generate){.out = to,
                        .order = gpu_row_order_of(m),
                        .k = m->k,
                        .f32 = m->type == WEIGHT_F32,
                        .raw = m->raw,
                        .layout = self->vendor->layout,
                        .column = from->column,
                        .row_length = from->row_length};
    int most = p->f32 ? 4 : 8, chunks = (m->k + most - 1) / most, rows = 0;
    if (from->count < 1 || from->count > GPU_GENERATED_PARTS)
        return report(error, OPENPI_BAD_ARGUMENT, "a generated weight has %d parts, expected 1 to %d",
                      from->count, GPU_GENERATED_PARTS);
    for (int i = 0; i < from->count; i++) {
        const generated_part *part = &from->parts[i];
        p->parts[i] = (gpu_generated_part){.key = part->key,
                                           .offset = part->offset,
                                           .scale = part->scale,
                                           .raise = part->raise,
                                           .raise_from = part->raise_from,
                                           .rows = part->rows};
        rows += part->rows;
    }
    if (rows != m->n)
        return report(error, OPENPI_BAD_ARGUMENT, "a generated weight's parts have %d rows, expected %d",
                      rows, m->n);
    p->units = 8 * (p->f32 || m->raw ? chunks : (m->k + GPU_ATOM_K - 1) / GPU_ATOM_K * (GPU_ATOM_K / 8));
    TRY(gpu_enter(self, error));
    int code = gpu_launch_alone(self, &task);
    return code ? gpu_fail(self, code, "making synthetic weights", error) : OPENPI_OK;
}
