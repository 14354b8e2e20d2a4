/* The lists of blockings. Append new ones: op.choice is an index into a list. */
#include "backend/cpu/blocking.h"

#include <string.h>

/* Few rows: reading the weights from memory limits. */
static const cpu_blocking streams[] = {
    {.name = "usual"},
    {.name = "tasks 1", .tasks = 1}, {.name = "tasks 2", .tasks = 2}, {.name = "tasks 4", .tasks = 4},
    {.name = "tasks 16", .tasks = 16}, {.name = "tasks 32", .tasks = 32},
    {.name = "tasks 2, shared", .tasks = 2, .share = 1}, {.name = "tasks 8, shared", .tasks = 8, .share = 1},
};

/* Many rows: how much of A stays in cache while panels are read. */
static const cpu_blocking blocks[] = {
    {.name = "usual"},
    {.name = "fit 0.6 MB", .fit = 600000},
    {.name = "fit 1.72 MB", .fit = 1720000},
    {.name = "fit all", .fit = -1},
    {.name = "cut 256", .cut = 256},
    {.name = "cut 512", .cut = 512},
    {.name = "cut 1024", .cut = 1024},
    {.name = "cut 2048", .cut = 2048},
    {.name = "cut none", .cut = 1 << 20},
    {.name = "panels 2", .panels = 2},
    {.name = "panels 8", .panels = 8},
    {.name = "panels 16", .panels = 16},
    {.name = "panels 32", .panels = 32},
    {.name = "panels 64", .panels = 64},
    {.name = "panels 8, cut 512", .panels = 8, .cut = 512},
    {.name = "panels 16, cut 512", .panels = 16, .cut = 512},
    {.name = "fit 1.72 MB, cut 1024", .fit = 1720000, .cut = 1024},
    {.name = "fit 0.6 MB, panels 48", .fit = 600000, .panels = 48},
    {.name = "fit 1.72 MB, panels 48", .fit = 1720000, .panels = 48},
};

static const cpu_blocking attentions[] = {
    {.name = "units 48", .units = 48}, {.name = "units 16", .units = 16}, {.name = "units 24", .units = 24},
    {.name = "units 32", .units = 32}, {.name = "units 64", .units = 64}, {.name = "units 96", .units = MOST_UNITS},
};

static const cpu_blocking copies[] = {
    {.name = "rows 1", .rows = 1}, {.name = "rows 4", .rows = 4}, {.name = "rows 16", .rows = 16},
};

/* Ops of a plan with switches off that have no product: nothing to choose. */
static const cpu_blocking parts[] = {
    {.name = "usual"},
};

#define LIST(list) (*count = (int)(sizeof list / sizeof *list), list)

const cpu_blocking *cpu_blockings(op_kind kind, int stream, int *count) {
    if (kind == OP_EMBED_TEXT) return LIST(copies);
    if (kind == OP_IMAGE_ATTENTION || kind == OP_CACHE_ATTENTION || kind == OP_SCORES || kind == OP_VALUES)
        return LIST(attentions);
    if (kind == OP_NORM || kind == OP_ACTIVATE || kind == OP_ADD || kind == OP_ROPE_CACHE ||
        kind == OP_SOFTMAX)
        return LIST(parts);
    return stream ? LIST(streams) : LIST(blocks);
}

cpu_blocking cpu_blocking_of(op_kind kind, int stream, int choice) {
    int count;
    const cpu_blocking *list = cpu_blockings(kind, stream, &count);
    return list[choice >= 1 && choice <= count ? choice - 1 : 0];
}

int cpu_blocking_known(const char *name) {
    for (int i = 0; i < 2 * OP_KINDS; i++) {
        int count;
        const cpu_blocking *list = cpu_blockings((op_kind)(i / 2), i % 2, &count);
        for (int j = 0; j < count; j++)
            if (!strcmp(list[j].name, name)) return 1;
    }
    return 0;
}
