/* Weights into the layout of kernels/args.h: rows are read, put in order by the calling thread straight
 * into pinned memory, and copied to the device while the thread reads on.
 *
 * A block (of backend.matrix_blocks) is a unit of 16 packed columns over all k. Its two groups of 8 lie
 * one after the other, and so do blocks: one copy takes as many as fit a slot. Any number of threads may
 * pack at once; they share the slots, whose copies are ordered by the device's stream like everything that
 * will read them. Raw matrices are copied alike, rows as they are. */
#include "backend/gpu/pack.h"

#include <string.h>

#include "backend/gpu/device.h"
#include "backend/gpu/layout.h"
#include "base/report.h"
#include "ops/limits.h"

/* Eight rows as they are read. */
size_t gpu_matrix_scratch(const device *device, const matrix *m) {
    (void)device;
    return 8 * weight_row_bytes(&weight_formats[m->type], m->k);
}

/* Eight columns of `bytes` bytes from `out` on, 16 of a column where the layout has them. */
static void pack_atoms(const char *rows, int count, int bytes, int layout, char *out) {
    int blocks = ceil_div(bytes, GPU_ATOM_BYTES / 8);
    for (int column = 0; column < 8; column++) {
        const char *from = rows + (size_t)column * (size_t)bytes;
        for (int i = 0; i < blocks * 8; i++) {
            char *unit = layout == GPU_LAYOUT_LANES ? out + column * 16 + (size_t)i * GPU_UNIT * 16
                                                    : out + column * 128 + (size_t)(i / 8) * GPU_ATOM_BYTES +
                                                          ((i ^ column) & 7) * 16;
            int left = column < count ? bytes - i * 16 : 0;
            if (left >= 16) {
                memcpy(unit, from + i * 16, 16);
            } else {
                memset(unit, 0, 16);
                if (left > 0) memcpy(unit, from + i * 16, (size_t)left);
            }
        }
    }
}

/* Where group `group` of a slot begins: in GPU_LAYOUT_LANES two groups are interleaved. */
static char *group_at(char *slot, int group, size_t group_bytes, int interleaved) {
    if (!interleaved) return slot + (size_t)group * group_bytes;
    return slot + (size_t)(group & ~1) * group_bytes + (group & 1) * 8 * 16;
}

static void pack_floats(const float *rows, int count, int k, size_t pitch, char *out) {
    memset(out, 0, 8 * pitch);
    for (int column = 0; column < count; column++)
        memcpy(out + (size_t)column * pitch, rows + (size_t)column * (size_t)k, (size_t)k * sizeof(float));
}

static int take_slot(gpu_device *self) {
    pthread_mutex_lock(&self->slot_lock);
    while (!self->free_count) pthread_cond_wait(&self->slot_freed, &self->slot_lock);
    int slot = self->free_slots[self->free_first];
    self->free_first = (self->free_first + 1) % GPU_SLOTS;
    self->free_count--;
    pthread_mutex_unlock(&self->slot_lock);
    return slot;
}

static void give_slot(gpu_device *self, int slot) {
    pthread_mutex_lock(&self->slot_lock);
    self->free_slots[(self->free_first + self->free_count) % GPU_SLOTS] = slot;
    self->free_count++;
    pthread_cond_signal(&self->slot_freed);
    pthread_mutex_unlock(&self->slot_lock);
}

/* Groups first … first+count-1 through one slot; of bf16 both are even. */
static int pack_groups(gpu_device *self, const matrix *m, int first, int count, const matrix_source *source,
                       char *to, void *scratch) {
    size_t group_bytes = 8 * gpu_column_bytes(m);
    int slot = take_slot(self);
    int layout = self->vendor->layout;
    int interleaved = layout == GPU_LAYOUT_LANES && !m->raw && m->type == WEIGHT_BF16;
    gpu_row_order order = gpu_row_order_of(m);
    int code = self->driver.event_wait(&self->driver, self->slots[slot].event);
    for (int i = 0; i < count && !code; i++) {
        char *out = group_at(self->slots[slot].memory, i, group_bytes, interleaved);
        int rows, row = gpu_group_rows(&order, first + i, &rows);
        if (rows) source->read(source->context, row, rows, m->raw ? out : scratch);
        if (m->raw) continue;
        if (m->type == WEIGHT_F32)
            pack_floats(scratch, rows, m->k, group_bytes / 8, out);
        else
            pack_atoms(scratch, rows, (int)weight_row_bytes(&weight_formats[m->type], m->k), layout, out);
    }
    size_t from = (size_t)first * group_bytes, end = from + (size_t)count * group_bytes,
           all = gpu_matrix_bytes(&self->base, m);
    if (end > all) end = all;              /* of raw rows the last group may be short */
    if (!code && from < end)
        code = self->driver.upload(&self->driver, (gpu_address)(uintptr_t)(to + from),
                                   self->slots[slot].memory, end - from, self->stream);
    if (!code) code = self->driver.event_record(&self->driver, self->slots[slot].event, self->stream, 0);
    give_slot(self, slot);
    return code;
}

_Static_assert(GPU_SLOT_BYTES >= 8 * (size_t)LIMIT_INPUTS * sizeof(float) &&
                   GPU_SLOT_BYTES >= 16 * (size_t)LIMIT_INPUTS * sizeof(bf16),
               "a slot holds a group of the widest matrix, of bf16 two");

openpi_status gpu_matrix_pack(device *device, const matrix *m, int first, int count,
                              const matrix_source *source, void *to, void *scratch, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    size_t group_bytes = 8 * gpu_column_bytes(m);
    int at = first * 2, end = (first + count) * 2, most = (int)(GPU_SLOT_BYTES / group_bytes);
    if (most > 1) most &= ~1;              /* interleaved groups stay together                              */
    TRY(gpu_enter(self, error));
    while (at < end) {
        int n = end - at < most ? end - at : most;
        int code = pack_groups(self, m, at, n, source, to, scratch);
        if (code) return gpu_fail(self, code, "uploading weights", error);
        at += n;
    }
    return OPENPI_OK;
}
