/* How a task is run: what every family of the device offers, which of that is taken, and its launches.
 *
 * An op has one task with choices. Whoever has listed them asks gpu_choices_pick, which reads
 * op.choice by gpu_choices_place. Tables name choices, not places: the order of a list is free. */
#include "backend/gpu/choices.h"

#include <stdio.h>
#include <string.h>

#include "backend/gpu/layout.h"

/* ---- lists ------------------------------------------------------------------------------------------ */

void gpu_choices_add(gpu_choices *choices, gpu_choice choice) {
    if (choices->count == GPU_CHOICES) return;
    int best = choices->heuristic;
    if (best < 0 || choice.rank < choices->list[best].rank) choices->heuristic = choices->count;
    choice.family = choices->family;
    choices->list[choices->count++] = choice;
}

void gpu_choices_of(const gpu_device *device, const gpu_task *task, gpu_choices *out) {
    out->count = 0;
    out->heuristic = -1;
    for (int i = 0; i < device->loaded_count; i++) {
        const gpu_family *family = device->vendor->modules[i].family;
        out->family = i;
        if (device->loaded[i].module && family->list) family->list(device, task, out);
    }
}

static const int norm_rows[] = {GPU_NORM_ROWS, 2, 1};

int gpu_norms_first(const gpu_linear *p) { return p->norm ? (int)(sizeof norm_rows / sizeof *norm_rows) : 1; }

int gpu_norm_first(const gpu_linear *p, int i) { return p->norm ? norm_rows[i] : 0; }

/* ---- one of them ------------------------------------------------------------------------------------ */

static const char *kernel_name(const gpu_device *device, const gpu_choice *choice) {
    return gpu_kernel_at(device->vendor->modules[choice->family].family, choice->kernel)->name;
}

static void name_choice(const gpu_device *device, const gpu_choice *choice, int heuristic, candidate *out) {
    int n = snprintf(out->name, sizeof out->name, "%s", kernel_name(device, choice));
    if (choice->count) n += snprintf(out->name + n, sizeof out->name - (size_t)n, " x%d", choice->count);
    if (choice->norm) snprintf(out->name + n, sizeof out->name - (size_t)n, ", norm %d", choice->norm);
    out->heuristic = heuristic;
}

static void write_list(const gpu_device *device, const gpu_choices *choices, gpu_listing *to) {
    for (int i = 0; i < choices->count && i < to->capacity; i++)
        name_choice(device, &choices->list[i], i == choices->heuristic, &to->list[i]);
    to->count = choices->count;
}

int gpu_choices_place(const gpu_choices *choices, int choice) {
    return choice > 0 && choice <= choices->count ? choice - 1 : choices->heuristic;
}

const gpu_choice *gpu_choices_pick(gpu_issue *issue, const gpu_choices *choices) {
    if (issue->purpose == GPU_LIST) {
        write_list(issue->device, choices, &issue->listing);
        return NULL;
    }
    if (choices->count) return &choices->list[gpu_choices_place(choices, issue->choice)];
    gpu_issue_fail(issue, GPU_NO_KERNEL);
    return NULL;
}

/* ---- launches --------------------------------------------------------------------------------------- */

gpu_norm gpu_norm_of(const gpu_linear *p, void *out) {
    return (gpu_norm){.count = p->count,
                      .x = p->x,
                      .from = p->from,
                      .f32 = p->x_type == GPU_X_F32,
                      .k = p->ldx,
                      .kind = p->norm,
                      .weight = p->norm_weight,
                      .bias = p->norm_bias,
                      .known = p->epilogue.known,
                      .eps = p->eps,
                      .out = out};
}

void gpu_read_normed(gpu_linear *p, const void *normed) {
    p->x = normed;
    p->from = (gpu_row_map){0};
    p->norm = GPU_NORM_NONE;
}

/* The norm of a product's x, into the work block; the product then reads its result. */
static void launch_norm_first(gpu_issue *issue, gpu_task *task, int rows_a_block) {
    gpu_linear *p = &task->product;
    int f32 = p->x_type == GPU_X_F32;
    size_t bytes = (size_t)task->rows * (size_t)p->ldx * (f32 ? sizeof(float) : sizeof(bf16));
    gpu_task norm = {.kind = GPU_NORM, .rows = task->rows, .rows_a_block = rows_a_block};
    norm.norm = gpu_norm_of(p, gpu_work_take(issue, bytes));
    gpu_launch_usual(issue, &norm);
    gpu_read_normed(p, norm.norm.out);
}

static void launch_as_is(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    issue->family = choice->family;
    issue->device->vendor->modules[choice->family].family->launch(issue, task, choice);
}

void gpu_launch_normed(gpu_issue *issue, gpu_task *product, const gpu_choice *choice, const void *normed) {
    gpu_read_normed(&product->product, normed);
    launch_as_is(issue, product, choice);
}

static void launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    size_t used = issue->work.used;
    if (choice->norm) launch_norm_first(issue, task, choice->norm);
    launch_as_is(issue, task, choice);
    issue->work.used = used;               /* of this task: the op's next one may have it */
}

