/* Costs are a walk over the plan; the rows in use come from the host's copy of the call's tables. */
#include "lab/measure/costs.h"

#include "openpi_internal.h"
#include "ops/reference.h"

/* The host's copy of a row set's table: the host's block and the device's have the same layout. */
static const row_table *host_table(const openpi_session *s, const row_set *rows) {
    const call_tables *device = &s->plan->buffers.in.tables, *host = &s->in.tables;
    const row_table *on_device[] = {&device->vision, &device->text,   &device->prefix, &device->state,
                                    &device->suffix, &device->action, &device->steps, &device->one,
                                    &device->camera[0], &device->camera[1], &device->camera[2]};
    const row_table *on_host[] = {&host->vision, &host->text,   &host->prefix, &host->state,
                                  &host->suffix, &host->action, &host->steps, &host->one,
                                  &host->camera[0], &host->camera[1], &host->camera[2]};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        if (on_device[i]->count == rows->count) return on_host[i];
    return NULL;
}

static double mean_keys(const row_table *table, int rows) {
    double sum = 0;
    if (!table->keys) return 0;
    for (int i = 0; i < rows; i++) sum += table->keys[i];
    return rows ? sum / rows : 0;
}

call_cost costs_of_op(const openpi_session *s, int index) {
    const op *op = &s->plan->ops[index];
    const row_set *set = op_rows(op);
    const row_table *table = set ? host_table(s, set) : NULL;
    int rows = table ? *table->count : set ? set->capacity : 0;
    double keys = table ? mean_keys(table, rows) : 0;
    return (call_cost){op_get_cost(op, rows, keys), rows, keys};
}