/* As gpu_choices_of; int8 weights of a product that no family runs become fp32 in the work block first. */
static void choices_of_any(gpu_issue *issue, gpu_task *task, gpu_choices *out) {
    gpu_linear *p = &task->product;
    gpu_task unpack = {.kind = GPU_UNPACK};
    gpu_choices_of(issue->device, task, out);
    if (out->count || task->kind != GPU_PRODUCT || p->weights.type != GPU_WEIGHT_INT8) return;
    size_t bytes = (size_t)p->weights.columns * (size_t)ceil_div(p->weights.k, 4) * 4 * sizeof(float);
    unpack.unpack = (gpu_unpack){p->weights, p->epilogue, gpu_work_take(issue, bytes)};
    gpu_launch_usual(issue, &unpack);
    issue->emit.alone = 1;                 /* products fetch weights before they wait for the kernel before */
    p->weights.type = GPU_WEIGHT_F32;
    p->weights.data = unpack.unpack.out;
    p->weights.scales = NULL;
    p->weights.blocks = p->k_blocks = ceil_div(p->weights.k, GPU_ATOM_K);
    gpu_choices_of(issue->device, task, out);
}

void gpu_launch_chosen(gpu_issue *issue, gpu_task *task) {
    gpu_choices choices;
    if (issue->purpose == GPU_BUILD) {
        *issue->built = *task;
        return;
    }
    choices_of_any(issue, task, &choices);
    const gpu_choice *choice = gpu_choices_pick(issue, &choices);
    if (choice) launch(issue, task, choice);
}

void gpu_launch_usual(gpu_issue *issue, gpu_task *task) {
    gpu_choices choices;
    if (issue->purpose == GPU_LIST) return;
    choices_of_any(issue, task, &choices);
    if (choices.count) launch(issue, task, &choices.list[choices.heuristic]);
    else gpu_issue_fail(issue, GPU_NO_KERNEL);
}

int gpu_launch_alone(gpu_device *self, gpu_task *task) {
    gpu_issue issue = {.device = self, .purpose = GPU_LAUNCH, .emit = {.stream = self->stream, .alone = 1}};
    gpu_launch_usual(&issue, task);
    return issue.emit.code;
}

/* ---- weights ----------------------------------------------------------------------------------------- */

static int can_unpack(const gpu_device *device, int type) {
    const gpu_task unpack = {.kind = GPU_UNPACK};
    gpu_choices choices;
    if (type != GPU_WEIGHT_INT8) return 0;
    gpu_choices_of(device, &unpack, &choices);
    return choices.count > 0;
}

/* The plainest product of such a matrix. */
static gpu_task plainest(const matrix *m, dtype type) {
    gpu_task task = {.kind = GPU_PRODUCT, .rows = 1};
    task.product = (gpu_linear){.capacity = 1,
                                .x_type = type == DTYPE_F32 ? GPU_X_F32 : GPU_X_BF16,
                                .ldx = m->k,
                                .weights = gpu_weights_of(m),
                                .epilogue = {.kind = GPU_EPILOGUE_STORE, .f32 = type == DTYPE_F32, .n = m->n},
                                .round = type != DTYPE_F32};
    task.product.k_blocks = task.product.weights.blocks;
    return task;
}

int gpu_leaves_codes(const gpu_device *device) {
    const matrix m = {.n = 2 * GPU_UNIT,
                      .k = GPU_ATOM_K,
                      .type = WEIGHT_INT8_ROW,
                      .form = MATRIX_GATED,
                      .input = INPUT_INT8};
    gpu_task task = plainest(&m, DTYPE_BF16);
    gpu_choices choices;
    task.product.epilogue.kind = GPU_EPILOGUE_GATED;
    task.product.epilogue.n = task.product.epilogue.n_second = m.n / 2;
    task.leaves.scale = 1;
    gpu_choices_of(device, &task, &choices);
    return choices.count > 0;
}

/* There is a layout, and a family that runs the plainest product or makes weights that one runs with. */
int gpu_takes_weights(const device *device, dtype type, weight_type weights, matrix_input input) {
    const matrix m = {
        .n = GPU_UNIT, .k = GPU_ATOM_K, .type = weights, .form = MATRIX_PLAIN, .input = input};
    gpu_choices choices;
    if (gpu_weights_of(&m).type < 0) return 0;
    const gpu_task task = plainest(&m, type);
    gpu_choices_of((const gpu_device *)device, &task, &choices);
    return choices.count > 0 || can_unpack((const gpu_device *)device, task.product.weights.type);
}

/* ---- hashes ----------------------------------------------------------------------------------------- */

/* Also of a family's kernel after a norm of the same family: not 0. */
static uint64_t mix(uint64_t a, uint64_t b) { return a * 0x9e3779b97f4a7c15u + b; }

/* Of the kernel that a name begins with, up to a blank or a comma. */
static uint64_t hash_of(const gpu_device *device, const char *name) {
    size_t length = strcspn(name, " ,");
    for (int i = 0; i < device->loaded_count; i++) {
        const gpu_module *module = &device->vendor->modules[i];
        for (int k = 0; device->loaded[i].module && k < module->family->kernel_count; k++) {
            const char *kernel = gpu_kernel_at(module->family, k)->name;
            if (strlen(kernel) == length && !memcmp(kernel, name, length)) return module->hash;
        }
    }
    return 0;
}

/* Where a norm goes first, the norm's too. */
uint64_t gpu_kernel_hash(const device *device, const char *name) {
    const gpu_device *self = (const gpu_device *)device;
    uint64_t hash = hash_of(self, name);
    gpu_task norm = {.kind = GPU_NORM, .rows = 1, .rows_a_block = GPU_NORM_ROWS};
    gpu_choices choices;
    if (!hash || !strstr(name, ", norm ")) return hash;
    gpu_choices_of(self, &norm, &choices);
    return choices.count ? mix(hash, self->vendor->modules[choices.list[choices.heuristic].family].hash)
                         : hash;
}
